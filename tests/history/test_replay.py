"""Recorded runs, run again: what is deterministic comes out the same, all else is explained, and nothing is touched."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from redoma import AsyncExecutor, Config, FakeBackend
from redoma.approval import Ask
from redoma.audit import AuditLog, Record
from redoma.audit.inputs import Inputs
from redoma.config import AuditConfig, PolicyConfig
from redoma.history.recorded import RecordedRun, is_kept, pairs, recorded
from redoma.history.replay import Replayer, ReplayResult
from redoma.history.stats import overview
from redoma.lib.errors import AuditError
from redoma.models import Approval, Decision, Request, Submission
from redoma.policy import Rule

SECRET = "s3cr3t-Value-0123"


class Said:
    """An approver who says yes to everything, and is counted."""

    def __init__(self) -> None:
        self.asked = 0

    async def decide(self, ask: Ask) -> Approval:
        self.asked += 1
        return ask.answer("approved", approver="ana", reason="fine", at=ask.created)


class Case(NamedTuple):
    code: Any
    """Text, or the words of a command."""
    options: dict[str, Any]
    because: str = ""
    """A part of what explains the difference; nothing for what has to come out the same."""


def python(code: str, because: str = "", **options: Any) -> Case:
    return Case(code, options, because)


def bash(code: str, because: str = "", **options: Any) -> Case:
    return Case(code, {"language": "bash", **options}, because)


def command(*words: str, because: str = "", **options: Any) -> Case:
    return Case(words, options, because)


DETERMINISTIC = [
    python("print('hello')"),
    python("6 * 7"),
    python("{'a': [1, 2.5, None], 'b': (1, {2, 3})}"),
    python("import random; print(random.random(), random.choice('abcdef'), random.sample(range(99), 5))"),
    python("print({'one', 'two', 'three', 'four', 'five', 'six'}, hash('text'))"),
    python("{'one', 'two', 'three', 'four', 'five', 'six'}"),
    python("import sys; print('out'); print('err', file=sys.stderr)"),
    python("1 / 0"),
    python("def f(): raise ValueError('no')\nf()"),
    python("import sys; sys.exit(3)"),
    python("this is no Python"),
    python("import sys; print(sys.stdin.read()[::-1])", stdin="forwards"),
    python("import sys; print(sum(sys.stdin.buffer.read()))", stdin=bytes(range(256))),
    python("print(open('a/b.txt').read(), open('c').read())", files={"a/b.txt": "one", "c": b"two"}),
    python("open('made.csv', 'w').write('1,2')", outputs=["*.csv"]),
    python("import os; print(os.environ['A'], sorted(os.environ))", env={"A": "b"}),
    python("import os; print(os.environ['TOKEN'])", secrets={"TOKEN": SECRET}),
    python("while True: pass", limits={"time": 0.3}),
    python("for n in range(3000): print(n)", limits={"output_lines": 100}),
    python("import os; os._exit(9)"),
    python("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", policy="none"),
    python("print([1, 2])", expect="json"),
    python("print('rows: 3')", expect="regex:rows: [0-9]+"),
    python("print('no')", expect="regex:[0-9]+"),
    python("import socket; socket.create_connection(('192.0.2.1', 80), 1)", policy="none"),
    python("import os; os.system('rm -rf /')", policy="strict"),  # forbidden
    python("print('ação \\U0001f600')"),
    bash("echo hello; echo err >&2; exit 4"),
    bash("for i in 1 2 3; do echo $((i * i)); done | sort -r"),
    bash("cat; ls", stdin="in", files={"f": "x"}),
    bash("echo $A", env={"A": "it's"}),
    bash("rm -rf /"),
    command("printf", "%s-%s", "it's", "a b"),
    command("sort", "-n", stdin="3\n1\n2\n"),
    command("false"),
    command("no-such-program-at-all"),
    command("echo", "on the host", backend="native"),
    python("sum(range(10))", backend="monty"),
    python("[x * x for x in range(4)]", backend="monty"),
    python("1 / 0", backend="monty"),
    python("import random; print(random.random(), random.Random().random(), hash('a'))", backend="monty"),
]

AT_A_LIMIT = [
    python("print('begun', flush=True)\nwhile True: pass", limits={"time": 0.3}),
    python("x = bytearray(1 << 30)", limits={"memory": 100 << 20}),
    python("print('x' * 5000)\n" * 4, limits={"output_total": 10_000, "output_bytes": 4096}),
]
"""How far they get before they are ended is the machine's affair: the same, or explained by that."""

OTHERS = [
    python("import time; print(time.time_ns())", "it reads the clock"),
    python("import datetime; print(datetime.datetime.now())", "run twice, it differs from itself in stdout"),
    python("import uuid; uuid.uuid4().hex", "it draws random numbers that no seed repeats"),
    python("import os; print(os.urandom(8))", "it draws random numbers"),
    python("print(id(object()))", "addresses"),
    python(f"print(len('{SECRET}'))", "missing: code", secrets={"TOKEN": SECRET}),
    python("import sys; print(len(sys.stdin.read()))", "missing: stdin", stdin=SECRET, secrets={"T": SECRET}),
    python("import os; print(len(os.environ['T']))", "were not kept", secrets={"T": SECRET}),
    bash("echo $RANDOM", "it draws random numbers"),
    bash("date +%N", "it reads the clock"),
    command("pwd", because="it ran on native", backend="native"),
]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    state = tmp_path / "state"
    return Config(audit=AuditConfig(directory=state / "audit"), state=state)


