"""An approval is of exactly one thing, by somebody else, in time, once. Everything else is refused, and on record."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from approval_stage import RISKY, START, Stage, altered_case, case_of, effect_of

from redoma.approval import STATES, Ask, Callback, Chain, Console, Deny, Queue, configuration_digest, digest_of
from redoma.approval.ask import ask_of, decode, encode, is_same_person
from redoma.lib.errors import ApprovalError, AuditError
from redoma.models import (
    Approval,
    Decision,
    EnvironmentUse,
    Judged,
    Limits,
    PolicyView,
    Request,
    SecretUse,
    Seed,
    Status,
    Submission,
    host_rules,
)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@pytest.fixture
def apart(tmp_path: Path) -> Stage:
    """Where the requester can't be the approver."""
    return Stage(tmp_path, separate=True)


# --- no means no ---


async def test_without_an_approver_nothing_is_approved_and_no_database_is_made(stage: Stage) -> None:
    verdict = await stage.gate().ask(case_of())
    assert (verdict.status, verdict.error) == (
        Status.DENIED,
        "a person has to approve this, and no approver is configured",
    )
    assert stage.kinds == ["approval.denied"]
    assert not stage.path.parent.exists()


async def test_without_an_approver_nothing_waits_either(stage: Stage) -> None:
    await stage.pending(case_of("pip install other"))
    verdict = await stage.gate(Deny()).ask(case_of(), wait=False)
    assert (verdict.status, verdict.id, stage.kinds[-1]) == (Status.DENIED, "", "approval.denied")


async def test_a_yes_lets_it_go_on_and_says_who_why_when_and_until_when(stage: Stage) -> None:
    case = case_of()
    verdict = await stage.gate(stage.approving).ask(case)
    assert verdict.status is None
    assert verdict.approval is not None
    assert (verdict.approval.approver, verdict.approval.reason, verdict.approval.at) == ("bob", "looked at it", START)
    assert verdict.approval.expires > START
    assert stage.kinds == ["approval.asked", "approval.given", "approval.used"]
    assert {run for _, run, _ in stage.audit} == {case.request.id}


async def test_a_no_is_told_with_who_and_why(stage: Stage) -> None:
    verdict = await stage.gate(Callback(stage.no)).ask(case_of())
    assert (verdict.status, verdict.error) == (Status.DENIED, "bob has denied it: not today")
    assert stage.kinds == ["approval.asked", "approval.denied"]


async def _raises(ask: Ask) -> Any:
    raise RuntimeError("out of order")


WRONG: dict[str, tuple[Any, str]] = {
    "true": (lambda ask: True, "answered a bool"),
    "yes": (lambda ask: "yes", "answered a str"),
    "a dictionary": (lambda ask: {"decision": "approved"}, "answered a dict"),
    "an exception": (lambda ask: 1 / 0, "ZeroDivisionError"),
    "an exception of an asynchronous one": (_raises, "out of order"),
    "an answer to another question": (
        lambda ask: Stage.yes(_at, msgspec.structs.replace(ask, digest="0" * 64)),
        "something that it was not asked",
    ),
    "an answer under another id": (
        lambda ask: Stage.yes(_at, msgspec.structs.replace(ask, id="0" * 32)),
        "something that it was not asked",
    ),
    "no name": (lambda ask: Stage.yes(_at, ask, approver=" "), "needs a name and a reason"),
    "no reason": (lambda ask: Stage.yes(_at, ask, reason=""), "needs a name and a reason"),
    "void at once": (lambda ask: Stage.yes(_at, ask, expires=START), "void at once"),
    "a time without a zone": (lambda ask: Stage.yes(_at, ask, expires=datetime(2090, 1, 1)), "`expires` is not a time"),
    "for ever": (lambda ask: Stage.yes(_at, ask, expires=datetime.max.replace(tzinfo=UTC)), "the year 9999"),
    "given before there were clocks": (lambda ask: Stage.yes(_at, ask, at=datetime.min.replace(tzinfo=UTC)), "year 1"),
    "a time that is a number": (lambda ask: Stage.yes(_at, ask, expires=4e9), "`expires` is not a time"),
    "a decision of its own": (lambda ask: ask.answer("yes", approver="b", reason="r", at=START), "neither `approved`"),
    "a reason that is none": (lambda ask: Stage.yes(_at, ask, reason=None), "its reason is not text"),
    "a name that is none": (
        lambda ask: msgspec.structs.replace(Stage.yes(_at, ask), approver=7),
        "its approver is not text",
    ),
    "a pin that is a word": (lambda ask: Stage.yes(_at, ask, pinned="no"), "`pinned`"),
}


