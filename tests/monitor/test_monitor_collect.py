"""Collectors: whatever hangs, drips, floods or lies at the other end takes a bounded time, and fails alone."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from monitor_stage import executor as executor
from monitor_stage import patient as patient
from patience import SECONDS, GivesUpOn

from redoma.monitor import machine
from redoma.monitor.collect import BoundedCalls, TimedOut, collect
from redoma.monitor.model import CommandProbe, Facts, FileProbe, HttpProbe, Probe, TcpProbe
from redoma.pipeline.sync import Executor


def found(executor: Executor, probe: Probe, calls: BoundedCalls | None = None) -> tuple[Any, str]:
    facts, problems = executor.wait(collect({"it": probe}, executor.core, calls or BoundedCalls()))
    return facts["it"], problems.get("it", "")


@contextmanager
def server(answer: Callable[[socket.socket], None]) -> Iterator[tuple[str, list[bytes]]]:
    """One that reads a request and then does what it likes. Its URL, and what it was asked."""
    asked: list[bytes] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with closing(connection):
                    asked.append(connection.recv(4096))
                    answer(connection)

    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/health?full=1", asked
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(SECONDS)
    assert not thread.is_alive()


def says(text: str, status: str = "200 OK", more: str = "") -> Callable[[socket.socket], None]:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(text.encode())}\r\n{more}\r\n"
    return lambda connection: connection.sendall((head + text).encode())


def test_the_machine_tells_all_of_itself(executor: Executor) -> None:
    facts, problems = executor.wait(collect({}, executor.core, BoundedCalls()))
    assert facts.keys() == set(machine.ALWAYS)
    assert problems == {}
    assert facts["memory"]["total"] > 0
    assert 0 <= facts["memory"]["percent"] <= 100
    assert facts["cpu"]["count"] >= 1
    assert facts["processes"]["total"] > 0
    assert facts["uptime"]["seconds"] > 0
    assert any(disk["mount"] == "/" for disk in facts["disk"])
    assert all(mount["answers"] for mount in facts["mounts"])


def test_a_container_is_measured_by_what_it_is_given(tmp_path: Path) -> None:
    for folder, names in (
        (tmp_path / "v2", ("memory.max", "memory.current", "inactive_file")),
        (tmp_path / "v1" / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")),
    ):
        folder.mkdir(parents=True)
        (folder / names[0]).write_text("1000\n")
        (folder / names[1]).write_text("600\n")
        (folder / "memory.stat").write_text(f"anon 5\n{names[2]} 100\n")
    assert machine._cgroup_memory(tmp_path / "v2") == machine._cgroup_memory(tmp_path / "v1") == (1000, 500)
    (tmp_path / "v2" / "memory.max").write_text("max\n")
    assert machine._cgroup_memory(tmp_path / "v2") == (None, 0)


MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 254:0 /srv /srv\\040data rw,relatime - ext4 /dev/vda rw
24 22 254:1 / /broken rw - ext4 /dev/vdb ro,errors=remount-ro
25 22 254:2 / /meant ro - ext4 /dev/vdc ro
26 22 0:30 / /snap/x ro - squashfs /dev/loop0 ro
27 22 0:31 / /run rw - tmpfs tmpfs rw
28 22 0:32 / /var/lib/docker/overlay2/x/merged rw - overlay overlay rw
29 22 0:33 / /mnt/server rw - nfs4 server:/export rw
30 22 254:3 /c/hosts /etc/hosts rw - ext4 /dev/vdd rw
torn line"""


def test_each_file_system_that_stores_something_is_looked_at_once() -> None:
    mounts = {mount.path: mount.broke for mount in machine.storage_mounts(MOUNTS)}
    assert mounts == {"/": False, "/broken": True, "/meant": False, "/mnt/server": False}
    container = "1 0 0:40 / / rw - overlay overlay rw\n2 1 254:0 /x /etc/hosts rw - ext4 /dev/vda rw"
    assert [mount.path for mount in machine.storage_mounts(container)] == ["/"]


