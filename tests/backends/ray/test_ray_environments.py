"""Environments travel to nodes that don't have them: once, whole, and verified."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from local_cluster import LocalCluster, LocalNode

from redoma import AsyncExecutor, Config, EnvironmentProblem, Result, Status
from redoma.backends.jail import JailBackend
from redoma.backends.ray import protocol
from redoma.config import AuditConfig
from redoma.environments import Environment, Store, this_python
from redoma.environments.transfer import Arrival, packed

SITE = f"lib/python3.{this_python().split('-')[1][1:]}/site-packages"
LARGE = 6 << 20  # more than one piece


def made(store: Store, files: dict[str, bytes], name: str = "data") -> Environment:
    """An environment of these files, as an install leaves it."""
    with store.changing(name), store.new() as new:
        for number, (path, data) in enumerate(files.items()):
            (new.stage / str(number)).write_bytes(data)
            sha256 = hashlib.sha256(data).hexdigest()
            new.file(path, str(number), sha256, len(data), executable=path.startswith("bin/"))
        environment = Environment(
            name=name, requirements=("x",), python=this_python(), digest=new.keep(), created=datetime.now(UTC)
        )
        store.put(environment)
    return environment


FILES = {
    f"{SITE}/greeting.py": b"word = 'hello'\n",
    f"{SITE}/large.bin": os.urandom(1 << 10) * (LARGE >> 10),
    "bin/greet": b"#!/bin/sh\necho hello\n",
}


def digests(store: Store) -> list[str]:
    return sorted(os.listdir(store.content))


def arrive(store: Store, digest: str, pieces: Iterator[bytes]) -> None:
    arrival = Arrival(store, digest)
    try:
        for piece in pieces:
            arrival.write(piece)
        arrival.finish()
    finally:
        arrival.close()


def test_an_environment_that_was_sent_is_the_same(tmp_path: Path) -> None:
    here, there = Store(tmp_path / "here"), Store(tmp_path / "there")
    digest = made(here, FILES).digest
    arrive(there, digest, packed(here, digest))
    assert digests(there) == [digest]
    (record,) = there.all()
    assert (record.digest, record.files, record.fits) == (digest, 3, True)
    assert (there.path(digest) / SITE / "greeting.py").read_bytes() == FILES[f"{SITE}/greeting.py"]
    assert os.access(there.path(digest) / "bin/greet", os.X_OK)
    assert sorted(os.listdir(there.directory)) == ["content", "names"]


def archive(*members: tuple[str, bytes, bytes]) -> bytes:
    """An archive with these names, kinds and contents."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as out:
        for name, kind, data in members:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, len(data), "/etc/hostname"
            out.addfile(info, io.BytesIO(data))
    return file.getvalue()


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (archive(("../../outside", tarfile.REGTYPE, b"x")), "not a file below it"),
        (archive(("/tmp/outside", tarfile.REGTYPE, b"x")), "not a file below it"),
        (archive(("lib/link", tarfile.SYMTYPE, b"")), "not a file below it"),
        (archive(("lib/a.py", tarfile.REGTYPE, b"another")), "not those of its digest"),
        (b"no archive", "can't be kept"),
        (archive(("lib/a.py", tarfile.REGTYPE, b"cut off" * 1000))[:1500], "can't be kept"),
    ],
    ids=["parent", "absolute", "link", "other content", "no archive", "cut off"],
)
def test_what_is_not_that_environment_is_refused_and_leaves_nothing(tmp_path: Path, stream: bytes, why: str) -> None:
    store = Store(tmp_path / "there")
    with pytest.raises(EnvironmentProblem) as raised:
        arrive(store, "0" * 64, iter([stream]))
    assert why in str(raised.value)
    assert digests(store) == []
    assert store.all() == []
    assert sorted(os.listdir(tmp_path)) == ["there"]
    assert sorted(os.listdir(store.directory)) == ["content", "names"]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    state = tmp_path / "state"
    return Config(audit=AuditConfig(directory=state / "audit"), state=state)


