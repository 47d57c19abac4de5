"""The user's own service: it makes `redoma run` warm. See `warm` for the other end.

Theory of operation. One process loads Redoma once, and makes one throwaway run so that everything a run needs is there.
It then keeps a few forks of itself waiting, the *spares*; each has started an interpreter for a cell. Whoever connects
is answered by a spare, which takes over its arguments, environment, directory, streams, umask and terminal, runs the
command line's own code, and exits. So a run finds the configuration, the policy and the terminal that it would have
found without a service, and nothing of one run is left for the next.

    service ── fork ─▶ spare ── accept, SO_PEERCRED ─▶ is it like us? ─ no ─▶ "N": the caller does it by itself
                         │                                   └─ yes ─▶ "Y", becomes the caller, runs, exit status
                         └── an interpreter for a cell, started ahead

Some attributes of a process can't be reproduced: user and groups, capabilities, limits, namespaces, seccomp, priority,
CPU affinity. If one of them differs, the caller is refused. Sandboxed code that can reach the socket differs in its
filter, its namespaces or both. The control group is the service's, not the caller's.
"""

from __future__ import annotations

import gc
import io
import marshal
import os
import select
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from redoma.lib.errors import ConfigError
from redoma.lib.unix_socket import listen_private

from . import warm

if TYPE_CHECKING:
    from redoma.config import Config

SPARES = 2
_REFILL = 0.3
"""Seconds before a spare is replaced while another waits: making one takes time from the run that has just begun."""
_RETRY = 5.0
"""Seconds before a spare is made after one has failed: whatever is wrong may stay wrong."""
_MAX_MESSAGE = 8 << 20
_PATIENCE = 5.0
"""Seconds that a caller has to say what they want."""
_SAME = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
_NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time")
_SO_PEERPIDFD = 77
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class NotTaken(Exception):
    """The caller has to run its command itself: something about its process can't be reproduced here."""


class SaidNothing(Exception):
    """The caller went away without a word: it only wanted to know whether somebody listens."""


# --- the service ---


def listening(path: Path | None) -> tuple[socket.socket, Path | None]:
    """Return the socket to listen on, and its path if we made it: systemd may have passed one (`LISTEN_FDS`).

    Raises `ConfigError`.
    """
    if os.environ.get("LISTEN_PID") == str(os.getpid()):
        if os.environ.get("LISTEN_FDS") != "1":
            raise ConfigError(
                "the service takes one socket",
                why=f"systemd passes {os.environ.get('LISTEN_FDS')}",
                next="have one ListenStream in its .socket unit",
            )
        passed = socket.socket(fileno=3)
        if passed.family != socket.AF_UNIX or passed.type != socket.SOCK_STREAM:
            raise ConfigError("the service takes a Unix socket", why="systemd passes another", next="use a path")
        for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
            os.environ.pop(name, None)
        passed.setblocking(True)
        return passed, None
    place = Path(path or warm.socket_path())
    if not place.is_absolute():
        raise ConfigError("there is no place for the socket", why="HOME is not set", next="name one with --socket")
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = listen_private(place)
    made.listen(64)
    return made, place


