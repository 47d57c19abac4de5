"""What a run could touch, from the backend that runs it to the verdict, the record and the advice."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redoma import Config, Decision, Executor, Status
from redoma.approval import Ask, Callback
from redoma.audit import AuditLog
from redoma.backends.base import Control, Outcome, Sink
from redoma.backends.fake import Answer, FakeBackend
from redoma.config import DockerEntry
from redoma.lib.errors import Unsupported
from redoma.models import Request
from redoma.models.reach import HOST, NOTHING, Reach

Command = Callable[..., subprocess.CompletedProcess[str]]


class Fails(FakeBackend):
    """Says that it can, and then can't."""

    async def run(self, request: Request, sink: Sink, control: Control | None = None) -> Outcome:
        raise Unsupported("it can't", why="it has tried")


def test_the_verdict_is_for_the_backend_that_would_run_it_and_on_the_result(config: Config) -> None:
    backends = [FakeBackend(name="jail", reach=NOTHING), FakeBackend(name="native", reach=HOST)]
    with Executor(config, backends=backends) as executor:
        contained = executor.run("git clean -fdx", "bash")
        on_host = executor.run("git clean -fdx", "bash", backend="native")
    assert (contained.status, contained.evaluation.decision) == (Status.OK, Decision.ALLOW)
    assert [(each.rule, each.out_of_reach) for each in contained.evaluation.findings] == [
        ("git.clean", "no files of the host")
    ]
    assert (on_host.status, on_host.evaluation.decision) == (Status.DENIED, Decision.PROMPT)
    intents = [each.data for each in AuditLog(config.audit.directory).records() if each.kind == "intent"]
    assert [intent["reach"]["files"] for intent in intents] == ["none", "host"]
    assert [finding["rule"] for finding in intents[0]["findings"]] == ["git.clean"]


@pytest.mark.parametrize("reach", [HOST, Reach(network=True), Reach(system=True)])
def test_a_backend_that_reaches_further_than_was_judged_does_not_run_it(config: Config, reach: Reach) -> None:
    """It was allowed for a cell. Where the cell fails, another place may not take it over unasked."""
    other = FakeBackend(name="docker", reach=reach)
    with Executor(config, backends=[Fails(name="jail", reach=NOTHING), other]) as executor:
        result = executor.run("git clean -fdx; curl x.org; docker volume rm x", "bash")
    assert result.status is Status.FAILED
    assert other.requests == []
    assert "was judged as what touches nothing outside" in result.passed_over["docker"]


def test_one_that_reaches_no_further_does(config: Config) -> None:
    other = FakeBackend(Answer(stdout="here\n"), name="docker", reach=NOTHING)
    with Executor(config, backends=[Fails(name="jail", reach=NOTHING), other]) as executor:
        assert executor.run("git clean -fdx", "bash").stdout == "here\n"


def test_what_can_not_be_run_at_all_says_so_and_asks_nobody(config: Config) -> None:
    with Executor(config, backends=[FakeBackend(name="jail", reach=NOTHING)]) as executor:
        result = executor.run("git clean -fdx", "bash", require=("no such layer",))
    assert result.status is Status.FAILED


@pytest.mark.parametrize(
    ("fields", "line", "expected"),
    [
        ({}, "curl x.org", Decision.PROMPT),  # in the engine's own network, unless it says otherwise
        ({"network_mode": "none"}, "curl x.org", Decision.ALLOW),
        ({"network_mode": "none"}, "git clean -fdx", Decision.ALLOW),
        ({"network_mode": "none", "volumes": ("/srv:/srv",)}, "git clean -fdx", Decision.PROMPT),
        ({"network_mode": "none", "volumes": ("/srv:/srv:ro",)}, "git clean -fdx", Decision.ALLOW),
    ],
)
def test_a_configured_container_asks_for_what_it_reaches(
    config: Config, fields: dict[str, Any], line: str, expected: Decision
) -> None:
    entries = {"app:box": DockerEntry(name="box", image="x", **fields)}
    with Executor(msgspec.structs.replace(config, entries=entries)) as executor:
        asked = executor.core.prepare(line.split(), "app:box", {})
        assert executor.core.judge(asked).evaluation.decision is expected


def test_an_answer_for_one_reach_is_none_for_another(config: Config, tmp_path: Path) -> None:
    asked: list[Ask] = []

    def note(ask: Ask) -> Any:
        asked.append(ask)

    settings = msgspec.structs.replace(config, state=tmp_path / "state")
    for reach in (HOST, Reach(files="host")):
        with Executor(settings, backends=[FakeBackend(name="jail", reach=reach)], approver=Callback(note)) as executor:
            executor.run("git clean -fdx", "bash", reason="the same")
    assert asked[0].digest != asked[1].digest


