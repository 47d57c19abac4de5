"""The driver: the process in the cell of a session that starts everything else. Loaded in cells and containers, so it
uses only the standard library of Python 3.9.

It has one thread and one loop, and runs no code of the user: the `worker`, which does, is a child, and so are commands.
So messages are read and answered whatever they do. They may kill or trick the driver, which has no more rights than
they have; that ends or fools their own session only.

On the same machine the worker has a direct line to the session's owner, by which it gets its runs, and all of them
print to pipes of the owner's: the driver only supervises. Elsewhere it passes on what goes either way. Then, when a run
ends, what is in the pipes is sent before the message that it has ended. What is printed between two runs stays in the
pipes for the next one.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
from functools import partial

from redoma.sessions import copying
from redoma.sessions import files as file_operations
from redoma.sessions.frames import CHUNK, WINDOW, Reader, frame, frame_of
from redoma.sessions.worker import STATE, Worker, encodable, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

PROGRAM = "redoma_session"
"""The name under which the code in a cell finds `main`."""
SCRIPT = "\0"
"""A word of a command that stands for the file with its code."""
_ABOVE = 100  # our descriptors get numbers from here on, so that the code has the low ones
_INTERRUPT_CHECK = 5  # milliseconds after which to look again whether a run of the worker can be interrupted
_MAX_WAITING = 1 << 20  # bytes waiting to be sent, from which on no more output is read
_MAX_STATE = 1 << 20  # bytes of the variables that a command leaves
_TERMINAL = 24, 80  # rows and columns
_NOT_STARTED = OSError, ValueError  # a program could not be started; ValueError: a word is none that the kernel takes
_BASH = ["bash", "--noprofile", "--norc"]
# Run by Bash before the script itself, so that the lines of the script keep their numbers. If the script sets its own
# EXIT trap, nothing is carried over.
_CARRY = """unset BASH_ENV
trap 'builtin pwd > "{0}/cwd" 2>/dev/null; env -0 > "{0}/env" 2>/dev/null
test -x "${{PWD-}}/." || echo "redoma: $PWD is gone, so the next run begins in {1}" >&2' EXIT
"""


_imager: Any = None  # where sessions can be copied


def prepare() -> None:
    """Called in the zygote: the code that copies a Python must be at the same address in all cells."""
    global _imager
    from redoma.backends.jail import compiled

    _imager = compiled.Imager()


def arm() -> dict[str, Any]:
    """Called in a guest that has no code yet. Returns the names that its code will find."""
    _imager.settle()
    return {PROGRAM: main}


def main(options: dict[str, Any]) -> NoReturn:
    """Serve the session until our input ends."""
    sys.modules["__main__"].__dict__.pop(PROGRAM, None)
    if sys.path[0] == os.getcwd():  # modules of a project are for its runs, not for us
        del sys.path[0]
    Driver(options).serve()


class Driver:
    """The loop and its state."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._is_copy = bool(options.get("copy"))

        # The session's owner.
        self._commands, self._events = (_moved(number) for number in (0, 1))
        # A socket, if descriptors can be passed along with commands.
        self._passing = socket.socket(fileno=self._commands) if options.get("passes_descriptors") else None
        self._passed_descriptors: list[int] = []
        self._order_reader = Reader()
        self._early_orders: list[dict[str, Any]] = []  # those that came before the session began
        self._handlers: dict[str, Callable[[dict[str, Any], bytes], None]] = {
            "run": self._start_run,
            "complete": self._pass_in,
            "forget": self._pass_in,
            "command": self._start_command,
            "kill": self._kill_command,
            "interrupt": self._interrupt,
            "restart": self._restart,
            "fork": self._fork,
            "start": self._start_process,
            "input": self._write_to_process,
            "signal": self._signal_process,
            "resize": self._resize_process,
            "file": self._use_file,
            "usage": self._tell_usage,
            "room": self._give_room,
        }
        self._readable: dict[int, Callable[[], None]] = {}
        self._unsent = bytearray()
        self._output_room = WINDOW  # bytes of output that may be sent before some are read

        # What runs print to, by the name of the stream; and where we read that, unless the owner does.
        self._printed_to: dict[str, int] = {}
        self._output_pipes: dict[int, str] = {}
        # The worker's end of the line by which it gets its runs, and our end if we pass on what goes either way. The
        # end of a direct line comes with a message; that of ours is made, and closed, by `_start_worker`.
        self._worker_line: socket.socket
        self._relay: socket.socket | None = None
        self._open_output()

        self._devnull = _moved(os.open(os.devnull, os.O_RDWR), close=True)
        self._children = _watch_children()
        # What programs get back: a process that stops reading must not end us.
        self._sigpipe_handler = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self._own_files = tempfile.mkdtemp(prefix="session-")
        self._files = file_operations.Operations(os.getcwd())

        # Where the next run starts, and with which variables.
        self._home = os.getcwd(), dict(os.environ)
        self._directory, self._environment = self._home
        self._worker_is_stale = False  # whether it must be told where, and with which, before its next run

        # What runs.
        self._run = 0  # the number of the run that goes on, if that is known here; else 0
        self._last_command = 0  # the number of the last run that was a command
        self._command: subprocess.Popen[bytes] | None = None
        self._command_carries = False
        self._processes: dict[int, BackgroundProcess] = {}

        # The worker.
        self._word_reader, self._reply_reader = Reader(), Reader()
        self._state = _state_file(self._own_files)  # what it runs, as it notes itself
        self._pending_interrupts: list[tuple[int, int]] = []  # its runs to interrupt, each with the question to answer
        self._worker, self._channel = self._start_copy() if self._is_copy else self._start_worker()

    def _open_output(self) -> None:
        """Open what runs print to: pipes that were passed, or our own."""
        if self._options.get("line"):
            self._take_first("line")
            self._worker_line = socket.socket(fileno=self._passed_descriptors.pop(0))
            _, passed, _, _ = socket.recv_fds(self._worker_line, 1, 2)
            stdout, stderr = (_moved(number, close=True) for number in passed)
            self._printed_to = {"stdout": stdout, "stderr": stderr}
            return
        for stream in ("stdout", "stderr"):
            reading, writing = os.pipe()
            reading, writing = _moved(reading, close=True), _moved(writing, close=True)
            os.set_blocking(reading, False)
            self._output_pipes[reading], self._printed_to[stream] = stream, writing

    def _take_first(self, *wanted: str) -> dict[str, Any]:
        """Wait for a message that comes before the session begins."""
        while not self._early_orders:
            self._early_orders += [order for order, _ in self._read_orders()]
        order = self._early_orders.pop(0)
        if order["do"] not in wanted:
            raise ValueError(f"a session begins with {wanted}, not with {order['do']}")
        return order

    # --- the loop ---

    def serve(self) -> NoReturn:
        os.set_blocking(self._commands, False)
        os.set_blocking(self._events, False)
        self._readable = {self._commands: self._take_commands, self._children: self._reap}
        self._watch_worker()
        if not self._is_copy:  # otherwise the worker sends it
            self._tell({"is": "ready"})
        poll = select.poll()
        watched: dict[int, int] = {}
        while True:
            wanted = self._wanted()
            for number in watched.keys() - wanted.keys():
                poll.unregister(number)
            for number, events in wanted.items() - watched.items():
                poll.register(number, events)
            watched = wanted
            for number, _ in poll.poll(_INTERRUPT_CHECK if self._pending_interrupts else None):
                self._handle(number)
            if self._pending_interrupts:
                self._settle_interrupts()

    def _watch_worker(self) -> None:
        self._readable[self._channel.fileno()] = self._take_word
        if self._relay is not None:
            self._readable[self._relay.fileno()] = partial(self._take_reply, self._relay)

    def _wanted(self) -> dict[int, int]:
        """Return descriptor → events to wait for."""
        wanted = dict.fromkeys(self._readable, select.POLLIN)
        if self._output_room > 0 and len(self._unsent) < _MAX_WAITING:
            for number in (*(self._output_pipes if self._run else ()), *self._outputs):
                wanted[number] = select.POLLIN
        if self._unsent:
            wanted[self._events] = select.POLLOUT
        for process in self._processes.values():
            if process.unwritten and process.stdin >= 0:
                wanted[process.stdin] = select.POLLOUT
        return wanted

    def _handle(self, number: int) -> None:
        if number == self._events:
            self._send()
        elif number in self._output_pipes:
            self._pass_on(number, CHUNK)
        elif number in self._readable:
            self._readable[number]()
        for process in list(self._processes.values()):
            if number in process.outputs:
                process.pump(self)
            if number == process.stdin:
                process.write(self)

    @property
    def _outputs(self) -> list[int]:
        return [number for process in self._processes.values() for number in process.outputs]

    # --- out ---

    def answer(self, question: int, **said: Any) -> None:
        self._tell({"is": "answer", "id": question, **said})

    def tell_output(self, head: dict[str, Any], data: bytes) -> None:
        self._output_room -= len(data)
        self._tell(head, data)

    def _tell(self, head: dict[str, Any], body: bytes = b"") -> None:
        self._send(frame(head, body))

    def _send(self, message: bytes = b"") -> None:
        """Send a message after what is waiting, as far as there is room now."""
        self._unsent += message
        try:
            while self._unsent:
                del self._unsent[: os.write(self._events, self._unsent)]
        except BlockingIOError:
            return
        except BrokenPipeError:
            os._exit(0)  # the session's owner is gone

    def _pass_on(self, number: int, size: int) -> int:
        """Send some output. Returns how many bytes there were."""
        try:
            data = os.read(number, size)
        except BlockingIOError:
            return 0
        self.tell_output({"is": "out", "run": self._run, "stream": self._output_pipes[number]}, data)
        return len(data)

    def _drain(self) -> None:
        """Send what has been printed so far, and no more: something may print without end."""
        for number in self._output_pipes:
            left = _readable(number)
            while left > 0 and (got := self._pass_on(number, min(left, CHUNK))):
                left -= got

    # --- in ---

    def _take_commands(self) -> None:
        for order, body in self._read_orders():
            self._handlers[order["do"]](order, body)

    def _read_orders(self) -> list[tuple[dict[str, Any], bytes]]:
        """Return the messages that can be read now. Descriptors that come along are put into `_passed_descriptors`."""
        try:
            if self._passing is not None:
                data, descriptors, _, _ = socket.recv_fds(self._passing, CHUNK, 1)
                self._passed_descriptors += [_moved(number, close=True) for number in descriptors]
            else:
                data = os.read(self._commands, CHUNK)
        except BlockingIOError:
            return []
        if not data:
            os._exit(0)  # the session's owner is gone; init ends everything else
        return [(json.loads(head), body) for head, body in self._order_reader.feed(data)]

    def _give_room(self, order: dict[str, Any], body: bytes) -> None:
        self._output_room += order["bytes"]

    def _use_file(self, order: dict[str, Any], body: bytes) -> None:
        answer, content = self._files.answer(order, body)
        self._tell({"is": "answer", "id": order["id"], **answer}, content)

    def _tell_usage(self, order: dict[str, Any], body: bytes) -> None:
        self._tell({"is": "answer", "id": order["id"]}, json.dumps(_usage(self._home[0])).encode())

    # --- Python ---

    def _start_worker(self, copy: tuple[int, dict[str, Any]] | None = None) -> tuple[int, socket.socket]:
        """Start the session's Python: a new one, or a copy that is made from an image and its facts."""
        ours, theirs = map(_high_socket, socket.socketpair())
        if not self._options.get("line"):
            self._relay, self._worker_line = map(_high_socket, socket.socketpair())
        worker = os.fork()
        if worker == 0:
            os.close(ours.fileno())
            self._leave_to_worker()
            if copy is not None:
                theirs.recv(1)  # until the driver has closed the image
                own = {"channel": theirs.fileno(), "line": self._worker_line.fileno(), "state": self._state}
                copying.become(_imager, copy[0], own, copy[1])
            Worker(theirs, self._worker_line, self._state, self._options["recursion"], _imager).serve()
        theirs.close()
        self._worker_line.close()
        return worker, ours

    def _leave_to_worker(self) -> None:
        """Called in the child that becomes the worker: drop everything that only the driver may have."""
        os.setsid()
        os.close(signal.set_wakeup_fd(-1))
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, self._sigpipe_handler)
        for number, target in ((self._devnull, 0), (self._printed_to["stdout"], 1), (self._printed_to["stderr"], 2)):
            os.dup2(number, target)
        if self._passing is not None:
            self._passing.detach()
        if self._relay is not None:
            self._relay.close()
        for number in (self._commands, self._events, self._children, self._devnull):
            os.close(number)
        for number in (*self._output_pipes, *self._printed_to.values()):
            os.close(number)
        for process in self._processes.values():
            process.close()

    def _start_copy(self) -> tuple[int, socket.socket]:
        """Start a copy of another session's Python. The first messages bring the changes to its project, if it has one,
        and the image."""
        order = self._take_first("patch", "become")
        if order["do"] == "patch":
            changes = self._passed_descriptors.pop(0)
            copying.patch(changes, self._home[0])
            os.close(changes)
            order = self._take_first("become")
        file = self._passed_descriptors.pop(0)
        facts = copying.unpack(file, order["size"])
        self._directory, self._environment = facts["cwd"] or self._directory, facts["env"]
        worker, channel = self._start_worker((file, facts))
        os.close(file)  # before any code runs: the code must not have the image, which other copies share
        channel.sendall(b"g")
        return worker, channel

    def _fork(self, order: dict[str, Any], body: bytes) -> None:
        """Let the worker write its image to the file that was passed."""
        file = self._passed_descriptors.pop()
        if self._processes:
            self.answer(order["id"], errno=errno.EBUSY, error="it has processes in the background: end them")
        else:
            socket.send_fds(self._channel, [frame({**order, "skipped": self._own_files})], [file])
        os.close(file)

    def _start_run(self, order: dict[str, Any], body: bytes) -> None:
        self._run = order["run"]
        self._pass_in(order, body)

    def _pass_in(self, order: dict[str, Any], body: bytes = b"") -> None:
        """Pass a message on to the worker. Raises `ValueError` if it has a direct line: we send none here then."""
        if self._relay is None:
            raise ValueError(f"{order['do']!r} comes by the direct line")
        self._relay.sendall(frame(order, body))

    def _take_reply(self, relay: socket.socket) -> None:
        """Pass on messages of the worker, each after what was printed before."""
        data = relay.recv(CHUNK)
        if not data:
            del self._readable[relay.fileno()]
            return
        for head, body in self._reply_reader.feed(data):
            said = json.loads(head)
            self._drain()
            self._send(frame_of(head, body))
            if said.get("is") == "done":
                self._run = 0
            elif said.get("is") == "display":
                self._pass_in({"do": "shown"})

    def _take_word(self) -> None:
        """Handle what the worker tells the driver itself."""
        try:
            data = self._channel.recv(CHUNK, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        if not data:
            self._readable.pop(self._channel.fileno(), None)  # it has ended; `_reap` finds out how
            return
        for head, body in self._word_reader.feed(data):
            said = json.loads(head)
            if said.get("is") == "broken":  # it could not become a copy
                os.write(2, said["error"].encode("utf-8", "replace"))
                os._exit(1)
            if said.get("is") == "moved":
                self._directory = said.get("cwd", self._directory)
                self._environment = said.get("env", self._environment)
            else:
                self._send(frame_of(head, body))

    def _interrupt(self, order: dict[str, Any], body: bytes) -> None:
        """Interrupt a run, unless it has ended. Answer when that is done."""
        run, question = order["run"], order["id"]
        if self._command is not None and run == self._run:
            _kill_group(self._command.pid, signal.SIGINT)
        elif run > self._last_command:
            # A run of the worker: only what it notes tells whether that has begun, goes on or has ended.
            self._pending_interrupts.append((run, question))
            return
        self.answer(question)

    def _settle_interrupts(self) -> None:
        """Interrupt the worker if it runs what is to be interrupted. Before its code begins, it ignores signals."""
        run, begun = STATE.unpack(os.pread(self._state, STATE.size, 0))
        if begun and any(wanted == run for wanted, _ in self._pending_interrupts):
            _kill_group(self._worker, signal.SIGINT)  # once: the worker counts on it
        for wanted, question in list(self._pending_interrupts):
            if wanted <= run:
                self._pending_interrupts.remove((wanted, question))
                self.answer(question)

    def _restart(self, order: dict[str, Any], body: bytes) -> None:
        """Start a new Python, and end all processes of the old one; files stay."""
        for process in list(self._processes.values()):
            _kill_group(process.pid, signal.SIGKILL)
        if self._command is not None:
            _kill_group(self._command.pid, signal.SIGKILL)
            self._command.wait()
            self._command = None
        self._drain()
        self._readable.pop(self._channel.fileno(), None)
        self._channel.close()
        if self._relay is not None:
            self._readable.pop(self._relay.fileno(), None)
            self._relay.close()
        else:
            self._worker_line = socket.socket(fileno=self._passed_descriptors.pop())
        old, self._worker = self._worker, 0
        _kill_group(old, signal.SIGKILL)
        os.waitpid(old, 0)
        self._directory, self._environment = self._home
        os.chdir(self._directory)
        self._word_reader, self._reply_reader, self._run = Reader(), Reader(), 0
        for _, question in self._pending_interrupts:
            self.answer(question)
        self._pending_interrupts.clear()
        for number in self._output_pipes:
            while _read_some(number):
                continue
        self._worker, self._channel = self._start_worker()
        self._watch_worker()
        self.answer(order["id"])

    # --- commands ---

    def _start_command(self, order: dict[str, Any], body: bytes) -> None:
        self._take_word()  # the last run may have left another directory or other variables
        self._run = self._last_command = order["run"]
        self._leave_removed()
        script, stdin = body[: order["source"]], body[order["source"] :]
        environment = {**self._environment, **order["env"]}
        argv, self._command_carries = order["argv"], order["bash"]
        try:
            if order["bash"] or SCRIPT in argv:  # also if it is empty: the last script is still there
                self._put("script", script)
                argv = [f"{self._own_files}/script" if word == SCRIPT else word for word in argv]
            if order["bash"]:
                self._put("carry", _CARRY.format(self._own_files, self._home[0]).encode())
                argv = [*_BASH, f"{self._own_files}/script", *argv]
                environment["BASH_ENV"] = f"{self._own_files}/carry"
            self._put("input", stdin)
            with open(f"{self._own_files}/input", "rb") as given:
                self._command = subprocess.Popen(
                    argv,
                    env=environment,
                    cwd=self._directory,
                    stdin=given if stdin else self._devnull,
                    stdout=self._printed_to["stdout"],
                    stderr=self._printed_to["stderr"],
                    start_new_session=True,
                )
        except _NOT_STARTED as error:
            code = 126 if getattr(error, "errno", None) in (errno.EACCES, errno.ENOEXEC) else 127
            what = argv[0] if argv else "bash"  # a script that could not be written has no words yet
            self._end_command({"broken": encodable(f"start {what}: {reason(error)}"), "exit": code})

    def _kill_command(self, order: dict[str, Any], body: bytes) -> None:
        if self._command is not None and order["run"] == self._run:
            _kill_group(self._command.pid, signal.SIGKILL)

    def _put(self, name: str, content: bytes) -> None:
        os.makedirs(self._own_files, exist_ok=True)  # the code may have removed it
        with open(f"{self._own_files}/{name}", "wb") as file:
            file.write(content)

    def _end_command(self, said: dict[str, Any]) -> None:
        if self._command is not None and self._command_carries:
            self._carry_over()
        self._command = None
        self._drain()
        self._leave_removed()
        if self._worker_is_stale:  # before the next run can come to the worker
            self._channel.sendall(frame({"do": "follow", "cwd": self._directory, "env": self._environment}))
            self._worker_is_stale = False
        self._tell({"is": "done", "run": self._run, **said})
        self._run = 0

    def _carry_over(self) -> None:
        """Take over the directory and the variables that a script left."""
        try:
            with open(f"{self._own_files}/cwd", "rb") as file:
                directory = os.fsdecode(file.read(4096))[:-1]
            with open(f"{self._own_files}/env", "rb") as file:
                left = file.read(_MAX_STATE + 1)
        except OSError:
            return  # it set its own trap, or was killed
        finally:
            for name in ("cwd", "env"):
                _remove(f"{self._own_files}/{name}")
        pairs = [os.fsdecode(each).partition("=") for each in left.split(b"\0") if b"=" in each]
        environment = {name: value for name, _, value in pairs if name not in ("", "_", "OLDPWD", "PWD", "SHLVL")}
        if len(left) <= _MAX_STATE and environment != self._environment:
            self._environment, self._worker_is_stale = environment, True
        if directory and directory != self._directory:
            self._directory, self._worker_is_stale = directory, True

    def _leave_removed(self) -> None:
        """Go back to where the session began if nothing can be started in its directory: it was removed, or locked."""
        if not (os.path.isdir(self._directory) and os.access(self._directory, os.X_OK)):
            self._directory, self._worker_is_stale = self._home[0], True

    # --- ends ---

    def _reap(self) -> None:
        """Handle the end of children."""
        _read_some(self._children)
        command = self._command
        if command is not None and command.poll() is not None:
            code = command.returncode
            self._end_command({"signal": -code} if code < 0 else {"exit": code})
        for process in list(self._processes.values()):
            if process.popen.poll() is not None:
                self._end_process(process)
        ended, status = os.waitpid(self._worker, os.WNOHANG) if self._worker else (0, 0)
        if ended:
            self._lost(status)

    def _lost(self, status: int) -> NoReturn:
        """End the session in the same way as its worker ended, so that the cell reports how."""
        self._drain()
        os.set_blocking(self._events, True)
        self._send()
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            if number != signal.SIGKILL:
                signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        os._exit(os.WEXITSTATUS(status))

    # --- background processes ---

    def _start_process(self, order: dict[str, Any], body: bytes) -> None:
        self._leave_removed()
        try:
            directory = os.path.join(self._home[0], order["cwd"]) if order.get("cwd") else self._directory
            process = BackgroundProcess(order, {**self._environment, **order["env"]}, directory)
        except _NOT_STARTED as error:
            self.answer(order["id"], errno=getattr(error, "errno", None) or errno.EINVAL, error=reason(error))
            return
        self._processes[order["process"]] = process
        self.answer(order["id"], pid=process.pid)

    def _write_to_process(self, order: dict[str, Any], body: bytes) -> None:
        if order["process"] in self._processes:
            self._processes[order["process"]].take(order, body, self)
        else:
            self.answer(order["id"])

    def _resize_process(self, order: dict[str, Any], body: bytes) -> None:
        if order["process"] in self._processes:
            self._processes[order["process"]].resize(order["rows"], order["columns"])

    def _signal_process(self, order: dict[str, Any], body: bytes) -> None:
        """Signal a process. If the message has an id, answer whether there is such a process."""
        process = self._processes.get(order["process"])
        if process is not None:
            _kill_group(process.pid, order["number"])
        if "id" in order:
            self.answer(order["id"], **({} if process is not None else {"errno": errno.ESRCH}))

    def _end_process(self, process: BackgroundProcess) -> None:
        """Send the rest of its output and its status. Children that it left continue, without pipes to us."""
        del self._processes[process.number]
        process.pump(self, to_the_end=True)
        process.close()
        if process.question:
            self.answer(process.question)
        self._tell({"is": "exit", "process": process.number, "status": process.popen.returncode})


class BackgroundProcess:
    """A background command, with its own pipes or a terminal."""

    def __init__(self, order: dict[str, Any], environment: dict[str, str], directory: str) -> None:
        self.number = order["process"]
        self.unwritten, self.ends, self.question = bytearray(), False, 0
        self.outputs: dict[int, str] = {}
        self._is_terminal = False
        argv = [*_BASH, "-c", order["script"]] if order["bash"] else order["argv"]
        if order["pty"]:
            self._on_terminal(argv, environment, directory, order.get("size") or _TERMINAL)
        else:
            self._on_pipes(argv, environment, directory)
        self.pid = self.popen.pid
        for number in (self.stdin, *self.outputs):
            os.set_blocking(number, False)

    def _on_pipes(self, argv: list[str], environment: dict[str, str], directory: str) -> None:
        pairs = [[_moved(number, close=True) for number in os.pipe()] for _ in range(3)]
        (theirs, self.stdin), *printed = pairs
        try:
            self.popen = subprocess.Popen(
                argv,
                env=environment,
                cwd=directory,
                stdin=theirs,
                stdout=printed[0][1],
                stderr=printed[1][1],
                start_new_session=True,
            )
        except _NOT_STARTED:
            for number in (self.stdin, printed[0][0], printed[1][0]):
                os.close(number)
            raise
        finally:
            for number in (theirs, printed[0][1], printed[1][1]):
                os.close(number)
        self.outputs = {printed[0][0]: "stdout", printed[1][0]: "stderr"}

    def _on_terminal(self, argv: list[str], environment: dict[str, str], directory: str, size: tuple[int, int]) -> None:
        ours, theirs = (_moved(number, close=True) for number in os.openpty())
        _resize(ours, *size)  # before the program can ask for it
        try:
            self.popen = subprocess.Popen(
                argv,
                env={"TERM": "xterm-256color", **environment},
                cwd=directory,
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                preexec_fn=_own_terminal,
            )
        except _NOT_STARTED:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self.stdin, self.outputs = _moved(ours), {ours: "stdout"}
        self._is_terminal = True

    def resize(self, rows: int, columns: int) -> None:
        """Resize its terminal; the kernel signals that to its programs."""
        if self._is_terminal and self.stdin >= 0:
            _resize(self.stdin, rows, columns)

    def pump(self, driver: Driver, *, to_the_end: bool = False) -> None:
        """Send some of its output, or all that it has printed so far, and no more: its children may print on."""
        for number in list(self.outputs):
            if not to_the_end:
                self._send_some(number, driver)
                continue
            left = _readable(number)
            while left > 0 and (sent := self._send_some(number, driver)):
                left -= sent

    def _send_some(self, number: int, driver: Driver) -> int:
        """Send some of the output that comes by a descriptor, and close that at its end. Returns how many bytes."""
        data = _read_some(number)
        if data is None:
            return 0
        if data:
            driver.tell_output({"is": "out", "process": self.number, "stream": self.outputs[number]}, data)
        else:
            os.close(number)
            del self.outputs[number]
        return len(data)

    def take(self, order: dict[str, Any], body: bytes, driver: Driver) -> None:
        """Take input. The answer, without which no more is sent, follows when all of it has been written."""
        self.unwritten += body
        self.ends, self.question = order["ends"], order["id"]
        self.write(driver)

    def write(self, driver: Driver) -> None:
        try:
            while self.unwritten and self.stdin >= 0:
                del self.unwritten[: os.write(self.stdin, self.unwritten)]
        except BlockingIOError:
            return
        except OSError:
            self.unwritten.clear()  # it has closed its input
        if self.ends and self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1
        question, self.question = self.question, 0
        if question:
            driver.answer(question)

    def close(self) -> None:
        for number in (self.stdin, *self.outputs):
            if number >= 0:
                os.close(number)


def _usage(directory: str) -> dict[str, int]:
    """Return what all processes here have used: processor time, memory, and disk."""
    ticks = pages = 0
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read(4096).rpartition(b")")[2].split()
        except OSError:
            continue  # it has ended, or can't be read
        ticks += int(fields[11]) + int(fields[12]) + int(fields[13]) + int(fields[14])  # with children that ended
        pages += int(fields[21])
    disk = os.statvfs(directory)
    return {
        "cpu_ms": 1000 * ticks // os.sysconf("SC_CLK_TCK"),
        "memory": pages * os.sysconf("SC_PAGE_SIZE"),
        "disk": (disk.f_blocks - disk.f_bfree) * disk.f_frsize,
        "disk_total": disk.f_blocks * disk.f_frsize,
    }


def _own_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _resize(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _readable(number: int) -> int:
    """Return how many bytes can be read now."""
    return int(struct.unpack("i", fcntl.ioctl(number, termios.FIONREAD, b"\0\0\0\0"))[0])


def _moved(number: int, *, close: bool = False) -> int:
    """Duplicate a descriptor to a high number that is not inherited by programs."""
    high = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _ABOVE)
    if close:
        os.close(number)
    return high


def _high_socket(low: socket.socket) -> socket.socket:
    high = socket.socket(fileno=_moved(low.fileno()))
    low.close()
    return high


def _state_file(place: str) -> int:
    """Return a file without a name in which the worker notes what it runs."""
    path = f"{place}/state"
    low = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(path)
    os.write(low, STATE.pack(0, False))
    return _moved(low, close=True)


def _watch_children() -> int:
    """Return a descriptor that becomes readable when a child ends."""
    reading, writing = (_moved(number, close=True) for number in os.pipe())
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    # Caught, not ignored: what is ignored stays ignored in programs that we start, and Ctrl-C could not end them.
    for number in (signal.SIGCHLD, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading


def _read_some(number: int) -> bytes | None:
    """Return what can be read now: None if there is nothing yet, empty at the end."""
    try:
        return os.read(number, CHUNK)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _kill_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        shutil.rmtree(path, ignore_errors=True)