@pytest.fixture
def here(config: Config) -> Store:
    assert config.state is not None
    return Store(config.state / "environments")


def node(cluster: LocalCluster, store: Store, name: str = "one", **options: Any) -> LocalNode:
    """A node with real cells and its own environments."""

    def found() -> frozenset[str]:
        return frozenset(os.listdir(store.content)) if store.content.exists() else frozenset()

    jail = JailBackend(environments=store.content)
    options = {"receive": functools.partial(Arrival, store), "python": this_python(), **options}
    return cluster.add(name, {"jail": jail}, environments=found, **options)


def sender(here: Store, sent: list[str]) -> Callable[[str], Callable[[], Iterator[bytes]] | None]:
    def of(digest: str) -> Callable[[], Iterator[bytes]] | None:
        def pieces() -> Iterator[bytes]:
            sent.append(digest)
            return packed(here, digest)

        return pieces if here.path(digest).is_dir() else None

    return of


async def run(executor: AsyncExecutor, code: str) -> Result:
    return await executor.run(code, backend="ray", environment="data", policy="none")


GREETS = "import greeting; greeting.word"


async def test_an_environment_travels_to_a_node_once(
    cluster: LocalCluster, config: Config, here: Store, tmp_path: Path
) -> None:
    there = Store(tmp_path / "there")
    digest = made(here, FILES).digest
    node(cluster, there)
    sent: list[str] = []
    backend = cluster.backend(packed=sender(here, sent), python=this_python())
    async with AsyncExecutor(config, backends=[backend]) as executor:
        results = await asyncio.gather(*(run(executor, GREETS) for _ in range(3)))
        assert [(each.status, each.value) for each in results] == [(Status.OK, "hello")] * 3
        assert (await run(executor, GREETS)).value == "hello"
    assert sent == [digest]
    assert digests(there) == [digest]


async def test_a_run_goes_to_a_node_that_has_its_environment(
    cluster: LocalCluster, config: Config, here: Store, tmp_path: Path
) -> None:
    without, having = Store(tmp_path / "without"), Store(tmp_path / "having")
    made(here, FILES)
    made(having, FILES)
    node(cluster, without, "a")
    node(cluster, having, "b")
    sent: list[str] = []
    backend = cluster.backend(packed=sender(here, sent), python=this_python())
    async with AsyncExecutor(config, backends=[backend]) as executor:
        while len(backend._connected().links) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert (await run(executor, GREETS)).value == "hello"
    assert sent == []


async def test_an_environment_that_can_not_arrive_is_an_error_and_not_a_loop(
    cluster: LocalCluster, config: Config, here: Store, tmp_path: Path
) -> None:
    there = Store(tmp_path / "there")
    digest = made(here, FILES).digest
    node(cluster, there)

    def damaged(digest: str) -> Callable[[], Iterator[bytes]]:
        return lambda: iter([b"no archive"])

    async with AsyncExecutor(config, backends=[cluster.backend(packed=damaged, python=this_python())]) as executor:
        result = await run(executor, GREETS)
        assert (result.status, "can't be kept" in str(result.error)) == (Status.FAILED, True)
    with there.changing(f"cluster-{digest[:16]}"):  # another process receives the same, and never ends
        backend = cluster.backend(packed=sender(here, []), python=this_python())
        async with AsyncExecutor(config, backends=[backend]) as executor:
            result = await run(executor, GREETS)
            assert (result.status, "doesn't have the environment" in str(result.error)) == (Status.FAILED, True)
    assert digests(there) == []


async def test_a_node_of_another_interpreter_gets_no_environment(
    cluster: LocalCluster, config: Config, here: Store, tmp_path: Path
) -> None:
    made(here, FILES)
    node(cluster, Store(tmp_path / "there"), python="cpython-313-linux-x86_64")
    backend = cluster.backend(packed=sender(here, []), python=this_python())
    async with AsyncExecutor(config, backends=[backend]) as executor:
        result = await run(executor, GREETS)
    assert "doesn't offer the environment data" in str(result.error)


