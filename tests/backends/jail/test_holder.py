"""The holder, a process that shares the guest's memory and only waits: killed, taken over, multiplied, it gains a guest
nothing that a fork would not."""

from __future__ import annotations

import asyncio
import errno
import os
import platform
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from jail_insides import behind, children_of, eventually, is_alive, jail, pool_of, run

from redoma import AsyncExecutor, Status

HOLDER = 3
TAKE_OVER = """
import ctypes, mmap, os, signal, struct, time
libc = ctypes.CDLL(None, use_errno=True)
place = ctypes.cast(libc.syscall, ctypes.c_void_p).value
page = place & -4096
assert libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(8192), 7) == 0, 'mprotect'
code = ctypes.string_at(place, 64)
where = place + code.index(b'\\x0f\\x05')  # the system call that it waits in is made again after a stop

def take_over(program):
    ctypes.memmove(where, program, len(program))
    os.kill(3, signal.SIGSTOP)
    time.sleep(0.05)
    os.kill(3, signal.SIGCONT)
    time.sleep(0.05)

def state(pid=3):
    return open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[0]
"""
BURN = "take_over(b'\\xeb\\xfe')\n"  # it jumps to itself
x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the holder is taken over with code for x86-64")


@pytest.fixture(params=["group", "watched"])
async def executor(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AsyncExecutor]:
    """One whose cells have their memory limited by a control group, and one where init watches it."""
    made, _ = jail(tmp_path, minimum=1, without=["memory"] if request.param == "watched" else [])
    async with made:
        yield made


async def test_it_is_there_has_no_descriptors_and_is_no_child_of_the_guest(executor: AsyncExecutor) -> None:
    code = """
import os
try: waited = os.waitpid(-1, os.WNOHANG)
except ChildProcessError: waited = None
[open('/proc/3/stat').read().rpartition(')')[2].split()[1], os.listdir('/proc/3/fd'), waited, os.getpid()]
"""
    result = await run(executor, code)
    assert result.value == ["1", [], None, 2]


async def test_without_it_a_run_ends_as_ever(executor: AsyncExecutor) -> None:
    result = await run(executor, "import os, signal, sys\nos.kill(3, signal.SIGKILL)\nprint('here')\nsys.exit(7)")
    assert (result.status, result.exit_code, result.stdout) == (Status.ERROR, 7, "here\n")


async def test_what_a_child_prints_before_the_end_is_kept_and_the_child_is_dead(executor: AsyncExecutor) -> None:
    child = "if os.fork() == 0:\n    os.write(1, b'child\\n')\n    os.write(theirs, b'x')\n    time.sleep(60)\n"
    code = f"import os, time\nours, theirs = os.pipe()\n{child}os.read(ours, 1)\n'done'"
    result = await run(executor, code)
    assert (result.status, result.stdout, result.value) == (Status.OK, "child\n", "done")
    assert result.usage.wall is not None
    assert result.usage.wall < 50


async def test_it_ends_by_itself_when_the_guest_executes_a_program(executor: AsyncExecutor) -> None:
    assert (
        await run(executor, "import os, time\ntime.sleep(0.5)\nos.path.exists('/proc/3')")
    ).value is True  # it stays
    wait = "for i in {1..100}; do [ -e /proc/3 ] || break; read -t 0.05 <> <(:); done; [ -e /proc/3 ] || echo gone"
    result = await executor.run(wait, "bash", limits={"processes": 3})
    assert result.stdout == "gone\n", result


async def test_where_no_program_can_be_executed_the_run_still_ends(executor: AsyncExecutor) -> None:
    result = await executor.command(["no-such-program"])
    assert result.status is not Status.OK
    assert "no-such-program" in (result.error or ""), result
    assert (await run(executor, "6 * 7")).value == 42


