"""What is learned does exactly what it promises: what was approved passes, and nothing else changes."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from history_stage import Stage, variety

from redoma import AsyncExecutor, Config, FakeBackend
from redoma.approval import Callback
from redoma.approval.ask import Ask
from redoma.audit import AuditLog
from redoma.audit.inputs import Inputs
from redoma.config import AuditConfig, check, proposed
from redoma.history.learn import Learned, RecordedRuns, learn, yaml
from redoma.history.recorded import recorded
from redoma.models import Approval, Decision, Limits, Request, Submission
from redoma.policy import Permit, Policy, evaluate, load, verify_permit

Called = Callable[..., tuple[int, str, str]]
KINDS = ("approval.given", "approval.denied", "approval.unpinned")


@functools.cache
def with_permits(pack: str | None, permits: tuple[Permit, ...]) -> Policy:
    return load(pack or "standard", permits=permits) if pack != "none" else load("none")


def history(log: AuditLog, inputs: Inputs) -> RecordedRuns:
    runs = ("intent", "outcome")
    asked = functools.partial(log.records, kinds=("intent",))
    return RecordedRuns(lambda: log.records(kinds=runs), lambda: log.records(kinds=KINDS), asked, inputs)


def learned_from(stage: Stage, **options: int) -> Learned:
    return learn(history(stage.log, stage.inputs), with_permits, **options)


def bash(code: str, **fields: object) -> Submission:
    return Submission(Request(code=code, language="bash", requester="agent", **fields))  # type: ignore[arg-type]


def promise(learned: Learned, tmp_path: Path) -> Callable[[str | None], Policy]:
    """By way of the file, as somebody would use it."""
    file = tmp_path / "learned.yaml"
    file.write_text(yaml(learned, when="today"))
    assert check(file) == []
    config = proposed(file)
    assert set(config.policy.permits) == set(learned.permits)
    return functools.cache(config.load_policy)


@pytest.mark.parametrize("seed", range(4))
def test_over_the_history_it_came_from_what_was_approved_passes_and_all_else_is_as_it_was(
    tmp_path: Path, seed: int
) -> None:
    stage, dice = Stage(tmp_path), random.Random(seed)
    approved: dict[str, Submission] = {}
    everything: list[Submission] = []
    for asked in variety(seed, 120):
        everything.append(asked)
        chance, asks = dice.random(), stage.judge(asked).decision is Decision.PROMPT
        if asks and chance < 0.5:
            approved[stage.approve(asked, dice.choice(["ann", "bob"]))] = asked
        elif asks and chance < 0.55:
            stage.deny(asked, "eve")
        else:
            stage.ask(asked, "expired")
    learned = learned_from(stage)
    policy = promise(learned, tmp_path)
    promised = {each.id for proposal in learned.proposals for each in proposal.approved}
    left_out = {run for runs in learned.left_out.values() for run in runs}
    assert promised | left_out == set(approved)
    assert not promised & left_out
    assert promised
    same = {
        (
            run.judged.text,
            run.judged.language,
            run.submission.policy,
            run.submission.entry,
            run.judged.limits,
            tuple(run.judged.env.items()),
        )
        for run in recorded(stage.log.records(), stage.inputs)
        if run.id in promised
    }
    passing = 0
    for asked in everything:
        shown = asked.judged
        before = evaluate(with_permits(asked.policy, ()), shown, live_input=asked.live_input, entry=asked.entry)
        after = evaluate(policy(asked.policy), shown, live_input=asked.live_input, entry=asked.entry)
        if asked.request.id in promised:
            assert (before.decision, after.decision) == (Decision.PROMPT, Decision.ALLOW)
        if after.decision is not before.decision:
            key = (shown.text, shown.language, asked.policy, asked.entry, shown.limits, tuple(shown.env.items()))
            assert key in same  # the very same request as one that was approved
            assert not shown.secrets
            passing += 1
    assert passing == learned.passing


def test_what_was_denied_expired_forbidden_had_secrets_or_is_not_on_record_leads_to_nothing(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    token = "ghp_" + "a1B2c3D4e5F6g7H8i9J0" * 2
    both = bash("curl both.io")
    cases = {
        stage.approve(both, "ann"): "a person has also said no",
        stage.approve(bash("curl s.io", secrets={"TOKEN": "very-secret"}), "ann"): "it had secrets",
        stage.approve(bash(f"curl {token[:40]}.io"), "ann"): "doesn't have all of it",
        stage.approve(
            Submission(Request(argv=("psql", "x"), language="command"), live_input=True), "ann"
        ): "it could be given input while it ran",
    }
    stage.deny(bash("curl both.io"), "bob")
    stage.deny(bash("curl denied.io"), "bob")
    stage.ask(bash("curl expired.io"), "expired")
    stage.ask(bash("curl x | sh"), "forbidden")
    learned = learned_from(stage)
    assert learned.proposals == ()
    assert learned.passing == 0
    for run, why in cases.items():
        assert [run in runs for said, runs in learned.left_out.items() if why in said] == [True]
    assert sum(map(len, learned.left_out.values())) == learned.approved == len(cases)


def test_a_no_that_was_said_before_the_period_still_counts(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    no = stage.deny(bash("curl a.io"), "bob")
    run = stage.approve(bash("curl a.io"), "ann")
    everything = history(stage.log, stage.inputs)
    lately = [record for record in stage.log.records(kinds=("intent", "outcome")) if record.id == run]
    asked = functools.partial(stage.log.records, kinds=("intent",))
    learned = learn(RecordedRuns(lambda: lately, everything.answers, asked, stage.inputs), with_permits)
    assert learned.left_out == {f"a person has also said no to the same (run {no[:12]})": (run,)}


def test_a_block_is_never_loosened_neither_one_made_since_nor_one_of_another_pack(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.approve(bash("curl a.io"), "ann")
    stage.approve(bash("sudo ls"), "ann")

    def stricter(pack: str | None, permits: tuple[Permit, ...]) -> Policy:
        return load(pack or "standard", decisions={"network.download": Decision.FORBID}, permits=permits)

    learned = learn(history(stage.log, stage.inputs), stricter)
    assert [permit.text for permit in learned.permits] == ["sudo ls"]
    assert any("it is forbidden now (network.download)" in why for why in learned.left_out)
    # `sudo` is refused by the pack `strict`, and a permit that was learned from `standard` changes nothing there.
    (permit,) = learned.permits
    request = Request(code="sudo ls", language="bash")
    assert evaluate(load(permits=[permit]), request).decision is Decision.ALLOW
    assert evaluate(load("strict", permits=[permit]), request).decision is Decision.FORBID
    loose = msgspec.structs.replace(permit, up_to=Decision.FORBID)
    rules = {finding.rule: finding.decision for finding in evaluate(load("strict", permits=[loose]), request).findings}
    assert rules[permit.rule] is Decision.ALLOW  # which is what `up_to` keeps it from


def test_a_text_that_was_also_asked_for_otherwise_is_permitted_by_its_digest(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.approve(bash("curl a.io"), "ann")
    stage.approve(bash("curl b.io"), "ann")
    stage.ask(bash("curl b.io", limits=Limits(time=5)), "expired")
    learned = learned_from(stage)
    first, second = learned.permits
    assert (first.text, first.sha256) == ("curl a.io", "")
    assert second.text == ""
    assert second.sha256
    assert learned.passing == 2


def test_the_same_under_another_pack_is_not_proposed_unless_approved_there_too(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    run = stage.approve(bash("curl a.io"), "ann")
    stage.ask(Submission(Request(code="curl a.io", language="bash"), "strict"), "expired")
    assert learned_from(stage).left_out == {
        "the same was asked for under another policy, or with input while it ran, and not approved so": (run,)
    }


def test_the_evidence_and_the_examples_are_with_each_permit(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    for who, reason in (("ann", "reads only"), ("ann", "again\nrules: []"), ("bob\x1b[31m", "fine")):
        stage.approve(bash("sudo curl a.io"), who, reason)
    stage.ask(bash("sudo curl a.io"), "expired")
    stage.ask(bash("sudo curl b.io"), "expired")
    learned = learned_from(stage)
    (proposal,) = learned.proposals
    assert {permit.rule for permit in proposal.permits} == {"network.download", "privilege.raise"}
    for permit in proposal.permits:
        assert permit.up_to is Decision.PROMPT
        assert permit.match == ("sudo curl a.io",)
        assert permit.not_match == ("sudo curl b.io", "sudo curl a.io more")
    assert [each.approver for each in proposal.approved] == ["ann", "ann", "bob\x1b[31m"]
    assert proposal.unanswered == 1
    text = yaml(learned, when="today")
    assert "# approved 3 times by ann (2), bob\\x1b[31m (1)" in text
    assert "# reason: again\\nrules: []" in text
    assert "\x1b" not in text
    assert promise(learned, tmp_path)(None).permits == learned.permits
    assert learned_from(stage, at_least=4).proposals == ()


def test_nothing_is_learned_from_a_pin_whose_beginning_is_not_on_record_or_that_was_taken_back(tmp_path: Path) -> None:
    """A pinned run names its approval; who gave it, and why, is another record, which may be past the retention."""
    stage = Stage(tmp_path)
    forgotten = stage.approve(bash("curl a.io"), "ann")
    back = stage.approve(bash("curl b.io"), "ann")
    answers = [record for record in stage.log.records() if record.kind == "approval.given" and record.id == back]
    stage.log.append("approval.unpinned", back, {"approval": answers[0].data["approval"], "approver": "bob"})
    kept = [*answers, *(record for record in stage.log.records() if record.kind == "approval.unpinned")]
    runs = ("intent", "outcome")
    past = RecordedRuns(lambda: stage.log.records(kinds=runs), lambda: kept, lambda: [], stage.inputs)
    assert learn(past, with_permits).left_out == {
        "the approval itself is no longer on record": (forgotten,),
        "the approval was taken back": (back,),
    }


def test_what_runs_files_of_the_host_is_not_proposed_since_they_may_hold_anything_later(tmp_path: Path) -> None:
    """An approval is of what `./x.sh` holds; a permit of the words `./x.sh` would be of whatever it holds some day."""
    stage, place = Stage(tmp_path / "state"), str(tmp_path)
    (tmp_path / "x.sh").write_text("echo harmless\n")
    native: dict[str, object] = {"backend": "native", "cwd": place}
    project: dict[str, object] = {"workspace": "direct", "project": place}
    bound = [
        stage.approve(bash("curl a.io; ./x.sh", **native), "ann"),
        stage.approve(bash("curl b.io; ./x.sh", **project), "ann"),
        stage.approve(bash("curl c.io; . ./not_yet_there", **native), "ann"),
        stage.approve(bash('curl d.io; "$TOOL"', **native), "ann"),
        stage.approve(bash("curl e.io; make", **project), "ann"),
        stage.approve(Submission(Request(code="import x\neval('1')", requester="agent", **project)), "ann"),  # type: ignore[arg-type]
        stage.approve(bash("curl f.io", env={"PATH": f"{place}:/usr/bin"}, **native), "ann"),
        stage.approve(msgspec.structs.replace(bash("curl g.io; ./x.sh", backend="docker"), entry="app:box"), "ann"),
        stage.approve(bash("curl l.io; cat x.sh | bash", **native), "ann"),
        stage.approve(bash("curl m.io; BASH_ENV=x.sh bash -c true", **native), "ann"),
        stage.approve(bash("curl n.io; psql -f x.sql", **native), "ann"),
        stage.approve(bash("pip install .", **native), "ann"),
        stage.approve(msgspec.structs.replace(bash("curl o.io; git push", backend="docker"), entry="app:box"), "ann"),
    ]
    free = [
        stage.approve(bash("curl h.io; ./x.sh"), "ann"),  # in an empty directory of a cell there is no such file
        stage.approve(bash("curl i.io", **native), "ann"),
        stage.approve(bash("curl j.io", **project), "ann"),
        stage.approve(msgspec.structs.replace(bash("curl k.io", backend="docker"), entry="app:box"), "ann"),
    ]
    learned = learned_from(stage)
    assert [each.id for proposal in learned.proposals for each in proposal.approved] == free
    ((why, runs),) = learned.left_out.items()
    assert why.startswith("it runs files of the host")
    assert runs == tuple(bound)


def test_input_that_nobody_has_read_is_not_learned_nor_given_to_what_was_approved_without(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    listed = Submission(Request(argv=("curl", "a.io"), language="command"), entry="app:shell")
    told = stage.approve(
        msgspec.structs.replace(listed, request=Request(argv=("curl", "b.io"), language="command"), unread_input=True),
        "ann",
    )
    both = stage.approve(listed, "ann")
    stage.ask(
        msgspec.structs.replace(listed, request=msgspec.structs.replace(listed.request, id="other"), unread_input=True),
        "expired",
    )
    assert learned_from(stage).left_out == {
        "it could be given input while it ran, which no permit is about": (told,),
        "the same was asked for under another policy, or with input while it ran, and not approved so": (both,),
    }


def test_one_yes_that_was_pinned_is_one_yes_however_often_it_ran(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    first = stage.approve(bash("curl a.io"), "ann")
    intent = next(record for record in stage.log.records(kinds=("intent",)) if record.id == first)
    outcome = next(record for record in stage.log.records(kinds=("outcome",)) if record.id == first)
    for number in range(2):
        stage.log.append("intent", f"again{number}", intent.data)
        stage.log.append("outcome", f"again{number}", outcome.data)
    (proposal,) = learned_from(stage).proposals
    assert len(proposal.approved) == 3
    assert len(proposal.answers) == 1
    assert "# approved once by ann (1), for 3 runs, " in yaml(learned_from(stage), when="today")
    assert learned_from(stage, at_least=2).proposals == ()


def test_no_more_is_proposed_than_somebody_would_read(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    for number in (1, 2, 2, 3):
        stage.approve(bash(f"curl {number}.io"), "ann")
    learned = learned_from(stage, max_permits=1)
    assert [permit.text for permit in learned.permits] == ["curl 2.io"]
    assert learned.passing == 2
    assert [len(runs) for why, runs in learned.left_out.items() if why == "more than 1 would be proposed"] == [2]


def test_a_permit_that_disagrees_with_its_examples_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    permit = Permit(rule="network.download", language="bash", text="curl a.io")
    verify_permit(msgspec.structs.replace(permit, match=("curl a.io",), not_match=("curl b.io",)))
    file = tmp_path / "redoma.yaml"
    for more in ('match: ["curl b.io"]', 'not_match: ["curl a.io"]', "up_to: allow"):
        item = f'{{rule: network.download, language: bash, text: "curl a.io", {more}}}'
        file.write_text(f"policy: {{permits: [{item}]}}\n")
        (problem,) = check(file)
        assert problem.line == 1
    file.write_text('policy: {permits: [{rule: network.download, language: bash, sha256: "00", match: [x]}]}\n')
    assert "has examples" in check(file)[0].message


async def test_the_way_people_do_it_from_asking_to_a_file_that_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redoma: Called
) -> None:
    """Through the executor, its approvals and its record; then the commands."""
    state = tmp_path / "state"
    monkeypatch.setenv("REDOMA_STATE_DIR", str(state))

    def person(ask: Ask) -> Approval:
        yes = "good" in ask.request.text or ask.request.stdin == b"good"
        return ask.answer("approved" if yes else "denied", approver="ann", reason="looked at it", at=ask.created)

    config = Config(audit=AuditConfig(directory=state / "audit"), state=state)
    async with AsyncExecutor(config, backends=[FakeBackend(name="jail")], approver=Callback(person)) as executor:
        for code in ("curl good.io", "curl good.io", "curl bad.io", "echo hi", "curl good | sh"):
            await executor.run(code, "bash", requester="agent")
        await executor.command(["curl", "x.io"], stdin=b"good", requester="agent")
    file = tmp_path / "learned.yaml"
    status, _, told = redoma("policy", "learn", "--since", "1d", "-o", str(file))
    assert status == 0
    assert "2 permits from 3 approved runs; 3 runs on record would pass; approved and left out: 0" in told
    assert "approved 2 times by ann (2)" in file.read_text()
    assert redoma("config", "check", str(file))[0] == 0
    shape = json.loads(redoma("policy", "test", "--add", str(file), "--json")[1])
    assert (shape["passing"], shape["forbidden"], shape["prompt"], shape["unchanged"]) == (3, 0, 0, 3)
    status, _, error = redoma("policy", "learn", "-o", str(file))
    assert (status, "is there already" in error) == (2, True)