class _At:
    now = START


_at: Any = _At()


@pytest.mark.parametrize("answer", WRONG)
async def test_an_approver_that_does_anything_but_approve_this_has_not_approved(stage: Stage, answer: str) -> None:
    function, said = WRONG[answer]
    verdict = await stage.gate(Callback(function)).ask(case_of())
    assert verdict.status is Status.DENIED
    assert said in verdict.error
    assert "approval.used" not in stage.kinds
    assert {"approval.denied", "approval.refused"} & set(stage.kinds)
    assert stage.ledger.entries("open", "approved") == []
    assert len(stage.ledger.entries(*STATES)) == 1  # and the ledger can still be read


async def test_nobody_who_answers_in_time_is_a_no(stage: Stage) -> None:
    verdict = await stage.gate(Queue(stage.ledger, wait=0.01)).ask(case_of())
    assert verdict.status is Status.EXPIRED
    assert "nobody has answered within 300 s" in verdict.error
    assert stage.kinds == ["approval.asked", "approval.expired"]
    with pytest.raises(ApprovalError, match="can't be answered any more"):
        stage.ledger.answer(stage.yes(stage.ledger.load(verdict.id).ask))
    assert stage.kinds[-1] == "approval.refused"


async def test_a_callback_that_takes_too_long_is_a_no(stage: Stage) -> None:
    async def never(ask: Ask) -> None:
        await asyncio.Event().wait()

    assert (await stage.gate(Callback(never, timeout=0.01)).ask(case_of())).status is Status.EXPIRED


async def test_a_run_that_is_cancelled_takes_its_question_back(stage: Stage) -> None:
    asked = asyncio.Event()

    async def slow(ask: Ask) -> None:
        asked.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(stage.gate(Callback(slow)).ask(case_of()))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stage.ledger.entries("open") == []
    assert stage.kinds[-1] == "approval.expired"


async def test_what_can_not_be_recorded_does_not_go_on(stage: Stage) -> None:
    def full(kind: str, run: str, data: object) -> None:
        if kind == "approval.used":
            raise AuditError("no room")

    stage.ledger.audit = full
    with pytest.raises(AuditError):
        await stage.gate(stage.approving).ask(case_of())
    assert [entry.uses for entry in stage.ledger.entries("approved")] == [0]


async def test_an_answer_that_can_not_be_recorded_is_none(stage: Stage) -> None:
    id = await stage.pending(case_of())  # noqa: A001

    def full(kind: str, run: str, data: object) -> None:
        raise AuditError("no room")

    stage.ledger.audit = full
    with pytest.raises(AuditError):
        stage.ledger.answer(stage.yes(stage.ledger.load(id).ask))
    assert stage.ledger.load(id).state == "open"


# --- a chain ---


async def test_of_a_chain_the_first_who_answers_decides(stage: Stage) -> None:
    silent = Callback(lambda ask: None)
    assert (await stage.gate(Chain(silent, stage.approving)).ask(case_of())).status is None
    assert (await stage.gate(Chain(Callback(stage.no), stage.approving)).ask(case_of())).status is Status.DENIED


