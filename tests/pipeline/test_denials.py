"""Denials that help: what said no, what is allowed, and lines for redoma.yaml that permit this and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redoma import (
    Answer,
    BackendUnavailable,
    Capabilities,
    Config,
    Decision,
    Denial,
    Executor,
    FakeBackend,
    Isolation,
    Limits,
    Outcome,
    Request,
    Result,
    Status,
)
from redoma.audit import AuditLog
from redoma.config import DockerEntry, check, load
from redoma.frontends.cli.run import run as run_command
from redoma.models import Judged, Submission
from redoma.pipeline import denial
from redoma.pipeline.intake import Options, with_path
from redoma.policy import Policy, evaluate
from redoma.redaction import Redactor

sys.path.insert(0, str(Path(__file__).parents[1] / "policy"))

from corpus_evasions import EVASIONS

Command = Callable[..., subprocess.CompletedProcess[str]]
BARE = Redactor()


def denied(config: Config, request: Request) -> Denial:
    policy = config.load_policy()
    evaluation = evaluate(policy, request)
    forbidden = evaluation.decision is Decision.FORBID
    judged = Judged(submission=Submission(request), evaluation=evaluation)
    return denial.of_policy(judged, policy, BARE, Status.FORBIDDEN if forbidden else Status.DENIED)


def permitting(lines: str, where: Path) -> Config:
    """The lines as a person would use them: in a file that is loaded."""
    where.mkdir(parents=True, exist_ok=True)
    file = where / "redoma.yaml"
    file.write_text(lines)
    assert check(file) == []
    return load(file)


def decided(policy: Policy, request: Request) -> Decision:
    return evaluate(policy, request).decision


# --- policy ---


REQUESTS: dict[str, dict[str, Any]] = {
    "a command": {"argv": ("curl", "https://example.com"), "language": "command"},
    "words with quotes": {"argv": ("curl", "it's", 'a "b"', "c: d # e", "\\n"), "language": "command"},
    "a script": {"code": "sudo ls", "language": "bash"},
    "a script of several lines": {"code": "cd x\npip install y\n", "language": "bash"},
    "several rules at once": {"code": "sudo pip install x; curl x.org", "language": "bash"},
    "python": {"code": "eval(x)"},
    "a letter that is no ASCII": {"code": "sudo echo é 😀", "language": "bash"},
    "invisible characters": {"code": "x = 1 # \u202e"},
    "a long text": {"code": "eval(x)\n" + "# padding\n" * 1000},
    "with input": {"argv": ("psql",), "language": "command", "stdin": b"drop table t"},
    "with variables": {"argv": ("ls",), "language": "command", "env": {"LD_PRELOAD": "x.so"}},
    "with files": {"code": "eval(x)", "files": {"a": b"1"}},
    "on the host": {"argv": ("sudo", "ls"), "language": "command", "backend": "native", "cwd": "/srv"},
    "over a project": {"argv": ("sudo", "ls"), "language": "command", "workspace": "overlay", "project": "/srv"},
    "with much time": {"code": "print(1)", "limits": Limits(time=90)},
    "with much time and a rule": {"code": "eval(x)", "limits": Limits(time=90)},
    "a name that is no UTF-8": {"argv": ("sudo", "\udcff"), "language": "command"},
}

OTHERWISE: dict[str, dict[str, Any]] = {
    "other words": {"argv": ("curl", "https://example.org"), "language": "command", "code": ""},
    "one word more": {"argv": ("curl", "https://example.com", "-o", "x"), "language": "command", "code": ""},
    "other code": {"code": "eval(y)", "language": "python", "argv": ()},
    "as a script": {"code": "curl https://example.com", "language": "bash", "argv": ()},
    "input": {"stdin": b"x"},
    "a variable": {"env": {"A": "1"}},
    "a file": {"files": {"b": b""}, "cwd": None, "workspace": "scratch", "project": None},
    "another file": {"files": {"a": b"2"}, "cwd": None, "workspace": "scratch", "project": None},
    "a secret": {"secrets": {"TOKEN": "abcdefgh"}},
    "without a boundary": {"backend": "native"},
    "another directory": {"cwd": "/home", "files": {}},
    "another project": {"workspace": "direct", "project": "/home", "files": {}},
    "more time": {"limits": Limits(time=91)},
}


@pytest.mark.parametrize("name", REQUESTS)
def test_the_narrowest_lines_permit_exactly_this_request(name: str, config: Config, tmp_path: Path) -> None:
    request = Request(**REQUESTS[name])
    no = denied(config, request)
    assert all((no.rule, no.why, no.allowed, no.resource, no.retry_why))
    assert not no.retry
    permitted = permitting(no.narrowest, tmp_path / "file").load_policy()
    assert decided(permitted, request) is Decision.ALLOW
    again = Request(**REQUESTS[name], reason="another", requester="somebody else")  # another id, too
    assert decided(permitted, again) is Decision.ALLOW
    for what, change in OTHERWISE.items():
        other = msgspec.structs.replace(request, **change)
        if other != request and decided(config.load_policy(), other) is not Decision.ALLOW:
            assert decided(permitted, other) is not Decision.ALLOW, what


@pytest.mark.parametrize("name", list(EVASIONS)[::8])
def test_the_lines_work_for_whatever_was_refused(name: str, config: Config, tmp_path: Path) -> None:
    request = Request(code=EVASIONS[name], language="bash")
    permitted = permitting(denied(config, request).narrowest, tmp_path / "file").load_policy()
    assert decided(permitted, request) is Decision.ALLOW
    assert decided(permitted, Request(code=EVASIONS[name] + "\nsudo ls", language="bash")) is not Decision.ALLOW


def test_what_is_permitted_is_still_reported(config: Config, tmp_path: Path) -> None:
    request = Request(code="sudo ls", language="bash")
    permitted = permitting(denied(config, request).narrowest, tmp_path / "file").load_policy()
    (finding,) = evaluate(permitted, request).findings
    assert (finding.rule, finding.decision) == ("privilege.raise", Decision.ALLOW)


def test_a_permit_is_for_one_rule(config: Config, tmp_path: Path) -> None:
    request = Request(code="sudo curl x.org", language="bash")
    lines = denied(config, request).narrowest
    assert lines.count("- rule") == 2
    one = permitting(lines[: lines.rindex("    - rule")], tmp_path / "file").load_policy()
    assert decided(one, request) is Decision.PROMPT


@pytest.mark.parametrize("entry", ["app:near", "app:far", None])
@pytest.mark.parametrize("plain", [True, False])
def test_a_permit_is_for_one_executor(config: Config, tmp_path: Path, entry: str | None, plain: bool) -> None:
    """The same words do something else on an executor with another network, and on none."""
    entries = {f"app:{name}": DockerEntry(name=name, image="x") for name in ("near", "far")}

    def judged(config: Config, on: str | None) -> tuple[Decision, str]:
        options: Options = {"stdin": b"" if plain else b"x", "backend": "docker" if on else "native"}
        with Executor(msgspec.structs.replace(config, entries=entries)) as executor:
            asked = executor.core.prepare(["curl", "https://example.com"], on, options)
            found = executor.core.judge(asked)
            rules = executor.core._policy(None)
        decision = found.evaluation.decision
        if decision is Decision.ALLOW:
            return decision, ""
        return decision, denial.of_policy(found, rules, BARE, Status.DENIED).narrowest

    decision, lines = judged(config, entry)
    by_text = plain and entry is not None  # on the host it works in a directory, which is part of what is permitted
    assert (decision, ("text:" in lines), ("entry:" in lines)) == (Decision.PROMPT, by_text, entry is not None)
    permitted = msgspec.structs.replace(config, policy=permitting(lines, tmp_path / "file").policy)
    for on in ("app:near", "app:far", None):
        assert judged(permitted, on)[0] is (Decision.ALLOW if on == entry else Decision.PROMPT), on


def test_a_permit_changes_the_digest_of_the_policy(config: Config, tmp_path: Path) -> None:
    no = denied(config, Request(code="sudo ls", language="bash"))
    permitted = permitting(no.narrowest, tmp_path / "file").load_policy()
    assert permitted.digest != config.load_policy().digest


def test_a_request_with_secrets_is_permitted_by_no_file(config: Config) -> None:
    assert denied(config, Request(code="sudo ls", language="bash", secrets={"A": "abcdefgh"})).narrowest == ""


def test_a_checker_that_failed_can_not_be_permitted(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    from redoma.policy import shell

    monkeypatch.setattr(shell, "facts_of_script", None)
    no = denied(config, Request(code="ls", language="bash"))
    assert (no.rule, no.narrowest) == ("policy.unreadable", "")


def test_a_secret_in_the_code_is_nowhere_in_the_denial(config: Config) -> None:
    secret = "hunter2-hunter2"
    with Executor(config) as executor:
        result = executor.run(f"sudo echo {secret}", "bash", secrets={"A": secret}, backend="native")
        other = executor.run("sudo echo AKIAIOSFODNN7EXAMPLE", "bash", backend="native")
    assert result.denial is not None
    assert secret not in repr(result.denial)
    assert other.denial is not None
    assert "AKIA" not in repr(other.denial)
    assert "sha256" in other.denial.narrowest


def test_a_permit_of_a_project_that_is_not_trusted_has_no_effect(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request(code="sudo ls", language="bash")
    (tmp_path / "redoma.yaml").write_text(denied(config, request).narrowest)
    monkeypatch.chdir(tmp_path)
    found = load()
    assert decided(found.load_policy(), request) is Decision.PROMPT
    assert "permits a request that the rule 'privilege.raise' is about" in found.notices[0]


@pytest.mark.parametrize(
    "permit",
    [
        "{rule: nonsense, language: bash, text: ls}",
        "{rule: privilege.raise, language: bash}",
        "{rule: privilege.raise, language: Cobol 85, text: ls}",
        '{rule: privilege.raise, language: bash, text: ls, sha256: "00"}',
        '{rule: privilege.raise, language: bash, sha256: "00", time: 9}',
        '{rule: privilege.raise, language: bash, text: "l\\u202es"}',
        '{rule: privilege.raise, language: bash, text: "l\\ud800s"}',
        "{language: bash, text: ls}",
        "sudo ls",
    ],
)
def test_a_permit_that_makes_no_sense_is_an_error(permit: str, tmp_path: Path) -> None:
    (tmp_path / "redoma.yaml").write_text(f"policy:\n  permits:\n    - {permit}\n")
    assert check(tmp_path / "redoma.yaml")


def test_each_answer_of_a_person_says_whether_asking_again_can_help(config: Config) -> None:
    request = Request(code="sudo ls", language="bash")
    policy = config.load_policy()
    judged = Judged(submission=Submission(request), evaluation=evaluate(policy, request))

    def told(status: Status, said: str = "") -> tuple[bool, str]:
        no = denial.of_policy(judged, policy, BARE, status, said)
        return no.retry, no.retry_why

    assert told(Status.EXPIRED) == (True, "nobody answered in time; somebody may if it is asked again")
    assert told(Status.DENIED) == (False, "a person has to say yes, and nobody is there to ask")
    assert told(Status.DENIED, "not today") == (False, "a person has said no: not today")


# --- configured executors ---

ENTRY = """
version: "1.0"
namespace: app
entries:
  - name: shell
    kind: exec.native
    default_work_dir: /usr
    default_env: {PASSWORD: swordfish}
    command_whitelist: ["ls -l", "git status"]
  - name: box
    kind: exec.docker
    image: python:3.11-slim
    command_whitelist: []
  - {name: bare, kind: exec.native, command_whitelist: []}
  - {name: slow, kind: exec.native, limits: {time: 120}}
