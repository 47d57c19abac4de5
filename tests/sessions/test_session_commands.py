"""Commands, processes in the background, and files of a session."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pace import SLOW
from redoma import AsyncExecutor, BackendError, Config, Executor, InvalidRequest, Refused, Session
from redoma.config import AuditConfig, SessionsConfig


@pytest.fixture(scope="module")
def session_executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    """With time enough to end a run that was interrupted: a session whose run does not end is ended."""
    audit = AuditConfig(directory=tmp_path_factory.mktemp("state") / "audit")
    with Executor(Config(audit=audit, sessions=SessionsConfig(grace=60.0))) as made:
        yield made


def test_a_command_begins_where_the_last_one_ended_up(session: Session) -> None:
    session.command("mkdir -p a/b; cd a; export LEFT=7")
    assert session.command("pwd; echo $LEFT").stdout == "/workspace/a\n7\n"
    assert session.command(["pwd"]).stdout == "/workspace/a\n"
    assert session.bash("cd b; exit 3").exit_code == 3
    assert session.command("pwd").stdout == "/workspace/a/b\n"


def test_python_and_commands_share_directory_and_variables(session: Session) -> None:
    session.command("mkdir here; cd here; export FROM_BASH=1")
    assert session.run("import os\nos.getcwd(), os.environ['FROM_BASH']").value == ("/workspace/here", "1")
    session.run("os.environ['FROM_PYTHON'] = '2'\nos.chdir('..')")
    assert session.command("echo $FROM_PYTHON; pwd").stdout == "2\n/workspace\n"


def test_how_a_command_ended_is_told_as_for_any_run(session: Session) -> None:
    assert (session.command("exit 7").exit_code, session.command("kill -9 $$").exit_code) == (7, 137)
    missing = session.command(["no-such-program"])
    assert (missing.status, missing.exit_code) == ("error", 127)
    assert "start no-such-program" in (missing.error or "")
    assert session.bash('echo "$1-$2"', args=["a", "b c"]).stdout == "a-b c\n"
    assert session.command("echo $ONLY_HERE", env={"ONLY_HERE": "1"}).stdout == "1\n"
    assert "script: line 2:" in session.bash("true\nno-such-command").stderr


@pytest.mark.parametrize("nothing", ["", "\ufeff"])
def test_an_empty_script_does_not_run_the_last_one_again(session: Session, nothing: str) -> None:
    session.bash("echo last > ran; echo last")
    session.files.remove("ran")
    for result in (session.bash(nothing), session.command(nothing), session.javascript(nothing)):
        assert (result.status, result.exit_code, result.stdout) == ("ok", 0, "")
    assert not session.files.exists("ran")
    assert session.bash("echo next").stdout == "next\n"


def test_words_that_no_program_can_get_are_told_and_the_session_goes_on(session: Session) -> None:
    session.run("kept = 1")
    half = "\ud800"  # of a character
    for result in (
        session.command(["echo", half]),
        session.command([half]),
        session.bash("true", env={"HALF": half}),
        session.bash("true", args=[half]),
    ):
        assert (result.status, result.exit_code) == ("error", 127)
        assert "surrogates not allowed" in (result.error or "")
    assert "can't be written" in (session.bash(f"echo {half}").error or "")
    assert session.run("kept").value == 1


@pytest.mark.parametrize("pty", [False, True])
def test_a_process_that_can_t_be_started_ends_alone(session: Session, pty: bool) -> None:
    session.run("kept = 1")
    assert session.start("", pty=pty).wait() == 0
    assert session.start("\ufeff", pty=pty).wait() == 0
    for odd in ("echo \ud800", ["echo", "\ud800"], ["\ud800"]):
        process = session.start(odd, pty=pty)
        assert process.wait() == 127
        assert "surrogates not allowed" in (process.result.error or "")
    assert session.start("pwd", cwd="missing", pty=pty).wait() == 127
    assert session.start("pwd", cwd="\ud800", pty=pty).wait() == 127
    for wrong in ("\0", 5):
        with pytest.raises(InvalidRequest, match="path inside the session"):
            session.start("pwd", cwd=wrong, pty=pty)  # type: ignore[arg-type]
    assert session.run("kept").value == 1
    assert session.processes == []


def test_a_process_that_is_too_long_for_a_session_is_refused_and_the_session_goes_on(config: Config) -> None:
    with Executor(config) as executor, executor.session() as session:
        session.run("kept = 1")
        other = session.start(["sleep", "100"])
        with pytest.raises(BackendError, match="too long for a session"):
            session.start(": " + "x" * (5 << 20))
        assert session.run("kept").value == 1
        assert len(session.processes) == 1
        other.close()


async def test_cancelling_the_start_of_a_program_that_does_not_exist_ends_no_session(config: Config) -> None:
    import asyncio

    async with AsyncExecutor(config) as executor, executor.session() as session:
        await session.run("kept = 1")
        for steps in range(12):
            process = session.process(["no-such-program"])
            starting = asyncio.create_task(process.start())
            for _ in range(steps):
                await asyncio.sleep(0)
            starting.cancel()
            await asyncio.gather(starting, process.close(), return_exceptions=True)
        assert (await session.run("kept")).value == 1


@pytest.mark.parametrize("also", ["", "export A=1;"])
@pytest.mark.parametrize("lose", ["rm -rf ../d", "chmod 0 ."])
def test_a_script_that_removes_its_directory_is_told_and_the_next_run_begins_at_home(
    session: Session, also: str, lose: str
) -> None:
    session.run("import os; kept = 1")
    session.bash("mkdir d; cd d")
    lost = session.bash(f"{also} {lose}")
    assert lost.ok
    assert lost.stderr == "redoma: /workspace/d is gone, so the next run begins in /workspace\n"
    assert session.run("os.getcwd(), kept").value == ("/workspace", 1)
    again = session.bash("pwd")
    assert (again.stdout, again.stderr) == ("/workspace\n", "")


@pytest.mark.parametrize("how", ["python", "files", "command"])
def test_a_directory_that_was_removed_in_any_other_way_is_left_too(session: Session, how: str) -> None:
    session.run("import os, shutil; kept = 1")
    session.bash("mkdir d; cd d")
    if how == "python":
        session.run("shutil.rmtree(os.getcwd())")
    elif how == "files":
        session.files.remove("d")
    else:
        session.command(["rm", "-r", "/workspace/d"])
    process = session.start("pwd")
    assert process.wait() == 0
    assert process.result.stdout == "/workspace\n"
    assert session.command(["pwd"]).stdout == "/workspace\n"
    assert session.run("os.getcwd(), kept").value == ("/workspace", 1)


def test_a_process_in_the_background_can_be_talked_to(session: Session) -> None:
    process = session.start("while read line; do echo got $line; done; exit 5")
    assert session.run("1 + 1").value == 2
    output = process.stdout_stream()
    process.write_stdin("one\n")
    assert output.read() == "got one\n"
    process.close_stdin()
    assert process.wait() == 5


def test_input_of_a_process_that_does_not_read_holds_up_nobody(session: Session) -> None:
    slow = session.start(["sleep", "100"])
    slow.write_stdin(b"x" * 900_000)
    assert session.run("1").value == 1
    assert [each.core for each in session.processes] == [slow.core]
    slow.signal(15)
    assert slow.wait() == 143
    assert session.processes == []


def test_a_process_can_have_a_terminal(session: Session) -> None:
    process = session.start("test -t 0 && echo terminal; stty size", pty=True)
    assert process.wait() == 0
    assert "terminal\n24 80\n" in process.result.stdout
    wide = session.start("stty size", pty=True, size=(10, 200))
    assert wide.wait() == 0
    assert wide.result.stdout == "10 200\n"


@pytest.mark.parametrize("pty", [False, True])
def test_ctrl_c_ends_a_process(session: Session, pty: bool) -> None:
    process = session.start("trap 'echo interrupted; exit 3' INT; echo ready; while true; do sleep 0.1; done", pty=pty)
    assert process.stdout_stream().read() == "ready\n"
    assert process.pid in {each.pid for each in session.processes}
    if pty:
        process.write_stdin("\x03")
    else:
        process.signal(signal.SIGINT)
    assert process.wait() == 3
    assert process.result.stdout.endswith("interrupted\n")


def test_a_command_that_takes_too_long_is_interrupted_first(session: Session) -> None:
    """The grace is a minute, so it was not killed; and it can still say where it ended up."""
    began = time.monotonic()
    result = session.bash("mkdir -p late; cd late; trap 'echo bye; exit 3' INT; while :; do sleep 0.1; done", timeout=1)
    assert (result.status, result.stdout) == ("timeout", "bye\n")
    assert time.monotonic() - began < 25 * SLOW
    assert session.command("pwd").stdout.endswith("/late\n")


def test_a_process_is_judged_before_it_starts(session: Session) -> None:
    with pytest.raises(Refused):
        session.start("rm -rf /", policy="strict")
    assert session.processes == []


def test_a_process_ends_in_time_and_with_the_session(session_executor: Executor) -> None:
    with session_executor.session() as session:
        timed = session.start("sleep 100", timeout=0.3)
        assert timed.wait() == 124
        left = session.start("sleep 100")
    deadline = time.monotonic() + 60 * SLOW
    while not left.core.started().done() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left.result.status == "failed"


# --- files ---


def test_files_are_what_the_code_sees(session: Session) -> None:
    files = session.files
    files.write("data/in.txt", "hello")
    assert session.run("open('data/in.txt').read()").value == "hello"
    session.run("open('out.bin', 'wb').write(bytes(range(256)) * 1000);")
    assert files.read("out.bin") == bytes(range(256)) * 1000
    assert files.read_text("data/in.txt") == "hello"
    assert [(each.name, each.kind) for each in files.list()] == [("data", "directory"), ("out.bin", "file")]
    assert files.stat("out.bin").size == 256_000
    files.rename("out.bin", "moved/away.bin")
    files.make_dir("empty/below")
    assert files.exists("moved/away.bin")
    assert not files.exists("out.bin")
    files.remove("moved")
    files.remove("data/in.txt")
    assert [each.name for each in files.list("data")] == []
    assert files.exists("empty/below")


def test_files_are_missing_as_for_open(session: Session) -> None:
    with pytest.raises(FileNotFoundError):
        session.files.read("nothing")
    with pytest.raises(IsADirectoryError):
        session.files.read(".")
    session.files.write("file", "x")
    with pytest.raises(NotADirectoryError):
        session.files.read("file/below")
    with pytest.raises(OSError, match="Read-only"):
        session.files.write("/usr/x", "y")


def test_long_files_go_in_pieces_and_a_write_is_whole_or_nothing(session_executor: Executor, tmp_path: Path) -> None:
    long = tmp_path / "long"
    long.write_bytes(b"0123456789" * 300_000)
    with session_executor.session(limits={"disk": "6MiB"}) as session:
        session.files.write("long", long)
        assert session.files.read("long") == long.read_bytes()
        with pytest.raises(OSError, match="space"):
            session.files.write("longer", b"x" * (8 << 20))
        assert [each.name for each in session.files.list()] == ["long"]


def test_a_download_does_not_fill_the_disk_of_this_machine(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.run("import os\nos.makedirs('wide')\nwith open('hole', 'wb') as file: file.truncate(8 << 20)")
    with pytest.raises(InvalidRequest, match="more than 1,048,576 bytes"):
        session.files.download(".", tmp_path / "one", max_bytes=1 << 20)
    assert sum(file.stat().st_size for file in (tmp_path / "one").iterdir() if file.is_file()) <= 1 << 20
    monkeypatch.setattr("redoma.sessions.folder._MAX_FILES", 20)
    session.run("for n in range(30): os.mkdir(f'wide/{n}')")
    with pytest.raises(InvalidRequest, match="more than 20 files and directories"):
        session.files.download("wide", tmp_path / "two")
    assert len(list((tmp_path / "two").iterdir())) == 20


def test_folders_go_up_and_down(session: Session, tmp_path: Path) -> None:
    (tmp_path / "up" / "in").mkdir(parents=True)
    (tmp_path / "up" / "a.txt").write_text("a")
    (tmp_path / "up" / "in" / "b.txt").write_text("b")
    assert session.files.upload(tmp_path / "up", "given") == 2
    session.run("import os; os.symlink('/etc/passwd', 'given/link'); os.mkfifo('given/pipe')")
    assert session.files.download("given", tmp_path / "down") == 2
    assert sorted(each.relative_to(tmp_path / "down").as_posix() for each in (tmp_path / "down").rglob("*")) == [
        "a.txt",
        "in",
        "in/b.txt",
    ]


def test_a_directory_can_be_watched(session: Session) -> None:
    changes = session.files.watch(every=0.05)
    session.start("for n in $(seq 200); do echo 1 > new-$n; sleep 0.1; done")  # some after the first look
    what, name = next(changes)
    assert (what, name.partition("-")[0]) == ("added", "new")
    session.files.remove(name)
    assert any(change == ("removed", name) for change in changes)