# --- advice ---

NO_NETWORK = "this sandbox has no network: pass the data in as a file, or name the host: --allow-host HOST"


def test_no_permit_is_offered_for_what_the_sandbox_can_not_do(config: Config) -> None:
    """By the text alone it is refused; but to permit it would only let it fail."""
    with Executor(config) as executor:
        no = executor.run("curl https://x.org", "bash", policy="script").denial
        other = executor.run("perl -e '1'", "bash", policy="script").denial
    assert no is not None
    assert no.allowed == NO_NETWORK
    assert no.narrowest == ""
    assert other is not None
    assert "permits" in other.narrowest


@pytest.mark.parametrize("code", ["curl -s https://x.org | sh", "bash <(curl -s https://x.org)"])
@pytest.mark.parametrize("policy", ["standard", "script"])
def test_no_permit_is_offered_for_running_what_can_not_be_downloaded(config: Config, code: str, policy: str) -> None:
    with Executor(config) as executor:
        no = executor.run(code, "bash", policy=policy).denial
        there = executor.run(code, "bash", policy=policy, network=["GET x.org"]).denial
        decoded = executor.run("echo cm0= | base64 -d | sh", "bash", policy=policy).denial
    assert no is not None
    assert (no.rule, no.narrowest) == ("shell.pipe-to-interpreter", "")
    assert no.allowed == NO_NETWORK
    for possible in (there, decoded):
        assert possible is not None
        assert "permits" in possible.narrowest


def test_a_run_that_failed_for_want_of_a_network_is_told_so(redoma_command: Command) -> None:
    done = redoma_command("run", "--lang", "bash", "curl -sS https://example.invalid || wget https://example.invalid")
    assert done.returncode not in (0, 126)
    assert f"redoma: note: {NO_NETWORK}\n" in done.stderr


# --- in an overlay ---


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    (place / "src").mkdir(parents=True)
    (place / "src" / "a.py").write_text("x = 1\n")
    (place / "b.txt").write_text("b\n")
    return place


@pytest.mark.parametrize(
    "command", [("rm", "-rf", "src", "b.txt"), ("sh", "-c", "rm -rf ./*"), ("find", ".", "-delete")]
)
def test_try_shows_what_a_removal_would_do_and_does_nothing(
    project: Path, redoma_command: Command, command: tuple[str, ...]
) -> None:
    done = redoma_command("try", "--keep", "--project", str(project), "--", *command, cwd=project)
    assert "b.txt" in done.stderr, done.stderr
    assert "src/a.py" in done.stderr or "a.py" in done.stderr
    assert (project / "src" / "a.py").exists()
    assert "Kept as" in done.stderr


def test_try_of_everything_works_and_shows_the_effect(project: Path, redoma_command: Command) -> None:
    done = redoma_command("try", "--keep", "--project", str(project), "--", "rm", "-rf", ".", cwd=project)
    assert "forbidden" not in done.stderr
    # rm itself refuses to remove the directory that it stands in.
    assert "refusing to remove '.'" in done.stderr
    assert (project / "b.txt").exists()


def test_what_was_refused_outright_is_asked_about_before_it_is_applied(
    project: Path, tmp_path: Path, config: Config
) -> None:
    settings = msgspec.structs.replace(config, state=tmp_path / "state")
    asked: list[Ask] = []

    def yes(ask: Ask) -> Any:
        from datetime import UTC, datetime

        asked.append(ask)
        return ask.answer("approved", approver="ana", reason="seen", at=datetime.now(UTC))

    with Executor(settings, approver=Callback(yes)) as executor:
        options: dict[str, Any] = {"workspace": "overlay", "project": project, "cwd": str(project)}
        result = executor.run("chmod 777 b.txt", "bash", **options)
        assert (result.status, asked, result.level) == (Status.OK, [], "L4")
        assert executor.apply(result.id).state == "applied"
    assert [finding.rule for finding in asked[0].evaluation.deciding][:1] == ["permissions.everyone"]
    assert asked[0].evaluation.decision is Decision.PROMPT
    assert (project / "b.txt").stat().st_mode & 0o777 == 0o777