def test_a_file_system_that_never_answers_costs_only_itself(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, real = threading.Event(), os.statvfs

    def statvfs(path: str) -> os.statvfs_result:
        if path == "/proc":
            answered.wait()
        return real("/")

    gone = machine.Mount("/proc", "server:/export", "nfs4", False)
    monkeypatch.setattr(machine, "storage_mounts", lambda: [machine.Mount("/", "/dev/vda", "ext4", False), gone])
    monkeypatch.setattr(os, "statvfs", statvfs)
    calls = GivesUpOn("mount /proc", 0.2)
    try:
        facts, problems = executor.wait(collect({}, executor.core, calls))
        again, _ = executor.wait(collect({}, executor.core, calls))
        assert sum(thread.name == "redoma-monitor-mount /proc" for thread in threading.enumerate()) == 1
    finally:
        answered.set()
    assert problems == {}
    assert [disk["mount"] for disk in facts["disk"]] == ["/"]
    assert [mount["answers"] for mount in facts["mounts"]] == [True, False]
    assert facts["mounts"][1]["error"] == "it has not answered within 0.2 s"
    assert again["mounts"][1]["error"] == "it still hangs from an earlier round"


@pytest.mark.parametrize("error", [PermissionError, FileNotFoundError])
def test_a_file_system_that_is_not_ours_to_look_at_is_no_failure(
    executor: Executor, monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    """As a plain user finds a mount in somebody's private directory, or one below another."""

    def refuse(mount: machine.Mount) -> None:
        raise error(mount.path)

    monkeypatch.setattr(machine, "storage_mounts", lambda: [machine.Mount("/private", "/dev/vdb", "ext4", False)])
    monkeypatch.setattr(machine, "space", refuse)
    facts, problems = executor.wait(collect({}, executor.core, BoundedCalls()))
    assert (problems, facts["disk"]) == ({}, [])
    assert (facts["mounts"][0]["answers"], facts["mounts"][0]["error"]) == (True, "/private")


def test_one_fact_that_fails_is_told_and_leaves_the_others(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError(5, "Input/output error\x1b[31m")

    monkeypatch.setitem(machine.FACTS, "load", broken)
    facts, problems = executor.wait(collect({}, executor.core, BoundedCalls()))
    assert facts["load"] is None
    assert facts["memory"]
    assert problems == {"load": "[Errno 5] Input/output error"}


def test_what_work_itself_raises_is_not_taken_for_being_late() -> None:
    def slow() -> None:
        raise TimeoutError("of its own")

    late = threading.Event()

    async def both() -> None:
        with pytest.raises(TimeoutError, match="of its own"):
            await BoundedCalls().run("it", slow, SECONDS)
        with pytest.raises(TimedOut, match=r"within 0\.1 s"):
            await BoundedCalls().run("it", late.wait, 0.1)

    try:
        asyncio.run(both())
    finally:
        late.set()


async def test_what_ends_in_the_moment_its_time_is_over_has_ended() -> None:
    waiting = asyncio.ensure_future(BoundedCalls().run("x", lambda: 7, 0.05))
    await asyncio.sleep(0)  # it has begun
    for thread in threading.enumerate():
        if thread.name == "redoma-monitor-x":
            thread.join()
    time.sleep(0.1)  # noqa: ASYNC251 - a loop that is held up finds both, the answer and that it is late
    assert await waiting == 7


# --- files ---


def test_a_file_is_its_age_its_size_and_what_is_in_its_tail(executor: Executor, tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_text("ERROR old\n" * 10 + "fine\n" * 10 + "ERROR \x1b[31mred\nERROR key AKIAIOSFODNN7EXAMPLE\n")
    os.utime(log, (time.time() - 3600, time.time() - 3600))
    facts, _ = found(executor, FileProbe(path=log, tail=100, pattern="ERROR .*"))
    assert facts["exists"]
    assert facts["size"] == log.stat().st_size
    assert 3599 < facts["age"] < 3700
    assert facts["matches"] == len(facts["lines"]) == 2
    assert facts["lines"][0] == "ERROR red"
    assert "AKIA" not in facts["lines"][1]


def test_a_log_of_ten_gigabytes_is_read_at_its_end_only(executor: Executor, tmp_path: Path) -> None:
    log = tmp_path / "huge.log"
    with log.open("wb") as file:
        file.truncate(10 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"\nERROR " + b"x" * 5000 + b"\n" + b"ERROR\n" * 30)
    facts, _ = found(executor, FileProbe(path=log, pattern="ERROR"))
    assert facts["size"] > 10 << 30
    assert facts["matches"] == 31
    assert len(facts["lines"]) == 20
    short, _ = found(executor, FileProbe(path=log, tail=5500, pattern="xxx"))
    assert short["matches"] == 1
    assert len(short["lines"][0]) == 300
    log.write_bytes(b"x" * 5000 + b"\n")  # no line begins in its tail
    assert found(executor, FileProbe(path=log, tail=100, pattern="xxx"))[0]["matches"] == 1


def test_what_is_no_file_is_a_problem_and_what_is_not_there_a_fact(executor: Executor, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for odd in (tmp_path / "fifo", Path("/dev/zero"), tmp_path):
        facts, why = found(executor, FileProbe(path=odd, pattern="x"))
        assert facts is None
        assert "it is not a regular file" in why
    facts, why = found(executor, FileProbe(path=tmp_path / "none"))
    assert facts["exists"] is False
    assert why == ""


# --- endpoints ---


def test_an_endpoint_is_ok_if_it_says_what_is_expected(executor: Executor) -> None:
    with server(says('{"status": "ok\x1b[31m"}')) as (url, asked):
        facts, _ = found(executor, HttpProbe(url=url, expect='"status": "ok', timeout=SECONDS))
        other, _ = found(executor, HttpProbe(url=url, expect="^down$", timeout=SECONDS))
    assert facts["ok"]
    assert facts["status"] == 200
    assert facts["body"] == '{"status": "ok"}'
    assert facts["error"] is None
    assert asked[0].startswith(b"GET /health?full=1 HTTP/1.1\r\n")
    assert not other["ok"]
    assert other["error"] == "the body is not as expected"


def test_whoever_answers_does_not_decide_where_we_look(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    with server(says("ok")) as (elsewhere, asked):
        monkeypatch.setenv("http_proxy", elsewhere)
        with server(says("", "302 Found", f"Location: {elsewhere}\r\n")) as (url, _):
            facts, _ = found(executor, HttpProbe(url=url, timeout=SECONDS))
    assert not facts["ok"]
    assert facts["status"] == 302
    assert asked == []


def drip(head: bytes) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(b"x")
            time.sleep(0.02)

    return lambda connection: _until_gone(lambda: answer(connection))


def flood(connection: socket.socket) -> None:
    def answer() -> None:
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
        for _ in range(1024):
            connection.sendall(b"y" * (1 << 20))

    _until_gone(answer)


def _until_gone(answer: Callable[[], None]) -> None:
    with suppress(OSError):
        answer()


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.0 200 OK\r\n\r\n", b""])
def test_a_server_that_drips_is_given_up_and_hung_up_on(executor: Executor, head: bytes) -> None:
    calls = BoundedCalls()
    with server(drip(head)) as (url, _):
        facts, _ = found(executor, HttpProbe(url=url, timeout=0.3), calls)
        for thread in calls._hanging.values():
            thread.join(SECONDS)  # which would have gone on for ever
            assert not thread.is_alive()
    assert not facts["ok"]
    assert facts["error"]
    assert facts["seconds"] < SECONDS


def test_a_server_that_sends_a_gigabyte_is_read_at_its_beginning_only(executor: Executor) -> None:
    with server(flood) as (url, _):
        facts, _ = found(executor, HttpProbe(url=url, timeout=SECONDS))
    assert facts["ok"]
    assert facts["size"] == 64 * 1024
    assert len(facts["body"]) == 4000


def test_a_server_that_speaks_no_http_or_is_not_there_is_down(executor: Executor) -> None:
    with server(lambda connection: connection.sendall(b"SSH-2.0-x\r\n")) as (url, _):
        facts, _ = found(executor, HttpProbe(url=url, timeout=SECONDS))
    assert not facts["ok"]
    assert "SSH-2.0-x" in facts["error"]
    facts, _ = found(executor, HttpProbe(url=url, timeout=SECONDS))
    assert not facts["ok"]
    assert facts["error"] == "Connection refused"
    assert facts["status"] is None


def test_a_port_is_open_closed_or_never_answers(executor: Executor) -> None:
    with closing(socket.create_server(("127.0.0.1", 0), backlog=0)) as listening:
        port = listening.getsockname()[1]
        facts, _ = found(executor, TcpProbe(host="127.0.0.1", port=port, timeout=SECONDS))
        assert facts["open"]
        assert facts["error"] is None
        with ExitStack() as stack:
            for _ in range(5):  # nobody accepts, and the kernel lets the next ones wait
                each = stack.enter_context(closing(socket.socket()))
                each.setblocking(False)
                each.connect_ex(("127.0.0.1", port))
            facts, _ = found(executor, TcpProbe(host="127.0.0.1", port=port, timeout=0.2))
            assert not facts["open"]
            assert facts["error"]
    facts, _ = found(executor, TcpProbe(host="127.0.0.1", port=port, timeout=SECONDS))
    assert not facts["open"]
    assert facts["error"] == "Connection refused"


# --- commands ---


def test_a_listed_command_is_a_fact_and_any_other_a_problem(executor: Executor) -> None:
    facts, _ = found(executor, CommandProbe(run="ops:shell", command="printf 'a\\033[31mb'"))
    assert facts["stdout"] == "ab"
    assert facts["exit_code"] == 0
    assert facts["seconds"] > 0
    facts, _ = found(executor, CommandProbe(run="ops:shell", command="false"))
    assert facts["exit_code"] == 1
    facts, why = found(executor, CommandProbe(run="ops:shell", command="printf other"))
    assert facts is None
    assert "ops:shell" in why
    assert "list" in why


def test_a_command_that_hangs_is_ended(executor: Executor) -> None:
    facts, _ = found(executor, CommandProbe(run="ops:shell", command="sleep 60", timeout=0.3))
    assert facts["status"] == "timeout"
    assert facts["exit_code"] == 124


def test_facts_too_large_to_carry_are_left_out(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(machine.FACTS, "load", lambda: "x" * (1 << 20))
    facts: Facts
    facts, problems = executor.wait(collect({}, executor.core, BoundedCalls()))
    assert facts["load"] is None
    assert problems == {"load": "it is too large"}
    monkeypatch.setitem(machine.FACTS, "load", lambda: "\udcff")
    facts, problems = executor.wait(collect({}, executor.core, BoundedCalls()))
    assert "it is not plain data" in problems["load"]