def serve(path: Path | None, ready: Callable[[str], None], say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. `ready` is called once callers are answered, `say` with what an operator should
    know. Raises `ConfigError` if it can't listen."""
    at, made = listening(path)
    try:
        service = _Service(at, prepare(), say)
        ready(str(made or at.getsockname()))
        service.run()
    finally:
        at.close()
        if made is not None:
            made.unlink(missing_ok=True)


def prepare() -> Config:
    """Load everything that runs need, by making some that are recorded elsewhere than the user's. Returns the
    configuration that most runs will have: that of the directory in which the service was started.
    """
    import tempfile

    from redoma.approval import console
    from redoma.config import AuditConfig, Config, load
    from redoma.frontends import shapes
    from redoma.lib import extras
    from redoma.lib.errors import RedomaError
    from redoma.pipeline.sync import Executor

    from . import app, eval, options, plain, result, run, state  # noqa: A004 - the command of that name

    _ = app, console, eval, extras, options, plain, result, run, shapes, state
    with tempfile.TemporaryDirectory(prefix="redoma-user-service-") as place:
        with Executor(Config(audit=AuditConfig(directory=Path(place) / "audit"))) as executor:
            executor.run("print('ready'); 6 * 7", backend="jail")
            executor.run("raise ValueError", backend="jail")
            executor.run("echo ready | cat", "bash", backend="jail")
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join(10)
    try:
        config = load()
    except RedomaError:  # each run reports what is wrong with it
        config = Config(audit=AuditConfig(directory=Path("/"), enabled=False))
    gc.collect()
    gc.freeze()
    return config


class _Service:
    """The parent process: keeps spares ready and reaps them."""

    def __init__(self, at: socket.socket, config: Config, say: Callable[[str], None]) -> None:
        self._at, self._config, self._say = at, config, say
        self._files = _loaded_files()
        self._news, self._tell = os.pipe2(os.O_CLOEXEC)
        self._children: dict[int, int] = {}
        """Process → its pidfd."""
        self._waiting: set[int] = set()
        self._stopping = False

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        wake, woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(woken)
        refill_at = 0.0
        while not self._stopping:
            if len(self._waiting) < SPARES and time.monotonic() >= refill_at:
                self._fork()
                continue
            poll = select.poll()
            for descriptor in (self._news, wake, *self._children.values()):
                poll.register(descriptor, select.POLLIN)
            left = refill_at - time.monotonic() if len(self._waiting) < SPARES else None
            happened = {number for number, _ in poll.poll(None if left is None else 1 + 1000 * max(0.0, left))}
            if wake in happened:
                with suppress(BlockingIOError):
                    os.read(wake, 100)
            if self._news in happened:
                self._read_news()
            if failed := self._reap(happened):
                self._say(f"{failed} of the processes that wait for a caller ended too soon")
            if happened:
                refill_at = time.monotonic() + (_RETRY if failed else _REFILL if self._waiting else 0.0)
        signal.set_wakeup_fd(-1)
        self._end()

    def _stop(self, number: int, frame: object) -> None:
        self._stopping = True

    def _read_news(self) -> None:
        """Read what spares report: one has been taken, or something is wrong."""
        for line in os.read(self._news, 65536).decode("utf-8", "replace").splitlines():
            number, _, what = line.partition(" ")
            if what == "taken":
                self._waiting.discard(int(number))
            elif what == "changed":
                self._say("Redoma has been changed since this was started: it ends; start it again")
                self._stopping = True
            else:
                self._say(f"a caller was not taken: {what}")

    def _reap(self, ended: set[int]) -> int:
        """Reap the children whose pidfd is among these. Returns how many of them no caller had taken."""
        failed = 0
        for child, pidfd in list(self._children.items()):
            if pidfd in ended:
                os.waitpid(child, 0)
                os.close(pidfd)
                del self._children[child]
                failed += child in self._waiting
                self._waiting.discard(child)
        return failed

    def _fork(self) -> None:
        child = os.fork()
        if child == 0:
            try:
                _Spare(self._at, self._tell, self._files, self._config).wait()
            finally:
                os._exit(warm.GONE)
        self._children[child] = os.pidfd_open(child)
        self._waiting.add(child)

    def _end(self) -> None:
        """Kill the spares, and wait for those that run a command."""
        if select.select([self._news], [], [], 0)[0]:  # one may have been taken just now
            self._read_news()
        for child in self._waiting:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        for child, pidfd in self._children.items():
            os.waitpid(child, 0)
            os.close(pidfd)


def _loaded_files() -> dict[str, tuple[int, int]]:
    """Return file → time of its last change and its size, for every module of Redoma that is loaded."""
    files = [getattr(module, "__file__", None) for name, module in sys.modules.items() if name.startswith("redoma")]
    return {file: _state(file) for file in files if file}


def _state(file: str) -> tuple[int, int]:
    try:
        about = os.stat(file)
    except OSError:
        return 0, 0
    return about.st_mtime_ns, about.st_size


# --- a spare ---


class _Spare:
    """A fork of the service that waits for one caller and runs its command."""

    def __init__(self, at: socket.socket, tell: int, files: dict[str, tuple[int, int]], config: Config) -> None:
        from redoma.backends.linux import die_with_parent
        from redoma.pipeline.installed import make_jail_ahead

        self._at, self._tell, self._files = at, tell, files
        parent = os.getppid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(warm.GONE)
        os.setsid()  # whatever terminal the service was started at is not the caller's
        self._own = _ProcessFacts(os.getpid())
        make_jail_ahead(config)

    def _say(self, what: str) -> None:
        os.write(self._tell, f"{os.getpid()} {what}\n".encode())

    def wait(self) -> NoReturn:
        while True:
            caller, _ = self._at.accept()
            try:
                caller.settimeout(_PATIENCE)
                wanted, descriptors = self._look_at(caller)
            except SaidNothing:
                caller.close()
                continue
            except (OSError, NotTaken, ValueError, EOFError, TypeError, KeyError) as problem:
                self._say(" ".join(str(problem).split())[:200] or type(problem).__name__)
                with suppress(OSError):
                    caller.sendall(warm.NOT_TAKEN)
                caller.close()
                continue
            self._say("taken")
            self._run_as(caller, wanted, descriptors)

    def _look_at(self, caller: socket.socket) -> tuple[_Wanted, list[int]]:
        """Check a caller and receive its command. Returns the command and the caller's descriptors.

        Raises `NotTaken` if the caller has to run it itself, and `SaidNothing` or OSError if it goes away.
        """
        pid, uid, _ = _three(caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != os.geteuid():
            raise NotTaken("another user")
        if not caller.recv(1, socket.MSG_PEEK):
            raise SaidNothing
        alive = _pidfd(caller, pid)
        try:
            them = _ProcessFacts(pid)
            if difference := self._own.difference(them):
                raise NotTaken(f"process {pid}: {difference}")
            if select.select([alive], [], [], 0)[0]:
                raise NotTaken("the caller has ended")  # and somebody else may have its number
        finally:
            os.close(alive)
        if any(_state(file) != state for file, state in self._files.items()):
            self._say("changed")
            raise NotTaken("Redoma has been changed")
        message, descriptors = _receive(caller)
        try:
            return _Wanted(message, them, descriptors), descriptors
        except BaseException:
            for number in descriptors:
                os.close(number)
            raise

    def _run_as(self, caller: socket.socket, wanted: _Wanted, descriptors: list[int]) -> NoReturn:
        """Run the caller's command in its place, send it the exit status, and exit."""
        from redoma.backends.linux import die_with_parent

        die_with_parent(0)  # the run is the caller's from now on
        self._at.close()
        os.close(self._tell)
        caller.settimeout(None)
        os.fchdir(descriptors[3])
        for number in range(3):
            os.dup2(descriptors[number], number, inheritable=True)
        for number in descriptors:
            os.close(number)
        wanted.apply()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Thread(target=_pass_on, args=(caller,), daemon=True).start()
        from . import leave, state, status_of

        warm.inside, state.close_later = True, []
        caller.sendall(warm.TAKEN)
        status = status_of(wanted.words)

        def last() -> None:
            with suppress(OSError):  # nobody waits for it any more
                caller.sendall(bytes([status & 0xFF]))
            for close in state.close_later or ():
                close()

        leave(status, last=last)


def _pass_on(caller: socket.socket) -> None:
    """Raise the signals that the caller forwards. If the caller is gone, raise SIGHUP."""
    while True:
        try:
            numbers = caller.recv(16)
        except OSError:
            numbers = b""
        for number in numbers or [int(signal.SIGHUP)]:
            if number in _PASSED_ON:
                os.kill(os.getpid(), number)
        if not numbers:
            return


class _Wanted:
    """The command of a caller, with its environment. Raises `NotTaken` if it can't be run here."""

    def __init__(self, message: bytes, them: _ProcessFacts, descriptors: list[int]) -> None:
        # Data for marshal must be trusted. The caller is this user and not sandboxed, so it could do anything anyway.
        said: dict[str, Any] = marshal.loads(message)  # noqa: S302 - the same
        self.words: list[str] = said["words"]
        self._environment: dict[bytes, bytes] = said["environment"]
        self._streams: list[tuple[str, str]] = said["streams"]
        if len(descriptors) != 4:
            raise NotTaken("not all descriptors came")
        if not warm.fits(self.words):
            raise NotTaken("these words are for no service")
        if said["python"] != warm.python():
            raise NotTaken("another Python, or another Redoma")
        if (theirs := _python_variables(self._environment)) != _python_variables(dict(os.environb)):
            raise NotTaken(f"other variables of Python: {theirs}")
        self._umask = them.umask
        self._terminal = them.terminal_among(descriptors[:3])
        self._pid = them.pid

    def apply(self) -> None:
        """Give this process the caller's umask, environment, arguments, streams and terminal."""
        os.umask(self._umask)
        os.environb.clear()
        os.environb.update(self._environment)
        time.tzset()
        sys.dont_write_bytecode = bool(self._environment.get(b"PYTHONDONTWRITEBYTECODE"))
        sys.argv = [sys.argv[0], *self.words]
        modes = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))
        for number, ((name, mode), (encoding, errors)) in enumerate(zip(modes, self._streams, strict=True)):
            setattr(sys, name, _text(number, mode, encoding, errors))
        self._answer_at_terminal()

    def _answer_at_terminal(self) -> None:
        from redoma.approval import console

        pid = self._pid
        console.use_terminal(self._terminal, lambda _: _is_in_foreground(pid))


