"""What comes out of a cell is hostile: whatever it is, the parent neither crashes, hangs nor grows."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import socket
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pace import least_cpu
from redoma.backends.base import Outcome, Repr
from redoma.backends.jail import protocol, value, value_reading
from redoma.backends.jail.cell import Cell, Spec
from redoma.backends.jail.launch import Zygote
from redoma.backends.jail.readiness import Readinesses
from redoma.backends.jail.run import Run
from redoma.lib.errors import BackendError
from redoma.models import Isolation, Limits, Request, Status

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 warns of any thread
MiB = 1 << 20
KINDS = sorted(protocol.MAX_PAYLOAD)
LIMITS = Limits(time=60.0, output_total=MiB)
SHORT = Limits(time=1.0, output_total=MiB)
"""For those who don't end by themselves."""

frames = st.builds(protocol.frame, st.sampled_from(KINDS), st.binary(max_size=200))
lies = st.builds(  # a length that is not that of what follows
    lambda kind, size, rest: kind + struct.pack("!I", size) + rest,
    st.sampled_from(KINDS) | st.binary(min_size=1, max_size=1),
    st.integers(0, 2**32 - 1) | st.integers(0, 300),
    st.binary(max_size=300),
)
streams = st.lists(frames | lies | st.binary(max_size=300), max_size=8).map(b"".join)


# --- frames ---


@given(streams, st.lists(st.integers(1, 100), max_size=30))
def test_frames_come_out_the_same_in_whatever_pieces_they_arrive(data: bytes, sizes: list[int]) -> None:
    def read(pieces: list[bytes]) -> tuple[list[tuple[bytes, bytes]], bool]:
        reader, found = protocol.Frames(), []
        try:
            for piece in pieces:
                for frame in reader.feed(piece):
                    found.append(frame)  # noqa: PERF402 - those before the malformed one count
        except protocol.Malformed:
            return found, False
        return found, True

    pieces, rest = [], data
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    whole = read([data])
    assert read([*pieces, rest]) == whole
    assert all(len(payload) <= protocol.MAX_PAYLOAD[kind] for kind, payload in whole[0])


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.binary(max_size=100)), max_size=10))
def test_frames_that_were_sent_are_the_frames_that_come_out(sent: list[tuple[bytes, bytes]]) -> None:
    allowed = [(kind, payload[: protocol.MAX_PAYLOAD[kind]]) for kind, payload in sent]
    data = b"".join(protocol.frame(kind, payload) for kind, payload in allowed)
    assert list(protocol.Frames().feed(data)) == allowed


def test_a_frame_that_is_too_long_is_refused_before_it_is_received() -> None:
    for kind, most in protocol.MAX_PAYLOAD.items():
        with pytest.raises(protocol.Malformed):
            list(protocol.Frames().feed(kind + struct.pack("!I", most + 1)))


def test_a_frame_in_a_thousand_pieces_takes_time_in_proportion_to_its_size() -> None:
    payload = b"x" * (8 * MiB)
    data = protocol.frame(protocol.REPORT, payload)
    reader = protocol.Frames()
    start = time.process_time()
    got = [frame for at in range(0, len(data), 4096) for frame in reader.feed(data[at : at + 4096])]
    assert got == [(protocol.REPORT, payload)]
    assert time.process_time() - start < 5  # it is some 0.05; if each piece copied the whole it would be minutes


# --- values ---

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.binary(), inner, max_size=5)
        | st.sets(st.text() | st.integers(), max_size=5)
        | st.frozensets(st.binary() | st.none(), max_size=5)
    ),
    max_leaves=20,
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(
            st.sampled_from(["repr", "bytes", "int", "float", "dict", "set", "tuple", "frozenset"]) | inner, max_size=6
        )
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=30,
)


@given(plain)
def test_plain_values_come_back_as_what_they_were(given_value: Any) -> None:
    back = value_reading.decode(json.dumps(value.encode(given_value, MiB)).encode())
    assert back == given_value
    assert type(back) is type(given_value)


