"""One request in one container: the order and the input go in, output and the engine's verdict come out."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ...lib.errors import BackendError, BackendUnavailable
from ...models import Isolation, Request, Status, Stream, Usage
from ..base import Control, Outcome, Sink
from ..endings import Ending, not_started
from . import stub
from .container import Container
from .received import Files, LastWord

_GRACE = 10.0  # seconds that the engine has to end a killed container, before its removal is tried
_LAST_WORD = 3.0  # seconds that a stub has to end the program, so that it can send the files
_SENDING = 10.0  # seconds that the stub has to send the files
_SENDING_CPU = 2.0  # seconds of processor time that the stub may use for this, if the program has used up its own
_FIRST_LOOK, _LOOK = 0.3, 0.5  # seconds until the first look at the usage, and between two looks
_SECOND = 1_000_000_000  # the engine counts in ns
_QUIET = 0.5  # seconds without output after which an ended container is considered drained
_PASSING = 5.0  # seconds that a shell has to pass a signal on, before it gets the next
_LONG_ORDER = 1 << 20  # bytes
_WITHHELD = 0.02  # seconds without output after which what looks like the beginning of the nonce is taken for output
_NEWS = (0.0, 0.05, 0.1, 0.2, 0.4)  # pauses in seconds between queries for an OOM kill

_LOST_WITH_CONTAINER = "it was ended with its container, as happens with too many processes"
"""gVisor's kernel could not get the threads that it needs for the processes inside, and exited."""


class NotTaken(BackendError):
    """The container died before it took its order, so nothing of the request has run."""


