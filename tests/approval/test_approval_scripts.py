"""Whoever approves `./backup.sh` has approved what that file holds: a changed one asks again, or is an alarm."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path

import pytest
from approval_job import EVIL, Job, found, job_with_scripts, yes

from redoma import Status
from redoma.approval import Ask, describe
from redoma.approval.webhook import summary
from redoma.lib.errors import ApprovalError
from redoma.models import Approval, ExecutedFiles, Request
from redoma.pipeline.executed_files import View, find
from redoma.policy.executed import executes

ORDINARY = 65433


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return job_with_scripts(tmp_path)


ATTACKS = [
    (("./x.sh", "--all"), "x.sh", EVIL),
    (("bash", "x.sh"), "x.sh", EVIL),
    (("env", "FOO=1", "./x.sh"), "x.sh", EVIL),
    (("sh", "-c", "nice -n 1 ./x.sh"), "x.sh", EVIL),
    (("timeout", "9", "bash", "-c", "cd sub && ../x.sh"), "x.sh", EVIL),
    (("find", ".", "-maxdepth", "0", "-exec", "./x.sh", "{}", ";"), "x.sh", EVIL),
    (("xargs", "./x.sh"), "x.sh", EVIL),
    (("python3", "report.py"), "report.py", "print( 'evil' )\n"),
    (("python3", "-m", "report"), "report.py", "print( 'evil' )\n"),
    (("python3", "-B", "daily.py"), "helper.py", "print( 'evil' )\n"),
    (("python3", "-B", "daily.py"), "json.py", "print('evil')\n"),
    (("./outer.sh",), "lib.sh", EVIL),
    (("env", "PATH=bin-of-the-job:/usr/bin:/bin", "tool"), "bin/tool", EVIL),
    (("bash text", "export PATH=bin-of-the-job:$PATH; ./calls.sh"), "bin/tool", EVIL),
    (("bash text", "PYTHONPATH=sub python3 -B uses.py"), "sub/apart.py", "print( 'evil' )\n"),
    (("bash text", "cd 2> /dev/null; ./x.sh"), "x.sh", EVIL),  # HOME is not set
    (("bash", "~/x.sh"), "~/x.sh", EVIL),  # no shell has made a home of it
    (("bash text", "source sub/lib.sh"), "sub/lib.sh", EVIL),
    (("bash text", "f() { bash < x.sh; }; f"), "x.sh", EVIL),
]


def placed(job: Job, command: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word.replace("bin-of-the-job", str(job.place / "bin")) for word in command)


@pytest.mark.parametrize(("command", "file", "evil"), ATTACKS, ids=lambda value: str(value)[:40])
async def test_a_pinned_command_whose_script_has_changed_is_an_alarm(
    job: Job, command: tuple[str, ...], file: str, evil: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = placed(job, command)
    assert (await job.pin(*command)).stdout == "good\n"
    assert (await job.run(*command, label="job")).stdout == "good\n"
    with monkeypatch.context() as unbound:
        unbound.setattr("redoma.pipeline.executed_files.find", lambda *_, **__: ExecutedFiles())
        await job.pin(*command, requester="eve")
    job.write(file, evil)
    result = await job.run(*command, label="job")
    assert (result.status, result.stdout) == (Status.DENIED, "")
    assert (result.error or "").startswith("ALARM: the pinned script 'job' has changed (changed: ")
    assert result.denial is not None  # and nobody is told how to permit it
    assert (result.denial.rule, result.denial.resource, result.denial.narrowest) == ("approval.pin", "job", "")
    assert "limits.time" not in (result.error or "")
    (alarm,) = job.records("alarm")
    assert alarm["changed"] == [str(job.place / file)]
    assert alarm["scripts"][str(job.place / file)]
    # Without what binds them, it runs.
    monkeypatch.setattr("redoma.pipeline.executed_files.find", lambda *_, **__: ExecutedFiles())
    assert "evil\n" in (await job.run(*command, label="job", requester="eve")).stdout


async def test_an_approval_is_void_once_the_script_has_changed(job: Job) -> None:
    waiting = await job.run("./x.sh", wait=False)
    ledger = job.ledger()
    ledger.answer(yes(ledger.load(waiting.approval_id).ask))
    job.write("x.sh", EVIL)
    result = await job.run(id=waiting.approval_id)
    assert (result.status, result.stdout) == (Status.DENIED, "")
    assert "a file it executes" in (result.error or "")
    job.write("x.sh", "#!/bin/sh\necho good\n")
    assert (await job.run(id=waiting.approval_id)).stdout == "good\n"


@pytest.mark.parametrize("pinned", [False, True])
async def test_a_script_that_changes_while_somebody_decides_is_not_run(job: Job, pinned: bool) -> None:
    def approve_and_change(ask: Ask) -> Approval:
        job.write("x.sh", EVIL)
        return yes(ask, pinned=pinned)

    result = await job.run("./x.sh", label="job", approver=approve_and_change)
    assert (result.status, result.stdout) == (Status.DENIED, "")
    assert ("ALARM" in (result.error or "")) is pinned
    assert bool(job.records("alarm")) is pinned
    assert pinned or "nothing was run" in job.records("approval.refused")[-1]["why"]


async def test_a_script_that_is_replaced_by_a_link_is_an_alarm_only_if_other_code_would_run(job: Job) -> None:
    await job.pin("./x.sh")
    job.write("same.sh", "#!/bin/sh\necho good\n")
    (job.place / "x.sh").unlink()
    (job.place / "x.sh").symlink_to("same.sh")
    assert (await job.run("./x.sh", label="job")).stdout == "good\n"
    job.write("same.sh", EVIL)
    assert "ALARM" in ((await job.run("./x.sh", label="job")).error or "")
    (job.place / "x.sh").unlink()
    (job.place / "x.sh").symlink_to("/bin/true")  # the system's, so by its path and not by its content
    assert "ALARM" in ((await job.run("./x.sh", label="job")).error or "")


async def test_a_script_that_appears_where_there_was_none_is_an_alarm(job: Job) -> None:
    command = ("env", f"PATH={job.place}/early:{job.place}/bin:/usr/bin:/bin", "tool")
    assert (await job.pin(*command)).stdout == "good\n"
    job.write("early/tool", EVIL)
    assert "ALARM" in ((await job.run(*command, label="job")).error or "")
    shutil.rmtree(job.place / "early")
    assert (await job.run(*command, label="job")).stdout == "good\n"
    await job.pin("bash", "-c", ". ./new.sh || true", requester="ana")
    job.write("new.sh", EVIL)
    assert "ALARM" in ((await job.run("bash", "-c", ". ./new.sh || true", label="job", requester="ana")).error or "")


async def test_data_may_change_every_day_and_so_may_the_systems_own_programs(job: Job) -> None:
    job.write("app.log", "one\n")
    command = ("sh", "-c", "wc -l app.log < app.log | tail -n 1; /usr/bin/env true; ./x.sh")
    ask = await job.ask_of(*command)
    assert list(ask.scripts) == [str(job.place / "x.sh")]
    assert (await job.pin(*command)).ok
    job.write("app.log", "one\ntwo\n")
    assert (await job.run(*command, label="job")).ok
    assert job.records("alarm") == []


@pytest.mark.parametrize(
    "command",
    [("bash text", 'bash "$1.sh"'), ("bash text", "for f in *.sh; do ./$f; done"), ("xargs", "bash")],
    ids=str,
)
async def test_what_runs_files_that_nobody_can_name_is_approved_once_and_never_pinned(
    job: Job, command: tuple[str, ...]
) -> None:
    ask = await job.ask_of(*command, label="job")
    assert ask.unbound
    assert "so it can't be pinned" in describe(ask).text
    result = await job.pin(*command)
    assert (result.status, "would not be seen" in (result.error or "")) == (Status.DENIED, True)
    assert (await job.run(*command, label="job", approver=yes)).status is not Status.DENIED


async def test_the_approver_sees_exactly_which_files_are_bound_and_what_is_not(job: Job) -> None:
    ask = await job.ask_of("bash", "-c", "./outer.sh; make; ./gone.sh")
    shown, posted = describe(ask).text, summary(ask)
    for path in ("outer.sh", "lib.sh", "Makefile"):
        whole = str(job.place / path)
        assert f"  {whole}  sha256 {ask.scripts[whole]}" in shown
        assert posted["scripts"][whole] == ask.scripts[whole]
    assert f"  {job.place}/gone.sh  missing" in shown
    assert "may execute others that are NOT bound, so it can't be pinned:\n  make runs what its files say" in shown
    assert posted["unbound"]


async def test_nothing_is_read_where_nobody_s_yes_counts(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> ExecutedFiles:
        raise AssertionError

    monkeypatch.setattr("redoma.pipeline.executed_files.find", never)
    for label in ("", "job"):
        assert (await job.run("./x.sh", label=label, limits={})).stdout == "good\n"


# --- what is found, without running it ---


def test_neither_a_pipe_nor_a_device_holds_anybody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "self").symlink_to("self")
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text("")
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(300 << 20)
    bound = found(tmp_path, "sh", "-c", "./pipe; . ./zero; ./self; ./huge; python3 app; ./none/x")
    told = {os.path.relpath(path, tmp_path): held for path, held in bound.files.items()}
    assert told.pop("app/__main__.py")
    assert told == {
        **{"pipe": "no regular file", "zero": "no regular file", "app": "no regular file"},
        **{"self": "unreadable", "huge": "too large", "none/x": "missing"},
    }
    assert len(bound.unbound) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_an_ordinary_user_binds_what_they_can_read_and_pins_nothing_else(tmp_path: Path) -> None:
    for name, mode in (("mine.sh", 0o700), ("roots.sh", 0o711), ("bin/tool", 0o755)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("echo good\n")
        (tmp_path / name).chmod(mode)
    os.chown(tmp_path / "mine.sh", ORDINARY, ORDINARY)
    for directory in (tmp_path, *tmp_path.parents):
        if not directory.stat().st_mode & 0o001:
            directory.chmod(directory.stat().st_mode | 0o011)
    executes(Request(code="true", language="bash"))  # what is loaded for it may be root's alone
    path = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    os.setegid(ORDINARY)
    os.seteuid(ORDINARY)
    try:
        bound = found(tmp_path, "sh", "-c", "./mine.sh; ./roots.sh; tool; ls", env=path)
    finally:
        os.seteuid(0)
        os.setegid(0)
    told = {os.path.relpath(path, tmp_path): held for path, held in bound.files.items()}
    assert {name: held for name, held in told.items() if len(held) < 64} == {
        **{"roots.sh": "unreadable", "bin/sh": "missing", "bin/ls": "missing"},
    }
    assert len(told["mine.sh"]) == len(told["bin/tool"]) == 64
    assert bound.unbound == (f"what {tmp_path}/roots.sh holds can't be told: it is unreadable",)


def test_only_what_a_run_sees_of_the_host_is_bound(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "x.sh").write_text("echo\n")
    (project / "out.sh").symlink_to(tmp_path / "secret")
    (tmp_path / "secret").write_text("hunter2")
    words = ("sh", "-c", f"./x.sh; ./out.sh; {tmp_path}/secret")
    over = {"backend": "auto", "workspace": "read-only", "project": str(project)}
    assert {os.path.basename(path): len(held) for path, held in found(project, *words, **over).files.items()} == {
        **{"x.sh": 64, "out.sh": len("missing")},
    }
    assert found(project, *words, backend="auto", cwd=None) == ExecutedFiles()
    inside = View((("/data", str(project)),), "/data")
    bound = find(Request(argv=("sh", "-c", "./x.sh; /data/out.sh; /x.sh"), language="command"), inside)
    assert set(bound.files) == {"/data/x.sh", "/data/out.sh"}
    assert "where it leads inside can't be told" in bound.unbound[0]


def test_what_only_root_can_change_is_the_systems_unless_it_was_put_there_by_hand(tmp_path: Path) -> None:
    assert found(tmp_path, "ls").files == found(tmp_path, "/bin/ls").files == {}
    (tmp_path / "python").symlink_to("/usr/bin/env")
    real = os.path.realpath("/usr/bin/env")
    assert found(tmp_path, "./python", "-V").files == {f"{tmp_path}/python": f"leads to {real}"}
    assert found(tmp_path, "/usr/local/bin/no-such.sh").files == {"/usr/local/bin/no-such.sh": "missing"}
    assert found(tmp_path, "env", "PATH=.:/usr/bin", "tool").unbound


@pytest.mark.parametrize(
    "command",
    [
        ("bash", "-c", "bash /dev/fd/3 3< x.sh"),
        ("sudo", "-i", "./x.sh"),
        ("su", "-", "bob", "-c", "./x.sh"),
        ("env", "-C", "link/..", "./x.sh"),
        ("bash", "-c", "cd -P link/.. && ./x.sh"),
    ],
    ids=" ".join,
)
def test_a_directory_or_a_file_that_only_the_run_can_know_is_not_guessed(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    bound = found(tmp_path, *command)
    assert (bound.files, len(bound.unbound)) == ({}, 1)


def test_a_compiled_module_that_python_would_take_instead_is_bound(tmp_path: Path) -> None:
    (tmp_path / "daily.py").write_text("import json, helper\n")
    (tmp_path / "helper.py").write_text("")
    for name in ("json.pyc", "helper.cpython-313-x86_64-linux-gnu.so", "helpers.so", "helper.log"):
        before = found(tmp_path, "python3", "daily.py").files
        (tmp_path / name).write_text("")
        appeared = found(tmp_path, "python3", "daily.py").files.keys() - before.keys()
        assert appeared == ({str(tmp_path / name)} if name.startswith(("json", "helper.cpython")) else set())


def test_a_home_is_that_of_whom_it_names_and_a_login_shell_runs_what_is_there(tmp_path: Path) -> None:
    root = pwd.getpwuid(0).pw_dir
    assert set(found(tmp_path, "bash", "-c", "~root/no-such.sh").files) == {f"{root}/no-such.sh"}
    (tmp_path / ".profile").write_text(". ./lib.sh\n")
    bound = found(tmp_path, "bash", "-lc", "true", env={"HOME": str(tmp_path)}).files
    assert {os.path.basename(path) for path in bound} == {".bash_profile", ".bash_login", ".profile", "lib.sh"}
    assert found(tmp_path, "bash", "-c", "true", env={"HOME": str(tmp_path)}).files == {}


@pytest.mark.parametrize(
    ("command", "file"),
    [
        (("node", "--require", "./x.js", "main.js"), "x.js"),
        (("deno", "run", "x.js"), "x.js"),
        (("php", "-f", "x.php"), "x.php"),
        (("tcsh", "x.csh"), "x.csh"),
        (("java", "-jar", "x.jar"), "x.jar"),
        (("xvfb-run", "-a", "./x.sh"), "x.sh"),
        (("gdb", "--args", "./x.sh"), "x.sh"),
        (("capsh", "--", "-c", "./x.sh"), "x.sh"),
        (("tmux", "new", "-d", "./x.sh"), "x.sh"),
    ],
    ids=str,
)
def test_a_file_that_an_option_or_a_wrapper_runs_is_bound(tmp_path: Path, command: tuple[str, ...], file: str) -> None:
    assert str(tmp_path / file) in found(tmp_path, *command).files


@pytest.mark.parametrize(
    "command",
    [
        ("ssh", "localhost", "/srv/x.sh"),
        ("git", "commit", "-m", "x"),
        ("python3", "-c", "exec(open('x.py').read())"),
        ("python3", "-c", "import sys; sys.path.insert(0, 'lib'); import helper"),
        ("python3", "-c", "import importlib; importlib.import_module(input())"),
    ],
    ids=" ".join,
)
def test_the_approver_is_told_of_what_runs_more_than_is_bound(tmp_path: Path, command: tuple[str, ...]) -> None:
    assert found(tmp_path, *command).unbound


def test_neither_length_nor_a_nul_nor_another_language_hides_what_a_script_runs(tmp_path: Path) -> None:
    (tmp_path / "nul.sh").write_bytes(b"#!/bin/bash\n# \0\n./from-nul.sh\n")
    (tmp_path / "long.sh").write_text("./from-long.sh\n" + "# filler\n" * 30_000 + "./from-its-end.sh\n")
    (tmp_path / "both").write_text("'''#'\n./from-both.sh\nexit\n'''\n")
    bound = found(tmp_path, "bash", "-c", "./nul.sh; bash long.sh; python3 both; bash both")
    names = {os.path.basename(path) for path in bound.files}
    assert {"from-nul.sh", "from-both.sh"} <= names
    assert any("long.sh is too long" in why for why in bound.unbound)


def test_a_hook_in_a_variable_is_a_file_that_is_executed(tmp_path: Path) -> None:
    bound = found(tmp_path, "bash", "-c", "true", env={"BASH_ENV": "./start.sh"})
    assert bound.files == {f"{tmp_path}/start.sh": "missing"}


def test_scripts_that_run_one_another_come_to_an_end(tmp_path: Path) -> None:
    for one, other in (("a.sh", "b.sh"), ("b.sh", "a.sh")):
        (tmp_path / one).write_text(f"cd sub; ./{other}; bash {tmp_path}/{other}\n")
    bound = found(tmp_path, "bash", "a.sh")
    assert {f"{tmp_path}/a.sh", f"{tmp_path}/b.sh"} <= set(bound.files)


async def test_a_pin_that_can_not_be_given_is_on_record(job: Job) -> None:
    waiting = await job.run("bash text", 'bash "$1.sh"', wait=False, label="job")
    ledger = job.ledger()
    with pytest.raises(ApprovalError, match="can't be pinned"):
        ledger.answer(yes(ledger.load(waiting.approval_id).ask, pinned=True))
    assert "only known when it runs" in job.records("approval.refused")[-1]["why"]