async def test_a_run_that_waits_for_its_environment_can_be_cancelled(
    cluster: LocalCluster, config: Config, here: Store, tmp_path: Path
) -> None:
    made(here, FILES)
    node(cluster, Store(tmp_path / "there"))
    reading, going_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow(digest: str) -> Callable[[], Iterator[bytes]]:
        def pieces() -> Iterator[bytes]:
            loop.call_soon_threadsafe(reading.set)
            going_on.wait(60)
            yield from packed(here, digest)

        return pieces

    async with AsyncExecutor(config, backends=[cluster.backend(packed=slow, python=this_python())]) as executor:
        task = asyncio.create_task(run(executor, GREETS))
        await reading.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        going_on.set()
        assert (await run(executor, GREETS)).value == "hello"


async def test_a_run_whose_node_is_lost_while_it_gets_the_environment_is_tried_on_another(
    cluster: LocalCluster, config: Config, here: Store, tmp_path: Path
) -> None:
    first, second = Store(tmp_path / "first"), Store(tmp_path / "second")
    digest = made(here, FILES).digest
    one = node(cluster, first, "one")
    sent, half, going_on = list[str](), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def halting(digest: str) -> Callable[[], Iterator[bytes]]:
        def pieces() -> Iterator[bytes]:
            sent.append(digest)
            for piece in packed(here, digest):
                yield piece
                if len(sent) == 1:
                    loop.call_soon_threadsafe(half.set)
                    going_on.wait(60)

        return pieces

    async with AsyncExecutor(config, backends=[cluster.backend(packed=halting, python=this_python())]) as executor:
        task = asyncio.create_task(run(executor, GREETS))
        await half.wait()
        while not one.node._arrivals._arriving:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        node(cluster, second, "two")
        one.kill()
        going_on.set()
        result = await task
    assert (result.status, result.value, len(sent)) == (Status.OK, "hello", 2)
    assert (digests(first), digests(second)) == ([], [digest])


_RECEIVES = """
import sys, time
from pathlib import Path
from redoma.environments import Store
from redoma.environments.transfer import Arrival
arrival = Arrival(Store(Path(sys.argv[1])), sys.argv[2])
arrival.write(b"x" * 100_000)
print("half", flush=True)
time.sleep(600)
"""


def test_what_a_killed_node_had_of_an_environment_is_swept(tmp_path: Path) -> None:
    here, there = Store(tmp_path / "here"), Store(tmp_path / "there")
    digest = made(here, FILES).digest
    command = [sys.executable, "-c", _RECEIVES, str(there.directory), digest]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half\n"
        process.kill()
    assert len(os.listdir(there.directory)) == 3  # the control: it did leave something
    other = made(here, {"bin/other": b"1"}, "other").digest
    arrival = Arrival(there, other)  # whichever comes next
    try:
        assert len(os.listdir(there.directory)) == 3  # its own
    finally:
        arrival.close()
    arrive(there, digest, packed(here, digest))
    assert (digests(there), sorted(os.listdir(there.directory))) == ([digest], ["content", "names"])