async def run_all(config: Config, cases: list[Case], *, pretended: bool = False) -> list[RecordedRun]:
    """Each as it is on record, in order; `pretended`, where it matters only that there is a record."""
    backends = [FakeBackend(name="jail")] if pretended else None
    async with AsyncExecutor(config, approver=Said(), backends=backends) as executor:
        ids = []
        for code, options, _ in cases:
            run = executor.run if isinstance(code, str) else executor.command
            ids.append((await run(code, **options)).id)
    found = {run.id: run for run in recorded(log(config), Inputs.within(config.state))}
    return [found[each] for each in ids]


def log(config: Config) -> list[Record]:
    return list(AuditLog(config.audit.directory).records())


async def replay_all(config: Config, runs: list[RecordedRun]) -> list[ReplayResult]:
    async with Replayer(config, Inputs.within(config.state)) as replayer:
        return [await replayer.replay(run) for run in runs]


async def test_deterministic_runs_come_out_the_same_and_the_others_are_explained(config: Config) -> None:
    cases = DETERMINISTIC + OTHERS + AT_A_LIMIT
    assert len(cases) >= 50
    runs = await run_all(config, cases)
    replayed = await replay_all(config, runs)
    for case, each in zip(cases, replayed, strict=True):
        if case in AT_A_LIMIT and each.verdict == "different":
            assert "ended at a limit" in "\n".join(each.reasons), each
        else:
            assert (each.verdict == "identical") == (not case.because), each
            assert case.because in "\n".join(each.reasons), each
    assert {run.status for run in runs} >= {"ok", "error", "timeout", "memory", "output", "killed", "forbidden"}


async def test_a_replay_is_on_record_beside_what_it_repeats_and_is_no_run_of_its_own(config: Config) -> None:
    (run,) = await run_all(config, [python("print(1)")], pretended=True)
    (done,) = await replay_all(config, [run])
    kinds = [(record.kind, record.id, record.data.get("replay")) for record in log(config)]
    assert kinds[2:] == [("replay", run.id, done.replay), ("replay.outcome", run.id, done.replay)]
    assert overview(AuditLog(config.audit.directory).records()).runs == 1
    assert AuditLog(config.audit.directory).verify().ok


def everything(directory: Path) -> dict[str, Any]:
    """Every path with its content and all that a program could see of it but when it was read."""
    found: dict[str, Any] = {}
    for path in (directory, *sorted(directory.rglob("*"))):
        about = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path)] = content, about.st_mode, about.st_mtime_ns, about.st_ctime_ns, about.st_ino
    return found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    (project / "sub").mkdir(parents=True)
    (project / "old.txt").write_text("old\n")
    (project / "gone.txt").write_text("soon\n")
    (project / "sub" / "tool").write_text("#!/bin/sh\n")
    os.utime(project / "old.txt", (1_000_000_000, 1_000_000_000))
    return project


CHANGES = "echo new >> old.txt; rm gone.txt; mkdir made; echo x > made/y; chmod +x sub/tool; cat old.txt"


async def test_what_changed_files_is_replayed_and_leaves_them_untouched(config: Config, project: Path) -> None:
    runs = await run_all(config, [bash(CHANGES, workspace="overlay", project=project)])
    before, kept = everything(project), sorted(os.listdir(tmp := config.audit.directory.parent / "changes"))
    (done,) = await replay_all(config, runs)
    assert done.verdict == "identical", done
    assert {field.name: field.after for field in done.fields}["changes"] == "5 changed"
    assert everything(project) == before
    assert sorted(os.listdir(tmp)) == kept  # and nothing more can be applied than before


async def test_what_ran_in_the_project_itself_is_replayed_in_an_overlay_of_it(config: Config, project: Path) -> None:
    runs = await run_all(config, [bash(CHANGES, workspace="direct", project=project, backend="native")])
    assert (project / "made" / "y").exists()
    before = everything(project)
    (done,) = await replay_all(config, runs)
    assert everything(project) == before
    assert done.verdict == "different"
    assert "changes" in done.differing
    assert any("the project has changed since: old.txt" in reason for reason in done.reasons)
    assert any("an overlay of it" in note for note in done.notes)


async def test_what_had_a_checkpoint_is_replayed_without_one(config: Config, project: Path) -> None:
    case = command("sh", "-c", "echo x > old.txt; exit 3", backend="native", cwd=str(project), checkpoint=True)
    runs = await run_all(config, [case])
    assert runs[0].request.checkpoint is True
    before = everything(project)
    (done,) = await replay_all(config, runs)
    assert {field.name: field.after for field in done.fields}["exit_code"] == "3", done
    assert everything(project) == before


