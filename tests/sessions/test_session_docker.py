"""The same session on the other backend that has them."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator

import pytest

from pace import SLOW
from redoma import Config, Executor, Session


@pytest.fixture(scope="module")
def in_container(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    from redoma.config import AuditConfig, SessionsConfig

    audit = AuditConfig(directory=tmp_path_factory.mktemp("state") / "audit")
    with Executor(Config(audit=audit, sessions=SessionsConfig(grace=60.0 * SLOW))) as executor:
        with executor.session(backend="docker", timeout=30 * SLOW) as session:
            yield session


def test_an_answer_that_ends_like_the_number_of_the_container_arrives(
    engine: str, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each container marks its last message with a random number; here the answers end as that number begins."""
    monkeypatch.setattr(secrets, "token_hex", lambda size: "1" + random.randbytes(size).hex()[1:])
    with Executor(config) as executor, executor.session(backend="docker", timeout=30 * SLOW) as session:
        assert [session.run("1").value for _ in range(3)] == [1, 1, 1]
        session.files.write("a.txt", "111")
        assert session.files.read("a.txt") == b"111"


def test_variables_values_and_displays(in_container: Session) -> None:
    assert in_container.run("x = 41").ok
    result = in_container.run("display(x)\nprint('p')\n(x + 1, b'b')")
    assert (result.value, result.stdout, result.backend) == ((42, b"b"), "p\n", "docker")
    assert result.displays[0].text == "41"
    assert "seccomp" in result.isolation.layers


def test_commands_processes_and_files(in_container: Session) -> None:
    in_container.command("cd /tmp; export LEFT=1")
    assert in_container.run("import os; os.getcwd(), os.environ['LEFT']").value == ("/tmp", "1")
    process = in_container.start("read line; echo $line")
    process.write_stdin("hi\n")
    assert process.wait() == 0
    assert process.result.stdout == "hi\n"
    in_container.files.write("a.txt", "1")
    assert in_container.files.read("a.txt") == b"1"


def test_a_time_out_interrupts_and_the_session_goes_on(in_container: Session) -> None:
    assert in_container.run("while True: pass", timeout=1).status == "timeout"
    assert in_container.run("1").value == 1