async def test_a_run_does_not_wait_for_an_environment_whose_sender_is_gone(
    cluster: LocalCluster, config: Config, here: Store, tmp_path: Path
) -> None:
    """Another client began to send it, and is never heard of again: this one sends it itself."""
    there = Store(tmp_path / "there")
    digest = made(here, FILES).digest
    receiving = node(cluster, there, lease=3.0).node

    async def begin() -> None:
        welcome = await receiving._answer(protocol.NO_LINK, protocol.Hello())
        assert isinstance(welcome, protocol.Welcome)
        part = protocol.EnvironmentPart(digest=digest, data=next(packed(here, digest)))
        await receiving._answer(welcome.link, protocol.Send(number=1, orders=(part,)))

    cluster.on_node(begin)
    sent = list[str]()
    backend = cluster.backend(packed=sender(here, sent), python=this_python())
    async with AsyncExecutor(config, backends=[backend]) as executor:
        task = asyncio.create_task(run(executor, GREETS))
        while not any(link.runs for link in receiving._links.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert sent == []  # it waits for the other
        assert (await task).value == "hello"
    assert (sent, digests(there)) == ([digest], [digest])


async def test_an_environment_that_is_sent_twice_in_a_row_is_kept(
    cluster: LocalCluster, here: Store, tmp_path: Path
) -> None:
    """As happens if the node says that it doesn't have it in the moment in which it arrives."""
    there = Store(tmp_path / "there")
    digest = made(here, FILES).digest
    receiving = node(cluster, there).node
    once = (*(protocol.EnvironmentPart(digest=digest, data=data) for data in packed(here, digest)),)
    end = protocol.EnvironmentEnd(digest=digest)

    async def send() -> None:
        welcome = await receiving._answer(protocol.NO_LINK, protocol.Hello())
        assert isinstance(welcome, protocol.Welcome)
        await receiving._answer(welcome.link, protocol.Send(number=1, orders=(*once, end, *once, end)))
        await receiving._answer(welcome.link, protocol.Bye())  # waits until it is kept

    cluster.on_node(send)
    assert digests(there) == [digest]


async def test_a_run_that_was_refused_just_before_its_environment_arrived_does_not_send_it_again(
    cluster: LocalCluster, config: Config, here: Store, tmp_path: Path
) -> None:
    there = Store(tmp_path / "there")
    digest = made(here, FILES).digest
    receiving = node(cluster, there).node
    reading, going_on, told = threading.Event(), threading.Event(), threading.Event()
    sent: list[str] = []
    told.set()
    original = receiving._news

    async def late(link: Any, seen: int) -> protocol.News:
        news = await original(link, seen)
        await asyncio.to_thread(told.wait, 60)
        return news

    receiving._news = late  # type: ignore[method-assign]

    def slow(digest: str) -> Callable[[], Iterator[bytes]]:
        def pieces() -> Iterator[bytes]:
            sent.append(digest)
            reading.set()
            going_on.wait(60)
            yield from packed(here, digest)

        return pieces

    async with AsyncExecutor(config, backends=[cluster.backend(packed=slow, python=this_python())]) as executor:
        first = asyncio.create_task(run(executor, GREETS))
        await asyncio.to_thread(reading.wait, 60)
        told.clear()
        second = asyncio.create_task(run(executor, GREETS))
        while not any(link.taken == 2 for link in receiving._links.values()):  # noqa: ASYNC110 - both were refused
            await asyncio.sleep(0.01)
        going_on.set()
        while not there.all():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        told.set()
        assert [(await each).value for each in (first, second)] == ["hello", "hello"]
    assert sent == [digest]


async def test_an_environment_that_can_not_be_written_fails_with_that_reason_to_its_end(
    cluster: LocalCluster, here: Store, tmp_path: Path
) -> None:
    there, digest = Store(tmp_path / "there"), made(here, FILES).digest
    opened = list[Arrival]()

    class Full(Arrival):
        def write(self, data: bytes) -> None:
            opened.append(self)
            raise self._unusable("the disk is full")

    receiving = node(cluster, there, receive=functools.partial(Full, there)).node
    part = protocol.EnvironmentPart(digest=digest, data=b"x")

    async def send() -> None:
        welcome = await receiving._answer(protocol.NO_LINK, protocol.Hello())
        assert isinstance(welcome, protocol.Welcome)
        orders = (
            part,
            part,
            protocol.EnvironmentEnd(digest=digest),
            protocol.EnvironmentEnd(digest=digest, whole=False),
        )
        await receiving._answer(welcome.link, protocol.Send(number=1, orders=orders))
        await receiving._answer(welcome.link, protocol.Bye())

    cluster.on_node(send)
    assert len(opened) == 1