async def test_what_was_not_to_be_kept_is_not_replayed_and_is_none_of_the_last(
    config: Config,
) -> None:
    forgetful = msgspec.structs.replace(config, audit=msgspec.structs.replace(config.audit, inputs=False))
    await run_all(config, [python("1")], pretended=True)
    (run,) = await run_all(forgetful, [python("print(1)", stdin="x")], pretended=True)
    (done,) = await replay_all(config, [run])
    assert (done.verdict, "not to be kept" in done.why) == ("impossible", True)
    assert [intent.data["code"] for intent, _ in pairs(log(config)) if is_kept(intent)] == ["1"]


async def test_a_project_that_was_only_read_is_only_read_again(config: Config, project: Path) -> None:
    case = bash("cat old.txt; touch x", workspace="read-only", project=project)
    (done,) = await replay_all(config, await run_all(config, [case]))
    assert done.verdict == "identical"
    assert {field.name: field.before for field in done.fields}["exit_code"] == "1"


async def test_nobody_is_asked_and_no_approval_is_used(config: Config) -> None:
    said = Said()
    async with AsyncExecutor(config, approver=said) as executor:
        await executor.run("git push origin main", "bash", limits={"time": 61})
    assert said.asked == 1
    (run,) = recorded(log(config), Inputs.within(config.state))
    assert run.approver == "ana"
    before = len(log(config))
    (done,) = await replay_all(config, [run])
    assert done.verdict == "identical"
    assert any("nobody is asked" in note for note in done.notes)
    assert [record.kind for record in log(config)[before:]] == ["replay", "replay.outcome"]


async def test_what_was_too_long_for_its_record_is_compared_and_shown_from_what_was_kept(config: Config) -> None:
    code = "import time\nfor n in range(500): print(n, time.time_ns() if n == 200 else '')"
    (done,) = await replay_all(config, await run_all(config, [python(code, limits={"output_lines": 20})]))
    (stdout,) = (field for field in done.fields if field.name == "stdout")
    assert stdout.state == "different"
    assert "\n 199 \n-200 " in stdout.diff


async def test_what_is_forbidden_by_now_is_not_run(config: Config) -> None:
    runs = await run_all(config, [python("print('marker')")], pretended=True)
    rule = Rule(id="no.marker", decision=Decision.FORBID, reason="not any more", pattern="marker")
    now = msgspec.structs.replace(config, policy=PolicyConfig(rules=(rule,)))
    (done,) = await replay_all(now, runs)
    assert (done.verdict, done.replay, done.backend) == ("different", "", "")
    assert "not any more [no.marker]" in done.reasons[0]
    assert any("it was allow, and would now be forbid (no.marker)" in note for note in done.notes)


async def test_what_was_forbidden_is_not_run_although_it_would_be_by_now(config: Config) -> None:
    rule = Rule(id="no.marker", decision=Decision.FORBID, reason="not yet", pattern="marker")
    strict = msgspec.structs.replace(config, policy=PolicyConfig(rules=(rule,)))
    runs = await run_all(strict, [python("print('marker')")], pretended=True)
    (done,) = await replay_all(config, runs)
    assert (done.verdict, done.replay) == ("identical", "")
    assert any("would now be allow" in note for note in done.notes)


async def test_an_input_that_is_gone_is_said_to_be(config: Config) -> None:
    runs = await run_all(config, [command("wc", "-c", stdin="12345")], pretended=True)
    inputs = Inputs.within(config.state)
    for path in (config.audit.directory.parent / "inputs").iterdir():
        path.unlink()
    (run,) = recorded(log(config), inputs)
    assert run.request.stdin == b"" != runs[0].request.stdin
    (done,) = await replay_all(config, [run])
    assert done.verdict == "different"
    assert "missing: stdin: it was kept, and is gone" in done.reasons


async def test_a_run_that_has_no_end_cannot_be_replayed(config: Config) -> None:
    await run_all(config, [python("1")], pretended=True)
    (run,) = recorded(log(config)[:1])
    (done,) = await replay_all(config, [run])
    assert (done.verdict, "no end on record" in done.why) == ("impossible", True)


async def test_a_replay_that_cannot_be_recorded_does_not_run(config: Config) -> None:
    runs = await run_all(config, [python("1")], pretended=True)
    head = config.audit.directory / "head"
    head.write_text("damaged")
    with pytest.raises(AuditError):
        await replay_all(config, runs)


async def test_two_runs_draw_different_numbers_unless_a_seed_is_asked_for(config: Config) -> None:
    draw = "import random, secrets, uuid; (random.random(), secrets.token_hex(8), uuid.uuid4().hex)"
    async with AsyncExecutor(config) as executor:
        one, other = [(await executor.run(draw)) for _ in range(2)]
        assert one.seed is not None
        again = [await executor.submit(Submission(Request(code=draw, seed=one.seed))) for _ in range(2)]
    assert one.value[0] != other.value[0]
    assert [result.value[0] for result in again] == [one.value[0]] * 2
    drawn = [result.value[1:] for result in (one, other, *again)]
    assert len({text for pair in drawn for text in pair}) == 8  # the kernel's own are nobody's to repeat