@x86
async def test_taken_over_it_ends_with_its_cell(tmp_path: Path) -> None:
    executor, backend = jail(tmp_path, minimum=1)
    async with executor:
        assert (await run(executor)).value == 2
        assert eventually(lambda: len(pool_of(backend)._armed) == 1, 30)
        init = behind(pool_of(backend)._armed[0].handle)
        inside = children_of(init)
        result = await run(executor, TAKE_OVER + BURN + "state()")
        assert (result.status, result.value) == (Status.OK, "R")  # it ran what it was made to
        assert len(inside) == 2
        assert eventually(lambda: not any(map(is_alive, [init, *inside])), 30)


CALL = """
answer = ctypes.c_int64(1)

def call(number, *arguments):
    'Returns what a system call that the holder makes returns, or None if it never returns.'
    program = b''
    for register, value in zip((b'\\x48\\xbf', b'\\x48\\xbe', b'\\x48\\xba', b'\\x49\\xba'), arguments):
        program += register + struct.pack('<Q', value)
    program += b'\\xb8' + struct.pack('<I', number) + b'\\x0f\\x05'
    program += b'\\x48\\xa3' + struct.pack('<Q', ctypes.addressof(answer)) + b'\\xeb\\xfe'
    take_over(program)
    return None if answer.value == 1 else answer.value
path = ctypes.create_string_buffer(b'/usr/bin/python3')
name = ctypes.addressof(path)
"""
AT_FDCWD = 2**32 - 100


@x86
@pytest.mark.parametrize(
    ("what", "answer"),
    [
        ("call(39)", HOLDER),  # getpid, which shows that the calls are made
        ("call(57)", -errno.EAGAIN),  # fork
        ("call(56, 0x10f00, name, name)", -errno.EAGAIN),  # a thread
        (f"call(257, {AT_FDCWD}, name, 0)", -errno.EMFILE),  # openat
        ("call(22, name)", -errno.EMFILE),  # pipe
        ("call(9, 0, 4096, 3, 0x22)", -errno.ENOMEM),  # mmap
    ],
    ids=["nothing", "fork", "thread", "open", "pipe", "memory"],
)
async def test_taken_over_it_can_make_or_open_nothing(executor: AsyncExecutor, what: str, answer: int) -> None:
    result = await run(executor, f"{TAKE_OVER}{CALL}{what}")
    assert (result.status, result.value) == (Status.OK, answer), result


async def test_if_the_guest_ends_before_init_reads_its_order_its_time_is_counted(tmp_path: Path) -> None:
    executor, backend = jail(tmp_path, minimum=1, without=["memory"])  # so that no control group counts it
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    async with executor:
        assert (await run(executor)).value == 2
        assert eventually(lambda: len(pool_of(backend)._armed) == 1, 30)
        init = behind(pool_of(backend)._armed[0].handle)
        (guest, *_) = children_of(init)
        os.kill(init, signal.SIGSTOP)
        running = asyncio.create_task(run(executor, burn))
        await asyncio.to_thread(eventually, lambda: not is_alive(guest), 30)
        os.kill(init, signal.SIGCONT)
        result = await running
    assert result.status is Status.OK, result
    assert result.usage.cpu is not None
    assert 0.4 < result.usage.cpu < 5, "all of it, and what it used before its run, which can't be told apart"


@x86
async def test_made_to_execute_a_program_it_is_dead(executor: AsyncExecutor) -> None:
    sleep = "arguments = (ctypes.c_char_p * 3)(b'sleep', b'60', None)\npath.value = b'/usr/bin/sleep'\n"
    code = f"{TAKE_OVER}{CALL}{sleep}call(59, name, ctypes.addressof(arguments), 0)\nos.path.exists('/proc/3')"
    result = await run(executor, code)
    assert (result.status, result.value) == (Status.OK, False), result


@x86
async def test_taken_over_its_processor_time_counts(executor: AsyncExecutor) -> None:
    result = await run(executor, TAKE_OVER + BURN + "time.sleep(60)", limits={"cpu": 1, "time": 50})
    assert result.status is Status.TIMEOUT
    assert "cpu" in (result.error or "").lower() or "processor" in (result.error or "").lower()