@given(anything)
def test_whatever_claims_to_be_a_value_is_plain_data_or_refused(data: Any) -> None:
    try:
        found = value_reading.decode(json.dumps(data).encode())
    except ValueError:
        return
    todo = [found]
    while todo:
        item = todo.pop()
        assert type(item) in (type(None), bool, int, float, str, Repr, bytes, list, tuple, set, frozenset, dict)
        if isinstance(item, dict):
            todo += [*item, *item.values()]
        elif isinstance(item, list | tuple | set | frozenset):
            todo += item


@pytest.mark.parametrize("tag", ["set", "frozenset", "dict"])
@pytest.mark.parametrize("kind", ["int", "tuple"])
def test_members_made_to_collide_do_not_occupy_the_parent(tag: str, kind: str) -> None:
    """Integers that are a multiple of 2**61-1 all have hash 0: a set of them takes a minute for 2 MiB."""
    numbers: list[Any] = [["int", hex(number * (2**61 - 1))] for number in range(1, 20_000)]
    if kind == "tuple":
        numbers = [["tuple", number] for number in numbers]
    data = [tag, *(part for number in numbers for part in ((number, 0) if tag == "dict" else (number,)))]
    start = time.process_time()
    with pytest.raises(ValueError, match="collide"):
        value_reading.decode(json.dumps(data).encode())
    assert time.process_time() - start < 3


@pytest.mark.parametrize("parts", [1, 50])
def test_many_small_sets_of_members_made_to_collide_have_one_budget(parts: int) -> None:
    members = [["tuple", *[0] * parts, ["int", hex(number * (2**61 - 1))]] for number in range(1, 30)]
    data = json.dumps(["list", *[["set", *members]] * 2000]).encode()
    with pytest.raises(ValueError, match="collide"):
        value_reading.decode(data)


FORGED = {
    "lists": b'["list"' + b',["list"]' * 700_000 + b"]",
    "lists without a tag": b"[" + b"[]," * 2_000_000 + b"[]]",
    "texts": b'["list"' + b',""' * 2_000_000 + b"]",
    "a number of many digits": b"9" * (6 * MiB),
    "nesting": b'["list",' * 800_000,
    "a text without an end": b'"' + b'\\"' * (3 * MiB),
    "a large number of parts that are none": b'["int"' + b',"0"' * 1_000_000 + b"]",
}


@pytest.mark.parametrize("data", FORGED.values(), ids=FORGED)
def test_a_report_made_to_be_slow_is_refused_before_it_is_built(data: bytes) -> None:
    """A decoder of JSON that builds everything first takes seconds, in which no other thread gets to run."""

    def refuse() -> None:
        with pytest.raises(ValueError, match=r"not a|too large|digits|Unterminated|control"):
            value_reading.decode(data)

    assert least_cpu(refuse) < 1


def test_ordinary_large_collections_are_not_taken_for_an_attack() -> None:
    for whole in (set(range(50_000)), {str(n): n for n in range(40_000)}, {(n, n + 1) for n in range(20_000)}):
        assert value_reading.decode(json.dumps(value.encode(whole, 16 * MiB)).encode()) == whole
    numbers = {n / 7 for n in range(30_000)} | {2**n for n in range(500)} | {-1, -2}
    assert value_reading.decode(json.dumps(value.encode(numbers, 16 * MiB)).encode()) == numbers


def test_values_that_are_nested_too_deep_are_refused() -> None:
    with pytest.raises(ValueError, match="too large"):
        value_reading.decode(b'["list",' * 5000 + b"null" + b"]" * 5000)


# --- a run whose init is somebody else ---


