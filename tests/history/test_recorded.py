"""A request can be rebuilt from its record: exactly, or saying what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from redoma import AsyncExecutor, Config, FakeBackend
from redoma.approval import Approver, Ask
from redoma.audit import AuditLog
from redoma.audit.inputs import Inputs
from redoma.config import AuditConfig, NativeEntry
from redoma.history.recorded import RecordedRun, recorded
from redoma.history.search import runs
from redoma.history.stats import overview
from redoma.lib.errors import AuditError
from redoma.models import Approval, Decision, Limits, PolicyView, Request, Submission
from redoma.policy import Policy, evaluate


@pytest.fixture
def kept(tmp_path: Path) -> Config:
    state = tmp_path / "state"
    return Config(audit=AuditConfig(directory=state / "audit"), state=state)


async def one(config: Config, code: Any, *, approver: Approver | None = None, **options: Any) -> tuple[Request, Any]:
    """The request as it ran, and as it was rebuilt."""
    backend = FakeBackend(name="jail")
    async with AsyncExecutor(config, backends=[backend], approver=approver) as executor:
        if isinstance(code, str):
            await executor.run(code, **options)
        else:
            await executor.command(code, **options)
    (again,) = recorded(AuditLog(config.audit.directory).records(), inputs_of(config))
    return (backend.requests or [Request()])[-1], again


def inputs_of(config: Config) -> Inputs:
    return Inputs(config.state / "inputs" if config.state else None)


@pytest.mark.parametrize(
    ("code", "options"),
    [
        ("print(1)", {}),
        ("print('ção \U0001f600')", {"reason": "because", "requester": "ana", "label": "nightly"}),
        ("echo $A", {"language": "bash", "env": {"A": "1", "B": ""}}),
        (["printf", "%s", "it's", "", "a b"], {}),
        (["cat"], {"stdin": b"\0\xff\nbytes"}),
        ("open('a').read()", {"files": {"a": b"1", "b/c": b"", "d": b"\xff"}, "outputs": ["*.csv"]}),
        ("1", {"limits": Limits(time=1.5, memory=1 << 26), "policy": "none"}),
    ],
)
async def test_a_request_is_rebuilt_exactly(kept: Config, code: Any, options: dict[str, Any]) -> None:
    request, again = await one(kept, code, **options)
    assert again.request == request
    assert again.missing == {}
    assert again.submission.policy == options.get("policy")
    assert again.status == "ok"


async def test_a_project_and_where_it_is_expected_to_write_are_rebuilt(kept: Config, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    _, again = await one(kept, ["make"], workspace="read-only", project=tmp_path / "project", writes=["build/*"])
    assert (again.request.workspace, again.request.project) == ("read-only", str(tmp_path / "project"))
    assert again.submission.writes == ("build/*",)


SECRET = "s3cr3t-Value-0123"


async def test_what_holds_a_secret_is_kept_nowhere_and_said_to_be_missing(kept: Config, tmp_path: Path) -> None:
    _, again = await one(
        kept,
        f"print('{SECRET}')",
        stdin=f"in {SECRET}",
        files={"plain": b"data", "not": SECRET.encode(), "wide": f"a {SECRET}".encode("utf-16")},
        env={"A": SECRET, "B": "b"},
        secrets={"TOKEN": SECRET},
    )
    about = set(again.missing)
    assert about == {"code", "stdin", "file not", "file wide", "variable A", "secrets"}
    assert again.request.files == {"plain": b"data", "not": b"", "wide": b""}
    assert again.request.env == {"B": "b"}
    assert list(again.request.secrets) == ["TOKEN"]
    for path in (tmp_path / "state").rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes().replace(b"\0", b""), path


async def test_the_policy_that_judged_it_is_rebuilt_to_the_digest(kept: Config) -> None:
    _, again = await one(kept, "import os; os.system('rm -rf /')", policy="strict")
    encoded = inputs_of(kept).get(again.intent.policy_digest)
    assert encoded is not None
    policy = Policy.decode(encoded)
    assert policy.digest == again.intent.policy_digest
    evaluation = evaluate(policy, again.judged)
    assert evaluation.decision is again.intent.decision is Decision.FORBID
    assert tuple(finding.rule for finding in evaluation.findings) == again.intent.rules


async def test_of_a_configured_executor_what_was_judged_and_what_objected_are_rebuilt(kept: Config) -> None:
    entry = NativeEntry(name="shell", default_env={"OURS": "1"}, command_whitelist=("echo hi",), limits={"time": 50})
    config = msgspec.structs.replace(kept, entries={"app:shell": entry})
    backend = FakeBackend(name="native")
    async with AsyncExecutor(config, backends=[backend]) as executor:
        await executor.command(["echo", "hi"], entry="app:shell", env={"LANG": "C"})
        await executor.command(["rm", "x"], entry="app:shell")
        asked = executor.prepare(["echo", "hi"], "app:shell", {"env": {"LANG": "C"}})
    allowed, refused = recorded(AuditLog(config.audit.directory).records(), inputs_of(config))
    assert allowed.request == backend.requests[0]
    assert allowed.request.env == {"OURS": "1", "LANG": "C"}
    assert allowed.judged == msgspec.structs.replace(asked.judged, id=allowed.id)
    assert (allowed.submission.entry, allowed.submission.objections) == ("app:shell", ())
    assert [finding.rule for finding in refused.submission.objections] == ["entry.whitelist"]
    assert (refused.status, refused.intent.decision) == ("forbidden", Decision.FORBID)


async def test_what_policy_did_not_look_at_and_what_was_not_to_be_kept_are_known(kept: Config) -> None:
    """As of a rule of the monitor: policy reads the rule, not what is around it nor the facts that it is given."""
    request = Request(code="import json\nuptime > 3", stdin=b"{}")
    judged = msgspec.structs.replace(request, code="uptime > 3", stdin=b"")
    async with AsyncExecutor(kept, backends=[FakeBackend()]) as executor:
        await executor.submit(Submission(request, view=PolicyView.of(request, judged), keep_inputs=False))
    (again,) = recorded(AuditLog(kept.audit.directory).records(), inputs_of(kept))
    assert again.judged == judged
    assert again.request == msgspec.structs.replace(request, stdin=b"")
    assert again.missing == {"stdin": "it was not to be kept"}


async def test_inputs_are_kept_only_where_the_configuration_lets_them(kept: Config) -> None:
    config = msgspec.structs.replace(kept, audit=msgspec.structs.replace(kept.audit, inputs=False))
    _, again = await one(config, "print(1)", stdin="personal", files={"a": "personal"})
    assert again.missing == {"stdin": "it was not to be kept", "file a": "it was not to be kept"}
    assert config.state is not None
    kept_files = [file for file in (config.state / "inputs").iterdir() if b"personal" in file.read_bytes()]
    assert kept_files == []


async def test_who_approved_it_is_on_record(kept: Config) -> None:
    class Yes:
        async def decide(self, ask: Ask) -> Approval:
            return ask.answer("approved", approver="ana", reason="fine", at=ask.created)

    _, again = await one(kept, "git push origin main", language="bash", approver=Yes())
    assert (again.approver, again.intent.decision) == ("ana", Decision.PROMPT)


async def test_a_run_without_input_writes_no_file_after_the_first(kept: Config) -> None:
    async with AsyncExecutor(kept, backends=[FakeBackend(name="jail")]) as executor:
        await executor.run("1")
        before = {path: path.stat().st_ino for path in inputs_directory(kept).iterdir()}
        for number in range(5):
            await executor.run(f"{number}")
    assert {path: path.stat().st_ino for path in inputs_directory(kept).iterdir()} == before


def inputs_directory(config: Config) -> Path:
    assert config.state is not None
    return config.state / "inputs"


async def test_without_a_state_directory_it_is_said_that_nothing_was_kept(config: Config) -> None:
    _, again = await one(config, ["cat"], stdin=b"abc")
    assert list(again.missing) == ["policy", "stdin"]
    assert all("no state directory" in why for why in again.missing.values())


async def test_an_input_that_cannot_be_kept_costs_the_run_nothing(kept: Config) -> None:
    inputs_directory(kept).parent.mkdir(parents=True)
    inputs_directory(kept).write_text("in the way")
    _, again = await one(kept, ["cat"], stdin=b"abc")
    assert again.status == "ok"
    assert again.missing["stdin"].startswith("it could not be kept")


async def test_a_run_that_never_ended_comes_last(kept: Config) -> None:
    await one(kept, "1")
    first, end = AuditLog(kept.audit.directory).records()
    cut = msgspec.structs.replace(first, id="cut")
    found: list[RecordedRun] = list(recorded([cut, first, end]))
    assert [(run.id == "cut", run.outcome is None) for run in found] == [(False, False), (True, True)]


WRONG: list[tuple[str, dict[str, Any]]] = [
    *[("intent", {name: [7]}) for name in ("code", "requester", "policy_digest", "pack", "entry", "env", "backend")],
    *[("intent", {name: "x"}) for name in ("findings", "missing", "view", "approval", "limits", "objections")],
    ("intent", {"findings": [7], "limits": {"time": [1]}}),
    ("intent", {"files": {"a": 1}, "inputs": {"files": 7}}),
    ("intent", {"workspace": "nowhere", "project": 7}),
    *[("outcome", {name: "x"}) for name in ("seed", "stdout", "effect", "artifacts", "files")],
    ("outcome", {"seed": {"random": "x", "hashes": 1}}),
    ("outcome", {"status": [1], "denial": "x", "duration": "long", "effect": 7}),
    ("outcome", {"effect": {"digest": "", "changes": 1, "paths": [[1]]}}),
]


@pytest.mark.parametrize(("kind", "wrong"), WRONG)
async def test_a_record_that_nobody_could_have_written_harms_itself_alone(
    kept: Config, kind: str, wrong: dict[str, Any]
) -> None:
    await one(kept, "1")
    intent, outcome = AuditLog(kept.audit.directory).records()
    which = {"intent": intent, "outcome": outcome}[kind]
    odd = msgspec.structs.replace(which, data={**which.data, **wrong})
    records = [odd if which is intent else intent, odd if which is outcome else outcome]
    with pytest.raises(AuditError, match="is not understood"):
        list(recorded(records, inputs_of(kept)))
    assert [run.id for run in runs(records)] == [intent.id]
    assert overview(records).runs == 1