"""


def refused(tmp_path: Path, command: Any, entry: str, extra: str = "", **options: Any) -> Result:
    (tmp_path / "redoma.yaml").write_text(extra or ENTRY)
    config = load(tmp_path / "redoma.yaml")
    with Executor(config, backends=[FakeBackend(Answer(stdout="ran"), name="native")]) as executor:
        return executor.command(command, entry=entry, **options)


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (["ls", "-la"], {}),
        (["ls", "it's"], {}),
        (["ls", "-l"], {"env": {"A": "1", "B": "2"}}),
        (["id"], {"env": {"A": "1"}}),
    ],
)
def test_the_lines_for_a_list_of_commands_permit_this_one(
    command: list[str], options: dict[str, Any], tmp_path: Path
) -> None:
    no = refused(tmp_path, command, "app:shell", **options).denial
    assert no is not None
    assert no.rule.startswith("entry.")
    assert "swordfish" not in repr(no)
    assert refused(tmp_path, command, "app:shell", no.narrowest, **options).stdout == "ran"
    assert refused(tmp_path, ["git", "status"], "app:shell", no.narrowest).stdout == "ran"
    assert refused(tmp_path, [*command, "x"], "app:shell", no.narrowest, **options).status is Status.FORBIDDEN
    assert refused(tmp_path, command, "app:shell", no.narrowest, env={"C": "1"}).status is Status.FORBIDDEN


def test_the_lines_name_the_image_of_a_container(tmp_path: Path) -> None:
    no = refused(tmp_path, ["id"], "app:box").denial
    assert no is not None
    (entry,) = permitting(no.narrowest, tmp_path / "file").entries.values()
    assert (getattr(entry, "image", ""), entry.command_whitelist) == ("python:3.11-slim", ("id",))


def test_a_secret_in_a_command_that_is_not_listed_is_nowhere_in_the_denial(tmp_path: Path) -> None:
    no = refused(tmp_path, ["echo", "AKIAIOSFODNN7EXAMPLE"], "app:shell").denial
    assert no is not None
    assert "AKIA" not in repr(no)
    assert no.narrowest == ""


def test_what_no_line_of_an_entry_permits_says_so(tmp_path: Path) -> None:
    no = refused(tmp_path, ["ls", "-l"], "app:shell", files={"a": b""}).denial
    assert no is not None
    assert (no.rule, no.narrowest) == ("entry.files", "")
    assert no.allowed


def test_a_command_that_policy_asks_about_besides_needs_both(tmp_path: Path) -> None:
    no = refused(tmp_path, ["sudo", "ls"], "app:bare").denial
    assert no is not None
    assert refused(tmp_path, ["sudo", "ls"], "app:bare", no.narrowest).status is Status.OK
    assert refused(tmp_path, ["sudo", "id"], "app:bare", no.narrowest).status is Status.FORBIDDEN


def test_the_time_that_the_owner_of_an_executor_set_asks_nobody(tmp_path: Path) -> None:
    assert refused(tmp_path, ["ls"], "app:slow").status is Status.OK
    assert refused(tmp_path, ["ls"], "app:slow", limits={"time": 100}).status is Status.OK
    assert refused(tmp_path, ["ls"], "app:slow", limits={"time": 121}).status is Status.DENIED
    assert refused(tmp_path, ["ls", "-l"], "app:shell", limits={"time": 61}).status is Status.DENIED


# --- limits ---


@pytest.mark.parametrize(
    ("limit", "status", "told", "why"),
    [
        ("time", Status.TIMEOUT, "", "it ran longer than 30 s and was ended"),
        ("cpu", Status.TIMEOUT, "cpu", "it used more than 120 s of processor time and was ended"),
        ("memory", Status.MEMORY, "", f"it used more than {512 << 20} bytes of memory and was ended"),
        ("output_total", Status.OUTPUT, "", f"it printed more than {64 << 20} bytes and was ended"),
        ("processes", Status.KILLED, "processes", "it had more than 100 processes and was ended"),
        ("file_size", Status.KILLED, "file_size", f"it wrote a file of more than {256 << 20} bytes and was ended"),
        ("disk", Status.KILLED, "disk", f"it wrote more than {256 << 20} bytes or 10000 files and was ended"),
    ],
)
def test_a_limit_says_which_and_how_to_raise_it(
    limit: str, status: Status, told: str, why: str, config: Config, tmp_path: Path
) -> None:
    outcome = Outcome(status=status, limit=told, isolation=Isolation())
    no = denial.of_limit(outcome, Request(code="x"), config.limits, BARE)
    assert no is not None
    assert no.why == why
    assert (no.rule, no.retry) == (f"limits.{limit}", False)
    raised = permitting(no.narrowest, tmp_path / "file").limits
    changed = [name for name in Limits.__struct_fields__ if getattr(raised, name) != getattr(config.limits, name)]
    assert changed == [limit]
    assert getattr(raised, limit) == 2 * getattr(config.limits, limit)


def test_a_memory_error_that_code_raises_does_not_claim_what_was_used(config: Config) -> None:
    with Executor(config) as executor:
        result = executor.run("raise MemoryError()")
    assert (result.status, result.exception) == (Status.MEMORY, "MemoryError")
    assert result.error == f"it ended with a MemoryError; it may use {512 << 20} bytes of memory"
    assert "used more than" not in result.to_text()


def test_a_limit_of_the_request_itself_is_raised_there(config: Config) -> None:
    outcome = Outcome(status=Status.TIMEOUT, isolation=Isolation())
    no = denial.of_limit(outcome, Request(code="x", limits=Limits(time=40)), config.limits, BARE)
    assert no is not None
    assert no.narrowest == ""
    assert "limits={'time': 80}" in no.allowed
    assert "over 60 s a person is asked" in no.allowed


@pytest.mark.parametrize("value", [1, 1000, (256 << 20) + 1, 134217728, 512 << 20, 10**15 + 1, 2**61 + 512, 2**63 - 1])
@pytest.mark.parametrize("limit", ["time", "cpu", "memory", "disk"])
def test_the_command_line_takes_the_words_that_a_limit_is_raised_with(limit: str, value: int, config: Config) -> None:
    value = max(value, 1 << 20) if limit == "memory" else value  # the least that there is
    limits = Limits(**{limit: value})
    status = {"memory": Status.MEMORY, "disk": Status.KILLED}.get(limit, Status.TIMEOUT)
    outcome = Outcome(status=status, limit=limit, isolation=Isolation())
    no = denial.of_limit(outcome, Request(code="x", limits=limits), config.limits, BARE)
    assert no is not None
    (words,) = re.findall(r"\(`(.+)`\)", no.allowed)
    given = run_command.make_context("run", [*words.split(), "x"]).params
    exact = limit in ("memory", "disk") and value < 10**14
    read = given["seconds" if limit == "time" else limit]
    assert read == pytest.approx(min(2 * value, 2**62), rel=0 if exact else 1e-3, abs=0)


@pytest.mark.parametrize("status", [Status.OK, Status.ERROR, Status.KILLED])
def test_what_no_limit_ended_is_no_denial(status: Status, config: Config) -> None:
    said = "OSError: Network is unreachable; Permission denied; it used more than 1 bytes of memory and was ended"
    outcome = Outcome(status=status, error=said, isolation=Isolation())
    assert denial.of_limit(outcome, Request(code="x"), config.limits, BARE) is None


@pytest.mark.parametrize("backend", ["jail", "native"])
def test_a_run_out_of_time_has_the_same_denial_on_every_backend(backend: str, config: Config) -> None:
    with Executor(config) as executor:
        result = executor.run("while :; do :; done", "bash", backend=backend, limits={"time": 0.2})
    assert result.denial is not None
    assert (result.status, result.denial.rule, result.denial.narrowest) == (Status.TIMEOUT, "limits.time", "")


def test_a_run_that_ends_well_has_no_denial(config: Config) -> None:
    with Executor(config) as executor:
        assert executor.run("echo hi", "bash", backend="native").denial is None


# --- backends ---


def test_a_layer_that_is_missing_is_a_denial(config: Config) -> None:
    with Executor(config) as executor:
        result = executor.run("print(1)", backend="native", require=["seccomp"])
    assert result.denial is not None
    assert (result.status, result.denial.rule, result.denial.retry) == (Status.FAILED, "backend.unsupported", False)
    assert "'seccomp'" in result.denial.why
    assert "seccomp" in result.denial.resource
    assert "without isolation" not in result.denial.allowed


def test_a_backend_that_is_not_here_is_a_denial_and_one_that_broke_is_none(config: Config) -> None:
    class Absent(FakeBackend):
        def capabilities(self) -> Capabilities:
            raise BackendUnavailable("there is no jail", why="this is no Linux", next="use docker here")

    class Broken(FakeBackend):
        async def run(self, request: Request, sink: Any, control: Any = None) -> Outcome:
            raise OSError("broke")

    with Executor(config, backends=[Absent(name="jail")]) as executor:
        absent = executor.run("print(1)", backend="jail")
    with Executor(config, backends=[Broken(name="jail")]) as executor:
        broken = executor.run("print(1)", backend="jail")
    assert absent.denial is not None
    assert (absent.denial.rule, absent.denial.allowed) == ("backend.unavailable", "use docker here")
    assert (broken.status, broken.denial) == (Status.FAILED, None)


def test_a_denial_holds_no_control_characters() -> None:
    no = denial.of_pin(Request(code="x", label="nightly\x1b[2J"), BARE)
    assert (no.rule, no.retry) == ("approval.pin", False)
    assert "nightly" in no.resource
    assert "\x1b" not in no.resource


# --- where it is shown ---


def test_a_denial_is_on_record(config: Config) -> None:
    with Executor(config) as executor:
        executor.run("sudo ls", "bash", backend="native")
    *_, outcome = AuditLog(config.audit.directory).records()
    assert outcome.data["denial"] == {"rule": "privilege.raise", "resource": "sudo ls"}


def test_the_command_line_shows_what_would_permit_it(redoma_command: Command, tmp_path: Path) -> None:
    done = redoma_command("run", "--backend", "native", "--lang", "bash", "sudo echo 'hi  there'")
    assert done.returncode == 126
    said, _, lines = done.stderr.partition("  permit   by these lines of redoma.yaml:\n")
    assert "  about    sudo echo 'hi there'\n" in said
    assert "  again    no use: a person has to say yes, and nobody is there to ask\n" in said
    permitted = permitting("".join(line[4:] + "\n" for line in lines.splitlines()), tmp_path).load_policy()
    env = with_path({"backend": "native"})["env"]
    request = Request(code="sudo echo 'hi  there'", language="bash", backend="native", env=dict(env))
    assert decided(permitted, request) is Decision.ALLOW


def test_json_has_the_denial_and_the_level(redoma_command: Command) -> None:
    done = redoma_command("run", "--backend", "native", "--json", "--lang", "bash", "sudo ls")
    result = msgspec.json.decode(done.stdout)
    assert (result["level"], result["denial"]["rule"], result["denial"]["retry"]) == ("L4", "privilege.raise", False)


def test_check_shows_level_reason_and_backend(redoma_command: Command) -> None:
    text = redoma_command("check", "--backend", "native", "--", "ls").stdout
    assert text == "allow  (policy standard, 0 findings)\nL1  ls only looks\nbackend  native\n"
    report = msgspec.json.decode(redoma_command("check", "--json", "--time", "61", "print(1)").stdout)
    assert (report["level"], report["decision"], report["findings"][0]["rule"]) == ("L4", "prompt", "limits.time")
    assert report["level_why"] == ["it wants to run for longer than a minute [limits.time]"]
    assert (report["cell"]["backend"], report["backend"]) == ("jail", "native")
