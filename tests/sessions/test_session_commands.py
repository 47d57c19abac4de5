"""Commands, processes in the background, and files of a session."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pace import SLOW
from redoma import Config, Executor, InvalidRequest, Refused, Session
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