class Impostor:
    """A real process in the place of init, at the other end of the same sockets and pipes, that does what it likes."""

    def __init__(self, act: Callable[[socket.socket], None]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        zygote = object.__new__(Zygote)  # only its socket, mostly: what would reach a zygote reaches us
        zygote.places, zygote.passes_descriptors = None, False
        zygote.socket, zygote.hash_seed, zygote.changes = ours, 1, None
        self.cell = Cell(zygote, Spec(disk=MiB, files=10), frozenset(), None)
        ours.close()
        _, descriptors, _, _ = socket.recv_fds(theirs, 1 << 16, 5)
        theirs.close()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(descriptors[1])
            with socket.socket(fileno=descriptors[0]) as control:
                try:
                    act(control)
                finally:
                    os._exit(0)
        for number in descriptors:
            os.close(number)
        self.cell.handle = os.pidfd_open(self.pid)

    async def outcome(self, limits: Limits = LIMITS, **options: Any) -> Outcome:
        request = Request(code="1", limits=limits, **options)
        work = Run(request, self.cell, Isolation(), Readinesses(), {}, processes_by_rlimit=True, watched=True)
        return await asyncio.wait_for(work.execute(lambda *_: True), 120)

    def end(self) -> None:
        self.cell.kill()
        os.waitpid(self.pid, 0)
        self.cell.close()
        self.cell.close_handle()


@contextmanager
def impostor(act: Callable[[socket.socket], None]) -> Iterator[Impostor]:
    one = Impostor(act)
    try:
        yield one
    finally:
        one.end()


def saying(data: bytes, *, then: Callable[[], object] = lambda: None) -> Callable[[socket.socket], None]:
    def act(control: socket.socket) -> None:
        control.recv(1 << 16)  # the order
        control.sendall(data)
        then()

    return act


def verdict(status: int = 0, cause: int = 0, cpu_us: int = 0, memory: int = 0) -> bytes:
    return protocol.frame(protocol.VERDICT, protocol.VERDICT_PARTS.pack(status, cause, cpu_us, memory))


async def test_an_impostor_that_says_what_init_would_say_is_believed() -> None:
    """The control: the harness works."""
    report = protocol.frame(protocol.REPORT, b'{"value": ["tuple", 1, 2]}')
    with impostor(saying(report + verdict())) as it:
        outcome = await it.outcome()
    assert (outcome.status, outcome.value) == (Status.OK, (1, 2))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(streams)
def test_whatever_it_says_a_run_ends_with_an_outcome_or_a_reason(data: bytes) -> None:
    async def one() -> None:
        with impostor(saying(data)) as it:
            try:
                outcome = await it.outcome()
            except BackendError as error:
                assert error.why  # noqa: PT017 - one of two ways to end
            else:
                assert protocol.VERDICT in data  # nothing else is an outcome
                assert isinstance(outcome.status, Status)

    asyncio.run(one())


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.fixed_dictionaries(
        {
            "status": st.integers(0, 2**32 - 1) | st.integers(0, 70000),
            "cause": st.integers(0, len(protocol.CAUSES)) | st.integers(0, 2**32 - 1),
            "cpu_us": st.integers(0, 2**64 - 1),
            "memory": st.integers(0, 2**64 - 1),
        }
    ),
    st.dictionaries(st.sampled_from(["value", "exception", "error", "errno", "broken"]), anything, max_size=4),
)
def test_whatever_verdict_and_report_it_gives_a_run_ends_with_an_outcome_or_a_reason(
    told: dict[str, Any], report: dict[str, Any]
) -> None:
    async def one() -> None:
        data = protocol.frame(protocol.REPORT, json.dumps(report).encode()) + verdict(**told)
        with impostor(saying(data)) as it:
            try:
                outcome = await it.outcome()
            except BackendError:
                return
        assert outcome.status in (Status.OK, Status.ERROR, Status.TIMEOUT, Status.MEMORY, Status.KILLED)
        assert outcome.exception is None or isinstance(outcome.exception, str)
        assert outcome.error is None or isinstance(outcome.error, str)
        assert not (isinstance(outcome.usage.cpu, float) and math.isnan(outcome.usage.cpu))

    asyncio.run(one())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 100,
        b"HTTP/1.1 200 OK\r\n\r\n",
        protocol.frame(protocol.INIT),
        protocol.frame(protocol.ARMED, b"{}"),
        protocol.frame(protocol.BROKEN, b"x"),
        protocol.frame(protocol.VERDICT, b"{}"),
        protocol.frame(protocol.FILES, b""),
        protocol.frame(protocol.REPORT, b"{}") * 2 + verdict(),
        verdict(status=127),
        verdict(status=2**32 - 1),
        verdict(cause=len(protocol.CAUSES)),
        verdict()[:-3],
    ],
    ids=repr,
)
async def test_what_is_no_verdict_is_a_lost_cell(data: bytes) -> None:
    with impostor(saying(data)) as it:
        with pytest.raises(BackendError, match=r"the cell (was lost|did)"):
            await it.outcome()