async def test_of_a_chain_one_who_is_absent_leaves_it_to_the_next(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redoma.approval.console.TERMINAL", "/nowhere")
    assert (await stage.gate(Chain(Console("bob", stage.ledger), stage.approving)).ask(case_of())).status is None
    verdict = await stage.gate(Chain(Console("bob", stage.ledger), Deny())).ask(case_of())
    assert (verdict.status, "no approver is configured" in verdict.error) == (Status.DENIED, True)


async def test_a_verdict_says_whether_a_person_or_nobody_refused(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redoma.approval.console.TERMINAL", "/nowhere")
    for absent in (Deny(), Chain(Console("bob", stage.ledger), Deny()), Console("bob", stage.ledger)):
        assert (await stage.gate(absent).ask(case_of())).nobody

    def fail(ask: Ask) -> Approval:
        raise OSError

    for approver in (Callback(stage.no), Callback(lambda ask: None), Callback(fail)):
        verdict = await stage.gate(approver).ask(case_of())
        assert verdict.status is not None
        assert not verdict.nobody


def test_a_chain_of_nobody_can_not_be_made() -> None:
    with pytest.raises(ApprovalError, match="empty"):
        Chain()


# --- of exactly this ---

ALTERED: dict[str, dict[str, Any]] = {
    "code": {"code": RISKY + " "},
    "language": {"language": "python", "code": "import requests"},
    "limits": {"limits": Limits(time=31)},
    "a variable": {"env": {"PATH": "/tmp"}},
    "a secret's value": {"secrets": {"TOKEN": "changed-value"}},
    "a secret's name": {"secrets": {"OTHER": "first-value"}},
    "a secret more": {"secrets": {"TOKEN": "first-value", "OTHER": "first-value"}},
    "no secret": {"secrets": {}},
    "a file's content": {"files": {"a.txt": b"2"}},
    "a file's name": {"files": {"b.txt": b"1"}},
    "the input": {"stdin": b"y"},
    "outputs": {"outputs": ("**",)},
    "the backend": {"backend": "native"},
    "what is required": {"require": ("network",)},
    "the requester": {"requester": "eve"},
    "the label": {"label": "nightly"},
    "the workspace": {"workspace": "overlay", "project": "/srv/app", "files": {}},
    "the policy": {"policy": "strict"},
}
BASE: dict[str, Any] = {"secrets": {"TOKEN": "first-value"}, "files": {"a.txt": b"1"}}


@pytest.mark.parametrize("what", ALTERED)
async def test_whatever_is_altered_is_asked_about_again(stage: Stage, what: str) -> None:
    await stage.approved(case_of(**BASE))
    altered = case_of(**{**BASE, **ALTERED[what]})
    assert (await stage.gate(Deny()).ask(altered)).status is Status.DENIED
    assert "approval.used" not in stage.kinds
    assert (await stage.gate(Deny()).ask(case_of(**BASE))).status is None


@pytest.mark.parametrize("what", ALTERED)
async def test_whatever_is_altered_can_not_be_resumed_in_its_place(stage: Stage, what: str) -> None:
    id = await stage.approved(case_of(**BASE))  # noqa: A001
    verdict = await stage.gate(Deny()).redeem(id, case_of(**{**BASE, **ALTERED[what]}))
    assert (verdict.status, stage.kinds[-1]) == (Status.DENIED, "approval.refused")
    assert "not what was asked about" in verdict.error


@pytest.mark.parametrize(
    "altered",
    [
        {"effect": effect_of("2" * 64)},
        {"effect": effect_of(project="/srv/other")},
        {"effect": effect_of(changes=())},
        {"effect": None},
        {"configuration_digest": configuration_digest("another image")},
        {"entry": "app:shell"},
        {"view": PolicyView(env=())},
        {"policy": "standard"},
    ],
    ids=str,
)
async def test_an_altered_effect_or_setting_is_asked_about_again(stage: Stage, altered: dict[str, Any]) -> None:
    case = case_of(effect=effect_of())
    id = await stage.approved(case)  # noqa: A001
    assert (await stage.gate(Deny()).ask(altered_case(case, **altered))).status is Status.DENIED
    assert (await stage.gate(Deny()).redeem(id, altered_case(case, **altered))).status is Status.DENIED
    assert (await stage.gate(Deny()).redeem(id, case)).status is None


async def test_an_altered_finding_is_asked_about_again(stage: Stage) -> None:
    case = case_of()
    id = await stage.approved(case)  # noqa: A001
    milder = [msgspec.structs.replace(finding, decision=Decision.ALLOW) for finding in case.evaluation.findings]
    evaluation = msgspec.structs.replace(case.evaluation, findings=tuple(milder))
    assert (await stage.gate(Deny()).redeem(id, altered_case(case, evaluation=evaluation))).status is Status.DENIED


def test_a_digest_binds_every_field_of_a_request_but_its_id_and_its_reason() -> None:
    free = {"id", "reason"}
    changed: dict[str, Any] = {
        **{"argv": ("x",), "cwd": "/tmp", "project": "/q", "workspace": "direct", "id": "x", "reason": "x"},
        **{"files": {"a": b""}, "outputs": ("**",), "secrets": {"TOKEN": "first-value"}, "env": {"A": "1"}},
        **{"code": "x", "language": "python", "limits": Limits(time=31), "stdin": b"y", "backend": "native"},
        **{"require": ("network",), "requester": "eve", "label": "nightly", "checkpoint": False},
        **{"seed": Seed(random=1, hashes=1), "network": host_rules(["GET x.org"])},
        **{"held": {"TOKEN": SecretUse(hosts=("x.org",), body=True)}, "interpreter": ("perl", "-")},
        **{"uses": EnvironmentUse(packages=("six",))},
    }
    assert set(changed) == set(Request.__struct_fields__)
    for name, value in changed.items():
        before: dict[str, Any] = {"language": "lua", "id": "1"}
        if name in ("project", "workspace"):
            before |= {"workspace": "overlay", "project": "/p"}
        if name == "held":
            use = SecretUse(hosts=("x.org",))
            before |= {"network": host_rules(["x.org"]), "secrets": {"TOKEN": "first-value"}, "held": {"TOKEN": use}}
        digests = {
            digest_of(Judged(submission=Submission(Request(**fields)), evaluation=case_of().evaluation), b"key")
            for fields in (before, {**before, name: value})
        }
        assert len(digests) == (1 if name in free else 2), name


def test_a_digest_is_the_same_after_the_request_was_kept() -> None:
    """Numbers that are equal, and names that are no UTF-8, come back as they were."""
    case = case_of(
        limits=Limits(time=30, cpu=120), label="caf\udce9", files={"a\udcff": b"\x00\xff"}, env={"A": "\u202e"}
    )
    ask = ask_of(case, b"key", id="1", created=START, expires=START)
    again = decode(encode(ask))
    assert again == ask
    case = altered_case(case, request=again.request, evaluation=again.evaluation)
    assert digest_of(case, b"key") == (ask.content, ask.digest)


# --- once, and in time ---


async def test_an_approval_is_good_for_one_run(stage: Stage) -> None:
    case = case_of()
    id = await stage.approved(case)  # noqa: A001
    gate = stage.gate(Deny())
    assert (await gate.redeem(id, case)).status is None
    replayed = await gate.redeem(id, case)
    assert (replayed.status, stage.kinds[-1]) == (Status.DENIED, "approval.refused")
    assert "has been used" in replayed.error
    assert (await gate.ask(case)).status is Status.DENIED
    assert stage.kinds.count("approval.used") == 1


async def test_an_approval_that_nobody_waited_for_serves_the_next_who_asks_for_the_same(stage: Stage) -> None:
    await stage.approved(case_of())
    assert (await stage.gate(Deny()).ask(case_of(reason="other words"))).status is None
    assert (await stage.gate(Deny()).ask(case_of())).status is Status.DENIED


async def test_an_approval_that_was_not_used_in_time_is_void(stage: Stage) -> None:
    case = case_of()
    id = await stage.approved(case)  # noqa: A001
    stage.later(hours=1)
    verdict = await stage.gate(Deny()).redeem(id, case)
    assert (verdict.status, verdict.error) == (
        Status.EXPIRED,
        "a person has approved this, but the approval has expired",
    )
    assert stage.kinds[-1] == "approval.refused"
    assert (await stage.gate(Deny()).ask(case)).status is Status.DENIED


async def test_a_question_that_is_past_its_time_can_not_be_answered(stage: Stage) -> None:
    case = case_of()
    id = await stage.pending(case)  # noqa: A001
    stage.later(hours=1)
    with pytest.raises(ApprovalError, match="it is expired"):
        stage.ledger.answer(stage.yes(stage.ledger.load(id).ask))
    assert (await stage.gate(Deny()).redeem(id, case)).status is Status.EXPIRED


async def test_the_first_answer_counts(stage: Stage) -> None:
    id = await stage.pending(case_of())  # noqa: A001
    ask = stage.ledger.load(id).ask
    stage.ledger.answer(stage.no(ask))
    with pytest.raises(ApprovalError, match="it is denied, by bob"):
        stage.ledger.answer(stage.yes(ask, "mallory"))
    assert stage.kinds[-1] == "approval.refused"
    assert (await stage.gate(Deny()).redeem(id, case_of())).status is Status.DENIED


@pytest.mark.parametrize("id", ["0" * 32, "", "x", "'; DROP TABLE asks; --", "\x1b[2J", "%", "0" * 10_000])
async def test_a_forged_id_is_refused_and_on_record(stage: Stage, id: str) -> None:  # noqa: A002
    case = case_of()
    await stage.approved(case)
    gate = stage.gate(stage.approving)
    with pytest.raises(ApprovalError, match="nothing was asked under the id"):
        gate.recall(id, {})
    assert (await gate.redeem(id, case)).status is Status.DENIED
    assert stage.kinds[-2:] == ["approval.refused", "approval.refused"]
    assert len(stage.audit[-1][2]["approval"]) <= 80


async def test_a_forged_id_is_refused_where_nothing_was_ever_asked(stage: Stage) -> None:
    assert (await stage.gate().redeem("0" * 32, case_of())).status is Status.DENIED
    assert stage.kinds == ["approval.refused"]
    assert not stage.path.exists()


async def test_ids_can_not_be_guessed(stage: Stage) -> None:
    ids = {await stage.pending(case_of(f"pip install a{number}")) for number in range(5)}
    assert (len(ids), {len(each) for each in ids}) == (5, {32})


# --- by somebody else ---

SAME = ["ana", "Ana", " ana ", "ana\u200b", "\uff41na", "a\u00adna"]


@pytest.mark.parametrize("name", SAME)
async def test_nobody_approves_their_own_request_where_they_have_to_be_two(apart: Stage, name: str) -> None:
    verdict = await apart.gate(Callback(lambda ask: apart.yes(ask, name))).ask(case_of())
    assert verdict.status is Status.DENIED
    assert "ana has asked for it" in verdict.error
    assert apart.kinds == ["approval.asked", "approval.refused", "approval.expired"]
    id = await apart.pending(case_of())  # noqa: A001
    with pytest.raises(ApprovalError, match="have another person decide"):
        apart.ledger.answer(apart.yes(apart.ledger.load(id).ask, name))
    assert apart.ledger.load(id).state == "open"
    assert (await apart.gate(apart.approving).ask(case_of())).status is None


async def test_who_is_not_known_to_have_asked_can_not_be_told_from_who_approves(apart: Stage) -> None:
    assert (await apart.gate(apart.approving).ask(case_of(requester=""))).status is Status.DENIED


async def test_the_requester_may_always_say_no(apart: Stage) -> None:
    verdict = await apart.gate(Callback(lambda ask: apart.no(ask, "ana"))).ask(case_of())
    assert verdict.error == "ana has denied it: not today"


async def test_an_own_approval_from_before_they_had_to_be_two_is_not_used(stage: Stage, tmp_path: Path) -> None:
    case = case_of()
    id = await stage.approved(case, approver="ana")  # noqa: A001
    apart = Stage(tmp_path, separate=True)
    assert (await apart.gate().ask(case)).status is Status.DENIED
    assert (await apart.gate().redeem(id, case)).status is Status.DENIED
    assert "approval.used" not in apart.kinds


def test_people_are_told_apart_by_what_a_reader_sees() -> None:
    assert all(is_same_person("ana", name) for name in SAME)
    assert not is_same_person("ana", "anna")


# --- later ---


async def test_what_waits_is_found_again_after_a_restart(stage: Stage, tmp_path: Path) -> None:
    case = case_of(stdin=b"\x00", files={"a\udcff": b"\xff"}, argv=(), reason="nightly")
    id = await stage.pending(case)  # noqa: A001
    stage = Stage(tmp_path)
    gate = stage.gate()
    ask = gate.recall(id, {})
    assert ask.request == case.request
    assert (await gate.redeem(id, altered_case(case, request=ask.request))).status is Status.PENDING
    stage.ledger.answer(stage.yes(ask))
    assert (await gate.redeem(id, altered_case(case, request=ask.request))).status is None


async def test_who_asks_the_same_twice_without_waiting_is_told_the_same_id(stage: Stage) -> None:
    assert await stage.pending(case_of()) == await stage.pending(case_of())
    assert stage.kinds == ["approval.asked"]


async def test_secrets_are_not_kept_and_have_to_be_given_again(stage: Stage) -> None:
    case = case_of(secrets={"TOKEN": "s3cr3t-value"})
    id = await stage.approved(case)  # noqa: A001
    kept = b"".join(file.read_bytes() for file in stage.path.parent.iterdir())
    assert b"s3cr3t-value" not in kept
    assert "s3cr3t-value" not in str(stage.audit)
    gate = stage.gate()
    for wrong in ({}, {"OTHER": "s3cr3t-value"}, {"TOKEN": "s3cr3t-value", "OTHER": "value"}):
        with pytest.raises(ApprovalError, match="its secrets are TOKEN"):
            gate.recall(id, wrong)
        assert stage.kinds[-1] == "approval.refused"
    request = gate.recall(id, {"TOKEN": "another-value"}).request
    assert (await gate.redeem(id, altered_case(case, request=request))).status is Status.DENIED
    request = gate.recall(id, {"TOKEN": "s3cr3t-value"}).request
    assert (await gate.redeem(id, altered_case(case, request=request))).status is None


HOLDING: dict[str, dict[str, Any]] = {
    "code": {"code": "pip install s3cr3t-value"},
    "a variable": {"env": {"A": "-s3cr3t-value-"}},
    "a file": {"files": {"a": b"\xffs3cr3t-value"}},
    "the input": {"stdin": b"s3cr3t-value"},
    "the reason": {"reason": "for s3cr3t-value"},
    "a name": {"files": {"s3cr3t-value": b""}},
    "a word": {"code": "", "argv": ("sudo", "s3cr3t-value"), "language": "command"},
    "the label": {"label": "s3cr3t-value"},
    "the directory": {"cwd": "/srv/s3cr3t-value"},
    "what it brings back": {"outputs": ("s3cr3t-value",)},
}


@pytest.mark.parametrize("where", HOLDING)
async def test_a_request_with_a_secret_in_plain_sight_is_put_to_nobody(stage: Stage, where: str) -> None:
    case = case_of(**{"secrets": {"TOKEN": "s3cr3t-value"}, **HOLDING[where]})
    for wait in (True, False):
        verdict = await stage.gate(stage.approving).ask(case, wait=wait)
        assert (verdict.status, stage.kinds[-1]) == (Status.DENIED, "approval.refused")
        assert "the value of its secret TOKEN" in verdict.error
    kept = b"".join(file.read_bytes() for file in stage.path.parent.iterdir())
    assert b"s3cr3t-value" not in kept
    assert "s3cr3t-value" not in str(stage.audit)


@pytest.mark.parametrize("value", ["auto", "bash", "standard", "scratch", "prompt"])
async def test_a_secret_that_is_a_word_of_ours_is_not_taken_for_one_in_plain_sight(stage: Stage, value: str) -> None:
    await stage.pending(case_of(secrets={"TOKEN": value}))


async def test_a_secret_that_a_run_has_written_is_taken_out_of_the_diff_that_is_kept(stage: Stage) -> None:
    effect = effect_of()
    change = msgspec.structs.replace(effect.changes[0], diff="+TOKEN=s3cr3t-value\n")
    case = case_of(secrets={"TOKEN": "s3cr3t-value"}, effect=msgspec.structs.replace(effect, changes=(change,)))
    kept = stage.ledger.load(await stage.pending(case)).ask.effect
    assert kept is not None
    assert kept.changes[0].diff == "+TOKEN=[secret TOKEN]\n"
    assert kept.digest == effect.digest