class Run:
    """One request in one container. Call either `waiting` or `direct`, once."""

    def __init__(
        self,
        request: Request,
        sink: Sink,
        container: Container,
        isolation: Isolation,
        control: Control | None,
        *,
        env: Mapping[str, str] | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        """`env` and `files` (by absolute path) are Redoma's own, in addition to those of the request."""
        self._env, self._own_files = dict(env or {}), dict(files or {})
        self._request, self._sink, self._container = request, sink, container
        self._isolation, self._control = isolation, control
        if control is not None:
            control.isolation = isolation
        self._loop = asyncio.get_running_loop()
        self._files = Files(request.outputs, request.files) if request.outputs else None
        self._last: LastWord | None = None
        self._ending: Status | None = None
        self._flooded = self._used_up = False
        self._cpu: float | None = None
        self._memory: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._withheld_timer: asyncio.TimerHandle | None = None
        """Prints output that is withheld because it may be the beginning of a message of the stub."""
        self._exited_at: float | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._signals: asyncio.Queue[int] = asyncio.Queue()
        self._signalling = asyncio.Lock()
        self._held_signals = list[int]()
        """Signals for a paused container, which it gets with SIGCONT."""
        self._over, self._taken, self._passed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._heard = 0
        self._oom_kills = _oom_kills()

    async def waiting(self) -> Outcome:
        """Run in a container whose stub waits for its order. Raises `NotTaken` if the container died before it took the
        order.
        """
        head, contents, nonce = stub.order(self._request, self._env, self._own_files)
        self._last = LastWord(nonce, self._files)
        return await self._execute([head, *contents])

    async def direct(self) -> Outcome:
        """Start a container whose command is the program, and run it."""
        return await self._execute([])

    async def _execute(self, order: list[bytes]) -> Outcome:
        try:
            if not order:
                await self._container.start()
                self._taken.set()
            start = time.monotonic()
            self._timer = self._loop.call_later(self._request.limits.time, self._end, Status.TIMEOUT)
            try:
                pump = self._begin(self._pump())
                for work in (self._feed(order), self._watch(), self._deliver()):
                    self._begin(work)
                await self._until(pump)
            finally:
                await self._release()
            wall = (self._exited_at or time.monotonic()) - start
            if self._taken.is_set() or self._ending is not None:
                code, out_of_memory = await self._verdict()
                return self._outcome(wall, code, out_of_memory)
            # The stub reads the whole source before it takes the order. A long one may need more memory than the limit,
            # and would in the next container too: then it is a memory verdict, not a lost container.
            if len(order[0]) > _LONG_ORDER:
                code, out_of_memory = await self._verdict()
                if out_of_memory:
                    return self._outcome(wall, code, out_of_memory)
            raise NotTaken("the container was lost", why="it died while it waited", next="run it again")
        except BackendUnavailable as error:  # the run may have begun, so it must not be tried on another backend
            raise BackendError(error.what, why=error.why, next=error.next) from error

    def _begin(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        return task

    async def _until(self, pump: asyncio.Task[None]) -> None:
        """Wait until all output has arrived, the container has not ended in time, or one of our tasks has failed."""
        given_up, drained = self._begin(self._give_up()), self._begin(self._drained())
        while not (pump.done() or given_up.done() or drained.done()):
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in self._tasks if task.done()]:
                self._tasks.discard(task)
                task.result()

    async def _give_up(self) -> None:
        await self._over.wait()
        await asyncio.sleep(_GRACE + (_LAST_WORD + _SENDING if self._files is not None else 0))

    async def _drained(self) -> None:
        """Wait until the container has ended and no more output arrives. If the program has not read all its input, the
        engine keeps the connection open, so the end of the output may never be signalled.
        """
        if await self._container.exited():
            # The program has ended, so stop its clock, although output may still arrive.
            self._exited_at = time.monotonic()
            if self._timer is not None:
                self._timer.cancel()
        heard = -1
        while heard != self._heard:
            heard = self._heard
            await asyncio.sleep(_QUIET)

    async def _release(self) -> None:
        """Cancel our timers and tasks."""
        for timer in (self._timer, self._withheld_timer):
            if timer is not None:
                timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- input ---

    async def _feed(self, order: list[bytes]) -> None:
        for piece in order:
            if piece and not await self._container.write(piece):
                return
        await self._taken.wait()  # input can be sent only once, so wait until the order was taken
        if self._request.stdin and not await self._container.write(self._request.stdin):
            return
        while self._control is not None and (piece := await self._control.read()):
            if not await self._container.write(piece):
                return
        self._container.end_input()

    async def _deliver(self) -> None:
        """Pass signals on in the order in which they were sent."""
        await self._taken.wait()
        if self._control is not None:
            self._control.deliver_signals(self._signals.put_nowait)
        while True:
            await self._signal(await self._signals.get())

    async def _signal(self, number: int) -> None:
        """Deliver a signal. SIGSTOP pauses the container instead, because no pid 1 can pass it on. Signals sent to a
        paused container are held until SIGCONT: gVisor accepts none, and some engines unpause a container that is
        signalled. The end of the run also unpauses it.
        """
        async with self._signalling:
            if number == signal.SIGSTOP:
                if self._ending is None and not self._container.frozen:
                    await self._container.freeze(True)
                return
            if self._container.frozen and number not in (signal.SIGCONT, signal.SIGKILL, stub.END):
                self._held_signals.append(number)
                return
            if self._container.frozen:
                await self._container.freeze(False)
            held, self._held_signals = self._held_signals if number == signal.SIGCONT else [], []
            for each in (number, *held):
                await self._pass(each)

    async def _pass(self, number: int) -> None:
        """Send a signal and wait until the shell has passed it on. A shell that gets two at once can lose one: Bash
        leaves the first signal's handler from within the second's.
        """
        self._passed.clear()
        await self._container.signal(number)
        if self._last is None or self._request.language == "python" or number in (signal.SIGKILL, stub.END):
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(0 if self._over.is_set() or self._last.begun else _PASSING):
                await self._passed.wait()

    # --- output ---

    async def _pump(self) -> None:
        while (piece := await self._container.read()) is not None:
            stream, data = piece
            self._heard += 1
            if stream == "stdout" and self._last is not None:
                data = self._read_last_word(data, self._last)
            self._print(stream, data)
        self._print_withheld()

    def _print_withheld(self) -> None:
        if self._last is not None:
            self._print("stdout", self._last.give())

    def _read_last_word(self, data: bytes, last: LastWord) -> bytes:
        """Take what came on stdout: the program's output with the stub's messages in it. Act on the messages, and
        return the output, without an end that may be the beginning of a message: a timer prints that later."""
        had_begun, passed_before = last.begun, last.passed
        output = last.feed(data)
        if last.taken:
            self._taken.set()
        if last.begun or last.passed > passed_before:
            self._passed.set()
        if self._withheld_timer is not None:
            self._withheld_timer.cancel()
        if last.holds:
            self._withheld_timer = self._loop.call_later(_WITHHELD, self._print_withheld)
        if last.begun and not had_begun:
            self._give_time_for_files()
        return output

    def _give_time_for_files(self) -> None:
        """Handle the program's apparent end: what follows are the files, which the stub sends within a time limit of
        its own. END kills a program that learned the nonce to gain that time; the stub ignores it."""
        if self._files is not None and self._ending is None and self._timer is not None:
            self._begin(self._signal(stub.END))
            self._timer.cancel()
            self._timer = self._loop.call_later(_SENDING, self._end, Status.TIMEOUT)

    def _print(self, stream: Stream, data: bytes) -> None:
        if data and not self._flooded and not self._sink(stream, data):
            self._flooded = True  # also if the program has ended by itself meanwhile: its output was still too much
            self._end(Status.OUTPUT)

    def _end(self, ending: Status) -> None:
        if self._ending is None:
            self._ending = ending
            self._over.set()
            self._passed.set()
            self._begin(self._kill())

    async def _kill(self) -> None:
        # The stub gets time to send files only once. If the message has begun, it has had it.
        waits = self._files is not None and self._cut_short
        if waits:
            await self._signal(stub.END)
            await asyncio.sleep(_LAST_WORD)
        if waits and not self._cut_short:
            await asyncio.sleep(_SENDING)
        await self._signal(signal.SIGKILL)

    async def _watch(self) -> None:
        """Read the usage periodically, and end the run when its processor time is used up."""
        pause = _FIRST_LOOK
        while True:
            await asyncio.sleep(pause)
            pause = _LOOK
            stats = await self._container.stats()
            self._note(stats)
            over = (self._cpu or 0.0) - self._request.limits.cpu
            if over > 0 and self._last is not None:
                self._used_up = True
                self._end(Status.TIMEOUT)
                if over > _SENDING_CPU:  # the stub doesn't need that much: the program has disabled it
                    await self._signal(signal.SIGKILL)

    def _note(self, stats: dict[str, Any]) -> None:
        used = stats.get("cpu_stats", {}).get("cpu_usage", {}).get("total_usage")
        memory = stats.get("memory_stats", {})
        most = memory.get("max_usage") or memory.get("usage")  # cgroup v2 has no peak here: keep the highest value seen
        if used:
            self._cpu = used / _SECOND
        if most:
            self._memory = max(most, self._memory or 0)

    # --- outcome ---

    def _outcome(self, wall: float, code: int | None, out_of_memory: bool) -> Outcome:
        files, left_out = self._files.finish() if self._files is not None else ({}, {})
        return self._ended(code, out_of_memory).outcome(
            self._request.limits,
            isolation=self._isolation,
            usage=Usage(wall=wall, cpu=self._cpu, memory=self._memory),
            files=files,
            left_out=left_out,
        )

    async def _verdict(self) -> tuple[int | None, bool]:
        """Return the exit code, and whether the kernel's OOM killer ended something."""
        try:
            async with asyncio.timeout(_GRACE):
                code = await self._container.wait()
        except TimeoutError:
            if self._ending is None:
                raise BackendError(
                    "the container was lost", why="its output has ended, and it has not", next="see the engine's log"
                ) from None
            return None, False  # it is killed again on removal
        return code, await self._out_of_memory(code)

    async def _out_of_memory(self, code: int) -> bool:
        if await self._container.ran_out_of_memory():
            return True
        exited = self._last is not None and self._last.ended_itself
        killed = code == 128 + signal.SIGKILL and self._ending is None and not exited
        if killed and self._cut_short and not await self._container.events("kill"):
            # A killed stub sends no final message. Either the engine was asked to kill it, or the kernel did: for lack
            # of memory it kills all of gVisor where it would otherwise kill one process, and the engine doesn't always
            # learn why.
            return True
        if killed or _oom_kills() != self._oom_kills:
            # The end of the container, or of one of its children, may be reported before its reason.
            for pause in _NEWS:
                await asyncio.sleep(pause)
                if await self._container.ran_out_of_memory():
                    return True
        # A busy engine may never report it. If the kernel's OOM killer ended a process on this machine during the run,
        # and this program has used much of its memory, that was it; otherwise the program was killed by a signal.
        if not killed or _oom_kills() == self._oom_kills or await self._container.events("kill"):
            return False
        if self._last is None:
            return True  # the program is pid 1, which nothing inside can kill
        return max(self._last.peak, self._memory or 0) >= self._request.limits.memory / 2

    @property
    def _cut_short(self) -> bool:
        """Whether the stub has not sent its final message, although it outlives its program."""
        return self._last is not None and not self._last.begun

    def _ended(self, code: int | None, out_of_memory: bool) -> Ending:
        """Return how the run ended, from the engine's report and the stub's final message, if there was one."""
        flooded = self._flooded and self._ending in (None, Status.OUTPUT)
        if self._ending is not None or code is None:
            stopped, limit = self._ending or Status.KILLED, "cpu" if self._used_up else ""
            return Ending(out_of_memory=out_of_memory, flooded=flooded, stopped=stopped, limit=limit)
        number = self._signal_of(code) if code > 128 else None
        lost = self._cut_short and code != 128 + signal.SIGKILL
        broken = self._last.broken if self._last is not None else None
        # Our limit only if the program used enough to reach it; otherwise it sent itself the signal.
        cpu = number == signal.SIGXCPU and self._last is not None and not lost and not broken
        cpu = cpu and (self._cpu or 0.0) >= self._request.limits.cpu / 2
        return Ending(
            exit_code=code,
            signal=number,
            names_limit=self._last is not None and number != signal.SIGXCPU,
            out_of_memory=out_of_memory,
            flooded=flooded,
            limit="cpu" if cpu else "",
            killed=_LOST_WITH_CONTAINER if lost else "",
            broken=not_started(self._request, broken or ""),
        )

    def _signal_of(self, code: int) -> int | None:
        """Return the signal that an exit code stands for; None if it is the program's own code. Only the Python stub
        knows which it is; for the shell, codes up to that of SIGSYS count as signals, so 255 and the like don't.
        """
        if self._last is not None and self._request.language == "python":
            return None if self._last.ended_itself else code - 128
        return code - 128 if code <= 128 + signal.SIGSYS else None


def _oom_kills() -> bytes | None:
    """Return the kernel's count of OOM kills on the whole machine. If it grew, it is worth waiting for the engine's
    report. It says nothing about an engine on another machine.
    """
    try:
        with open("/proc/vmstat", "rb") as file:
            return file.read().partition(b"\noom_kill ")[2].split(b"\n", 1)[0]
    except OSError:
        return None