def test_more_than_a_minute_is_asked_about_before_it_runs_in_an_overlay(
    project: Path, tmp_path: Path, config: Config
) -> None:
    settings = msgspec.structs.replace(config, state=tmp_path / "state")
    with Executor(settings) as executor:
        result = executor.run("echo x > b.txt", "bash", workspace="overlay", project=project, limits={"time": 61})
    assert result.status is Status.DENIED


# --- at a terminal ---

_QUESTION, _WHY = b"anything else is no: ", b"Why, for the record: "


def typed(*command: str, answers: list[bytes]) -> tuple[int, str]:
    """The exit status and the screen of a program that a person has typed at a terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            program = str(Path(sys.executable).with_name("redoma"))
            os.execv(program, [program, *command])  # noqa: S606 - as a person at that terminal would
        finally:
            os._exit(1)
    seen, pending = b"", answers
    while select.select([terminal], [], [], 60)[0]:
        try:
            seen += os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
        if pending and seen.endswith((_QUESTION, _WHY)):
            os.write(terminal, pending.pop(0) + b"\n")
            seen += b"\0"  # so that the same question is not taken for another
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), seen.decode().replace("\r", "")


def test_whoever_types_it_at_a_terminal_is_asked(tmp_path: Path) -> None:
    target = tmp_path / "old"
    target.mkdir()
    command = ("run", "--backend", "native", "--lang", "bash", f"rm -r {target} && echo removed it")
    status, seen = typed(*command, answers=[b"no"])
    assert (status, target.exists()) == (126, True)
    assert "remove.recursive" in seen
    status, seen = typed(*command, answers=[b"yes", b"it is old"])
    assert (status, target.exists()) == (0, False), seen
    assert "removed it" in seen


def test_whoever_types_a_command_for_the_host_is_asked_and_not_the_program(tmp_path: Path) -> None:
    """The answer is read by us, also where the program is given what is typed."""
    target = tmp_path / "old"
    target.mkdir()
    status, seen = typed("exec", "--backend", "native", "--", "rm", "-r", str(target), answers=[b"yes", b"it is old"])
    assert (status, target.exists()) == (0, False), seen


def test_what_is_allowed_asks_nobody_at_a_terminal() -> None:
    status, seen = typed("run", "--lang", "bash", "rm -rf x; echo done", answers=[])
    assert (status, seen.strip()) == (0, "done")


def test_where_it_is_configured_that_nobody_is_asked_nobody_is(tmp_path: Path) -> None:
    file = tmp_path / "redoma.yaml"
    file.write_text('version: "1.0"\napproval: {approver: deny}\n')
    status, seen = typed(
        "--config", str(file), "run", "--backend", "native", "--lang", "bash", "sudo ls", answers=[b"yes"]
    )
    assert status == 126
    assert "Type yes" not in seen


def test_away_from_a_terminal_nobody_is_asked(redoma_command: Command) -> None:
    done = redoma_command("run", "--backend", "native", "--lang", "bash", "sudo ls", input="yes\nyes\n")
    assert done.returncode == 126
    assert "nobody is there to ask" in done.stderr


# --- what the command line says before anything runs ---


def test_check_shows_a_cell_and_the_host_side_by_side_and_exits_by_the_host(redoma_command: Command) -> None:
    done = redoma_command("check", "--lang", "bash", "git reset --hard")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["cell", "host"]
    assert lines[1].split()[:2] == ["allow", "prompt"]
    assert "allow   prompt  (policy standard, 1 finding)" in lines
    assert "backend  jail (auto), native" in lines
    assert redoma_command("check", "--backend", "auto", "--lang", "bash", "git reset --hard").returncode == 0
    assert redoma_command("check", "--backend", "native", "--lang", "bash", "git reset --hard").returncode == 1


def test_explain_shows_both_verdicts_and_exits_by_the_host(redoma_command: Command) -> None:
    done = redoma_command("policy", "explain", "git reset --hard")
    assert done.returncode == 1
    assert "Verdict  allow in a cell, by no rule" in done.stdout
    assert "Verdict  prompt on the host, by git.reset" in done.stdout
    assert redoma_command("policy", "explain", "--backend", "jail", "git reset --hard").returncode == 0


def test_a_path_in_the_current_directory_is_inside_on_the_host(redoma_command: Command, tmp_path: Path) -> None:
    inside = redoma_command("check", "--", "touch", str(tmp_path / "x"), cwd=tmp_path)
    assert inside.returncode == 0, inside.stdout
    outside = redoma_command("check", "--", "touch", "/srv/x", cwd=tmp_path)
    assert outside.returncode == 1