async def test_the_first_verdict_counts() -> None:
    with impostor(saying(verdict(status=3 << 8) + verdict(status=0))) as it:
        outcome = await it.outcome()
    assert (outcome.status, outcome.exit_code) == (Status.ERROR, 3)


async def test_silence_ends_with_the_time_limit() -> None:
    with impostor(saying(b"", then=signal.pause)) as it:
        start = time.monotonic()
        outcome = await it.outcome(SHORT)
    assert outcome.status is Status.TIMEOUT
    assert time.monotonic() - start < 15  # the limit, and a second of grace


async def test_half_a_frame_and_silence_ends_with_the_time_limit() -> None:
    with impostor(saying(protocol.frame(protocol.REPORT, b"x" * 1000)[:500], then=signal.pause)) as it:
        assert (await it.outcome(SHORT)).status is Status.TIMEOUT


def flooding(data: bytes) -> Callable[[socket.socket], None]:
    def act(control: socket.socket) -> None:
        while True:
            control.sendall(data)

    return act


@pytest.mark.parametrize(
    "data",
    [
        protocol.frame(protocol.REPORT, json.dumps({"error": "x" * MiB}).encode()),
        protocol.frame(protocol.FILES),
    ],
    ids=["reports", "workspaces"],
)
async def test_the_same_again_and_again_takes_no_more_memory(data: bytes) -> None:
    with impostor(flooding(data)) as it:
        tracemalloc.start()
        try:
            with_or_without = await asyncio.gather(it.outcome(SHORT, outputs=("**",)), return_exceptions=True)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert isinstance(with_or_without[0], Outcome | BackendError)
    assert peak < 120 * MiB


async def test_descriptors_that_come_along_are_not_kept() -> None:
    def act(control: socket.socket) -> None:
        control.recv(1 << 16)
        numbers = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
        for _ in range(5):
            socket.send_fds(control, [protocol.frame(protocol.FILES)], numbers)
        control.sendall(verdict())

    with impostor(act) as it:
        before = len(os.listdir("/proc/self/fd"))
        assert (await it.outcome()).status is Status.OK
        assert len(os.listdir("/proc/self/fd")) <= before


async def test_a_second_workspace_is_refused_and_none_is_kept() -> None:
    def act(control: socket.socket) -> None:
        control.recv(1 << 16)
        for _ in range(5):
            socket.send_fds(control, [protocol.frame(protocol.FILES)], [os.open("/", os.O_RDONLY)])

    with impostor(act) as it:
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(BackendError, match="more descriptors than were asked for"):
            await it.outcome(outputs=("**",))
        assert len(os.listdir("/proc/self/fd")) <= before


async def test_a_workspace_that_is_no_directory_brings_nothing_back() -> None:
    def act(control: socket.socket) -> None:
        control.recv(1 << 16)
        socket.send_fds(control, [protocol.frame(protocol.FILES)], [os.open("/etc/passwd", os.O_RDONLY)])
        control.sendall(verdict())

    with impostor(act) as it:
        outcome = await it.outcome(outputs=("**",))
    assert (outcome.files, list(outcome.left_out)) == ({}, ["."])


async def test_without_its_workspace_a_run_that_was_to_return_files_is_no_success() -> None:
    with impostor(saying(protocol.frame(protocol.FILES) + verdict())) as it:
        with pytest.raises(BackendError, match="the files of the run can't be returned"):
            await it.outcome(outputs=("**",))