def _text(number: int, mode: str, encoding: str, errors: str) -> io.TextIOWrapper:
    """Return a standard stream as Python makes it."""
    buffer = open(number, mode + "b", closefd=False)  # noqa: SIM115 - for as long as we run
    at_once = number == 2 or (mode == "w" and os.isatty(number))
    return io.TextIOWrapper(buffer, encoding=encoding, errors=errors, newline="\n", line_buffering=at_once)


def _python_variables(environment: dict[bytes, bytes]) -> list[str]:
    """Return the variables that a started interpreter has read. Those that images often set and that change no run,
    such as PYTHONUNBUFFERED (the caller's streams are opened anew), don't count.
    """
    prefixes, harmless = (b"PYTHON", b"LD_", b"MALLOC_"), (b"PYTHONUNBUFFERED", b"PYTHONDONTWRITEBYTECODE")
    return sorted(
        repr(pair) for pair in environment.items() if pair[0].startswith(prefixes) and pair[0] not in harmless
    )


class _ProcessFacts:
    """Attributes of a process that it can't change freely, from /proc. Raises OSError if they can't be read."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        about = f"/proc/{pid}"
        lines = Path(f"{about}/status").read_text().splitlines()
        status = dict(line.split(":", 1) for line in lines if ":" in line)
        self.umask = int(status["Umask"], 8)
        fields = _fields(pid)
        self._terminal = int(fields[4])
        limits = {line[:26].strip(): line[26:].split() for line in Path(f"{about}/limits").read_text().splitlines()}
        root = os.stat(f"{about}/root")
        self._facts: dict[str, object] = {
            **{name: status.get(name, "").split() for name in _SAME},
            **{f"limit {name}": value for name, value in limits.items()},
            **{f"{name} namespace": _link(f"{about}/ns/{name}") for name in _NAMESPACES},
            "root directory": (root.st_dev, root.st_ino),
            "priority": fields[16],
            "processors": os.sched_getaffinity(pid),
        }

    def difference(self, other: _ProcessFacts) -> str:
        """Return what differs; empty if nothing does."""
        for name, value in self._facts.items():
            if other._facts.get(name) != value:
                return f"{name} differs"
        return "" if len(self._facts) == len(other._facts) else "limits differ"

    def terminal_among(self, descriptors: list[int]) -> str:
        """Return the path of its controlling terminal, which must be one of its streams; empty if it has none."""
        if not self._terminal:
            return ""
        wanted = (self._terminal >> 8) & 0xFFF, (self._terminal & 0xFF) | ((self._terminal >> 12) & 0xFFF00)
        for number in descriptors:
            about = os.fstat(number)
            if stat.S_ISCHR(about.st_mode) and (os.major(about.st_rdev), os.minor(about.st_rdev)) == wanted:
                return os.ttyname(number)
        raise NotTaken("its terminal is none of its streams")


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except FileNotFoundError:  # a kernel without it
        return ""


def _fields(pid: int) -> list[str]:
    """Return what follows the name in /proc/PID/stat: state, parent, group, session, terminal, its foreground group,
    and so on.
    """
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _is_in_foreground(pid: int) -> bool:
    fields = _fields(pid)
    return fields[2] == fields[5]


def _three(packed: bytes) -> tuple[int, int, int]:
    pid, uid, gid = (int.from_bytes(packed[at : at + 4], sys.byteorder) for at in (0, 4, 8))
    return pid, uid, gid


def _pidfd(caller: socket.socket, pid: int) -> int:
    """Return a pidfd of the caller: of its very process since Linux 6.5, else of the one that has its pid now."""
    with suppress(OSError):
        return caller.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    return os.pidfd_open(pid)


def _receive(caller: socket.socket) -> tuple[bytes, list[int]]:
    """Return a message, and the descriptors that came with it."""
    data, descriptors, flags, _ = socket.recv_fds(caller, 4, 4)
    try:
        for number in descriptors:
            os.set_inheritable(number, False)
        size = int.from_bytes(data, "big")
        if flags & socket.MSG_CTRUNC or len(data) != 4 or size > _MAX_MESSAGE:
            raise ValueError("it is not a message of ours")
        message = bytearray()
        while len(message) < size:
            if not (piece := caller.recv(size - len(message))):
                raise EOFError("the caller went away")
            message += piece
    except BaseException:
        for number in descriptors:
            os.close(number)
        raise
    return bytes(message), list(descriptors)
