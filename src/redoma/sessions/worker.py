"""The worker: the Python of a session. It runs code, and keeps its variables. Runs come and results go by its line,
which leads to the session's owner or, where descriptors can't be passed, to the driver. Loaded in cells and containers,
so it uses only the standard library of Python 3.9.

The code runs in this process and can change everything here, so nothing that is reported is trusted outside. For
well-behaved code: there is no thread of ours (`os.fork` works), its programs don't inherit the line, and Ctrl-C
interrupts only the code, not us.
"""

from __future__ import annotations

import ast
import errno
import importlib
import inspect
import io
import json
import linecache
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import traceback
import types

from redoma.backends import display as displays
from redoma.backends.interpreter import allow_calls
from redoma.backends.jail import value as values
from redoma.sessions import charts, copying
from redoma.sessions.frames import CHUNK, Reader, frame, frame_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

MAIN = "main"
"""The context that is the module `__main__`."""
STATE = struct.Struct("!Q?")
"""What the worker notes for the driver: the number of its last run, and whether it goes on, so that it can be
interrupted."""
_MAX_ERROR = 65536  # characters
_MAX_TRACEBACK = 16384  # characters; with the error, it fits into the head of a frame
_MAX_KEPT = 200  # runs whose source is kept for tracebacks
_MAX_SOURCE = 1 << 18  # characters of such a source
_MAX_CONTEXTS = 100
# Frames from `allow_calls` to the first call of the code. Before Python 3.12 calls into C count too, also its own.
_OUR_FRAMES = 6 if sys.version_info < (3, 12) else 4
_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
# `signal.signal` looks each handler up in an enumeration, which takes longer than all else that it does.
_raw_signal = importlib.import_module("_signal")


class Worker:
    """Takes runs from `line`, one after the other, and orders of the driver from `channel`. What goes on is noted in
    the file `state`. The code may make calls `recursion` deep. With an `imager` the session can be forked."""

    def __init__(
        self, channel: socket.socket, line: socket.socket, state: int, recursion: int, imager: Any = None
    ) -> None:
        self._channel, self._line, self._state = channel, line, state
        self._recursion, self._imager = recursion, imager
        self._deepest = 0
        self._orders, self._reader = Reader(), Reader()
        self._frames: list[tuple[bytes, bytes]] = []
        self._pid = os.getpid()
        self._contexts: dict[str, dict[str, Any]] = {}
        self._at_interrupt: Any = signal.default_int_handler
        self._environment, self._directory = _environment(), _directory()
        self._home = self._directory
        self._kept: list[str] = []
        self._loop: Any = None
        self._run = 0
        self._prints_tracebacks = True
        self._displays = displays.Displays(self._show, charts=charts)
        self._of_owner: dict[str, Callable[[dict[str, Any], bytes], None]] = {
            "run": self._perform,
            "complete": self._complete,
            "forget": self._forget,
            "shown": self._pass_over,
        }
        self._of_driver: dict[str, Callable[[dict[str, Any], list[int]], None]] = {
            "follow": self._follow,
            "fork": self._fork,
        }

    def serve(self) -> NoReturn:
        """Serve until the driver is gone. What goes wrong here, not in the code, ends the process, and so the session:
        an unknown message, for example."""
        try:
            self._serve()
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # not up the stack, where the driver's own code is

    def _serve(self) -> NoReturn:
        if self._home not in sys.path:
            sys.path.insert(0, self._home)  # the modules of a project, as in a notebook that is there
        _ignore_interrupts()
        _reseed()
        displays.watch_pyplot(self._displays)
        waiting = select.poll()
        # In this order: what the driver has sent before a run is then seen not later than the run.
        waiting.register(self._line, select.POLLIN)
        waiting.register(self._channel, select.POLLIN)
        while True:
            try:
                readable = [] if self._frames else waiting.poll()
            except BaseException:
                traceback.print_exc()  # by a handler that the code has set for a signal
                continue
            if len(readable) > 1 or (readable and readable[0][0] == self._channel.fileno()):
                self._take_orders()
                continue
            head, body = self._receive()
            self._of_owner[head["do"]](head, body)

    def _take_orders(self) -> None:
        """Obey the driver."""
        data, given, _, _ = socket.recv_fds(self._channel, CHUNK, 1)
        if not data:
            os._exit(0)
        for text, _ in self._orders.feed(data):
            head = json.loads(text)
            self._of_driver[head["do"]](head, given)

    def _receive(self) -> tuple[dict[str, Any], bytes]:
        while not self._frames:
            data = self._line.recv(CHUNK)
            if not data:
                os._exit(0)
            self._frames.extend(self._reader.feed(data))
        head, body = self._frames.pop(0)
        return json.loads(head), body

    def _perform(self, head: dict[str, Any], body: bytes) -> None:
        source, stdin = body[: head["source"]], body[head["source"] :]
        self._run, result = head["run"], b""
        self._prints_tracebacks = not head.get("traceback_apart")
        before: dict[str, str | None] = {}
        said: dict[str, Any] = {}
        self._displays.begin(with_charts=bool(head.get("charts")))
        try:
            if variables := head.get("variables"):
                before = _set_variables(variables)
            back = _go_to(head.get("directory") and os.path.join(self._home, head["directory"]))
            if stdin:
                _use_input(stdin)
            said, result = self._evaluate_interruptibly(head, source.decode("utf-8", "surrogatepass"))
            if stdin:
                _use_input(b"")
            _go_to(back)
        except BaseException as error:  # Ctrl-C just before or after the code, or a directory that is gone
            said, result = self._failure(error), b""
            # If its code never began: whoever wants to interrupt it waits to see it here.
            os.pwrite(self._state, STATE.pack(self._run, False), 0)
        if before:
            _set_variables(before)
        if os.getpid() != self._pid:  # the code has forked, and this is the child at the end of its program
            _flush()
            os._exit(said.get("exit") or 0)
        if moved := self._moved():  # first, so that the driver knows it before the next command
            self._tell_driver({"is": "moved", **moved})
        if said:
            self._tell({"is": "done", "run": self._run, **said}, result)
        else:  # as most runs end
            self._line.sendall(frame_of(b'{"is":"done","run":%d}' % self._run, result))

    def _pass_over(self, head: dict[str, Any], body: bytes) -> None:
        """Drop the answer to a display that no longer waits for it: a signal handler of the code has raised there."""

    def _complete(self, head: dict[str, Any], body: bytes) -> None:
        """Answer with the completions of a text."""
        import rlcompleter

        found: list[str] = []
        try:
            completer = rlcompleter.Completer(self._context(head["context"]))
            while len(found) < 200 and (name := completer.complete(head["text"], len(found))) is not None:
                found.append(name)
        except Exception:
            found = []  # a property of the code's own raised
        self._tell({"is": "answer", "id": head["id"]}, json.dumps(found).encode())

    def _forget(self, head: dict[str, Any], body: bytes) -> None:
        """Drop the variables of a context."""
        namespace = self._contexts.pop(head["context"], {})
        kept: dict[str, Any] = {name: namespace[name] for name in ("__name__", "__builtins__") if name in namespace}
        namespace.clear()  # functions that are still referred to lose them, too
        namespace.update(kept)
        self._tell({"is": "answer", "id": head["id"]})

    def _follow(self, head: dict[str, Any], given: list[int]) -> None:
        """Take over the directory and the variables that commands of the session left."""
        if head.get("cwd"):
            self._directory = head["cwd"]
            try:
                os.chdir(self._directory)
            except OSError:  # removed meanwhile; the next run tells the driver where we are
                self._return_home()
        if head.get("env") is not None:
            os.environ.clear()
            os.environ.update(head["env"])
            self._environment = _environment()

    def _return_home(self) -> str:
        """Go back to where the session began: the directory was removed. Returns the directory; empty if that is not
        possible, either."""
        try:
            os.chdir(self._home)
        except OSError:
            return ""
        return self._home

    def _moved(self) -> dict[str, Any]:
        """Return the directory and the variables, if the code changed them, for the commands that follow."""
        moved: dict[str, Any] = {}
        if not (directory := _directory()):
            directory = self._return_home()
        if directory != self._directory:
            moved["cwd"] = self._directory = directory
        if (environment := _environment()) != self._environment:
            self._environment, moved["env"] = environment, dict(os.environ)
        return moved

    # --- copies ---

    def _fork(self, head: dict[str, Any], given: list[int]) -> None:
        """Write an image of this process to the file that was passed. Copies continue here, too, in their own cells."""
        file = given.pop()
        try:
            said = self._save(file, head)
        except (copying.Refused, OSError) as error:
            said = {"errno": errno.EBUSY, "error": reason(error)}
        if said:
            os.close(file)
            self._tell_driver({"is": "answer", "id": head["id"], **said})
            return
        self._pid = os.getpid()
        if (threading := sys.modules.get("threading")) is not None:
            threading.main_thread()._set_native_id()
        _reseed()
        self._tell_driver({"is": "ready"})

    def _save(self, file: int, head: dict[str, Any]) -> dict[str, Any]:
        """Fork; the child writes itself. Returns the answer for the driver; in a copy, an empty one."""
        self._end_loop()
        umask = os.umask(0)
        os.umask(umask)
        own = {"channel": self._channel.fileno(), "line": self._line.fileno(), "state": self._state}
        facts = {"own": own, "cwd": _directory(), "env": dict(os.environ), "umask": umask}
        facts["open"] = copying.check((*own.values(), file))
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            said: dict[str, Any]
            try:
                said = {"size": copying.save(self._imager, file, head["most"], facts, head["skipped"])}
                if said["size"] == 0:
                    return {}
            except BaseException as error:
                said = {"errno": errno.EBUSY, "error": reason(error)}
            os.write(writing, json.dumps(said).encode())
            os._exit(0)
        os.close(writing)
        with open(reading, "rb") as told:
            answer = told.read()
        _, status = os.waitpid(child, 0)
        killed = {"errno": errno.ENOMEM, "error": f"the process that was to be its copy ended with status {status}"}
        return json.loads(answer) if answer else killed

    def _end_loop(self) -> None:
        """Close the event loop, whose descriptors can't be copied; a new one is made when needed. Raises `Refused` if
        it has tasks."""
        if self._loop is None or self._loop.is_closed():
            return
        if sys.modules["asyncio"].all_tasks(self._loop):
            raise copying.Refused("tasks of asyncio have not ended: await them, or cancel them")
        self._loop.close()

    # --- one run ---

    def _evaluate_interruptibly(self, head: dict[str, Any], source: str) -> tuple[dict[str, Any], bytes]:
        """Run it. Ctrl-C ends it, and is ignored when this returns or raises: it would lose us a message."""
        over = STATE.pack(self._run, False)
        try:
            _raw_signal.signal(signal.SIGINT, self._at_interrupt)
            os.pwrite(self._state, STATE.pack(self._run, True), 0)
            return self._evaluate(head, source)
        finally:
            # Python raises what a signal raises after a call, so the first call here is made in any case. Once it is,
            # the driver sends nothing more: there are at most two signals left, one on its way and one not raised yet.
            try:
                os.pwrite(self._state, over, 0)
                self._at_interrupt = _ignore_interrupts()
            except BaseException:
                try:
                    before = _ignore_interrupts()
                except BaseException:
                    before = _ignore_interrupts()
                if before != signal.SIG_IGN:  # else the first call did it, and another signal's handler raised
                    self._at_interrupt = before

    def _evaluate(self, head: dict[str, Any], source: str) -> tuple[dict[str, Any], bytes]:
        """Run it. Returns the fields of the report, and the value of the last expression as JSON."""
        result = b""
        try:
            try:
                program = self._parse(source)
            except SyntaxError as error:
                error.__traceback__ = None
                return self._failure(error, hint=_hint(source)), b""
            namespace = self._context(head["context"])
            if self._deepest:  # found by the first run: the stack below a run is always the same
                sys.setrecursionlimit(self._deepest)
            else:
                allow_calls(self._recursion, _OUR_FRAMES)
                self._deepest = sys.getrecursionlimit()
            found = self._execute(program, namespace)
            if found is not None:
                namespace["_"] = found
                result = json.dumps(values.encode(found, head["value"])).encode()
                self._displays.result(found)
            self._displays.figures()
            return {}, result
        except SystemExit as leaving:
            return {"exit": _exit_code(leaving)}, b""
        except BaseException as error:
            return self._failure(error), b""
        finally:
            _flush()

    def _parse(self, source: str) -> list[types.CodeType]:
        """Compile the code, and separately its last expression, if it ends with one and not with `;`. `await` is
        allowed outside of functions."""
        name = f"<run {self._run}>"
        if len(source) <= _MAX_SOURCE:
            # Lines as Python counts them, and each with its end, from which `traceback` counts columns.
            lines = io.StringIO(f"{source}\n", newline=None).readlines()
            linecache.cache[name] = len(source), None, lines, name
            self._kept.append(name)
            if len(self._kept) > _MAX_KEPT:
                linecache.cache.pop(self._kept.pop(0), None)
        tree = ast.parse(source, name)
        quiet = source.rstrip().endswith(";") and "#" not in source.rpartition("\n")[2]  # as in notebooks
        if not tree.body or quiet or not isinstance(last := tree.body[-1], ast.Expr):
            return [compile(tree, name, "exec", flags=_AWAIT, dont_inherit=True)]
        tree.body.pop()
        expression = compile(ast.Expression(last.value), name, "eval", flags=_AWAIT, dont_inherit=True)
        return [compile(tree, name, "exec", flags=_AWAIT, dont_inherit=True), expression]

    def _execute(self, program: list[types.CodeType], namespace: dict[str, Any]) -> Any:
        found = None
        for code in program:
            found = eval(code, namespace)  # noqa: S307 - this is what we are for
            if code.co_flags & inspect.CO_COROUTINE:
                found = self._event_loop().run_until_complete(found)
        return found if len(program) > 1 else None

    def _event_loop(self) -> Any:
        """Return the event loop of the session. Tasks that a run leaves there continue when another run awaits."""
        import asyncio

        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        return self._loop

    def _context(self, name: str) -> dict[str, Any]:
        if name not in self._contexts:
            if len(self._contexts) >= _MAX_CONTEXTS:
                raise MemoryError(f"a session has at most {_MAX_CONTEXTS} contexts")
            module = sys.modules["__main__"] if name == MAIN else types.ModuleType("__main__")
            module.__dict__.setdefault("__builtins__", __builtins__)
            module.__dict__["display"] = self._displays.display
            module.__dict__.pop("__file__", None)
            self._contexts[name] = module.__dict__
        return self._contexts[name]

    def _failure(self, error: BaseException, hint: str = "") -> dict[str, Any]:
        """Print the traceback as the interpreter would, starting with the code's first frame; or return it apart."""
        frames, apart = error.__traceback__, ""
        while frames is not None and not frames.tb_frame.f_code.co_filename.startswith("<run "):
            frames = frames.tb_next
        try:
            error.__traceback__ = frames
            if not self._prints_tracebacks:
                apart = "".join(traceback.format_exception(type(error), error, frames))
            elif sys.excepthook is sys.__excepthook__:
                traceback.print_exception(type(error), error, frames)  # unlike the default hook, it finds our sources
            else:
                sys.excepthook(type(error), error, frames)
        except BaseException:
            traceback.print_exc()
        try:
            text = f"{type(error).__name__}: {error}"
        except BaseException:
            text = type(error).__name__
        # The interpreter's MemoryError has no arguments, and numpy's is a subclass. One that code raises has a text.
        memory = isinstance(error, MemoryError) and (type(error) is not MemoryError or not error.args)
        name, text = encodable(type(error).__name__[:200]), encodable(text[:_MAX_ERROR])
        said = {"exception": name, "error": text + hint, "memory": memory, "exit": 1}
        return {**said, "traceback": encodable(apart[-_MAX_TRACEBACK:])} if apart else said

    # --- out ---

    def _show(self, types_: list[tuple[str, int]], body: bytes, is_value: bool) -> None:
        """Send a display. Returns when it has been taken, so that later output comes after it."""
        if os.getpid() != self._pid:
            return
        _flush()
        head = {"is": "display", "run": self._run, "types": types_}
        late: list[int] = []
        before = _call_at_interrupt(lambda number, _: late.append(number))
        try:
            self._tell({**head, "is_value": True} if is_value else head, body)
            while self._receive()[0]["do"] != "shown":
                continue
        finally:
            if before is not None:
                _call_at_interrupt(before)
        if late:
            _raw_signal.raise_signal(signal.SIGINT)

    def _tell(self, head: dict[str, Any], body: bytes = b"") -> None:
        if os.getpid() == self._pid:
            self._line.sendall(frame(head, body))

    def _tell_driver(self, head: dict[str, Any]) -> None:
        if os.getpid() == self._pid:
            self._channel.sendall(frame(head))


def _set_variables(variables: dict[str, str | None]) -> dict[str, str | None]:
    """Set variables, and remove those that are None. Returns their previous values."""
    before = {name: os.environ.get(name) for name in variables}
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return before


def _environment() -> dict[Any, Any]:
    """Return the variables for comparison, not decoded: decoding takes as long as a short run."""
    return dict(getattr(os.environ, "_data", os.environ))


def _go_to(directory: str | None) -> str | None:
    """Change to a directory, if one is given. Returns the previous one, or None if none was given."""
    if not directory:
        return None
    before = _directory()
    os.chdir(directory)
    return before


def _ignore_interrupts() -> Any:
    """Ignore Ctrl-C. Returns the previous handler. What a Ctrl-C that came just before raises is raised here."""
    before = _raw_signal.signal(signal.SIGINT, _raw_signal.SIG_IGN)
    return signal.default_int_handler if before is None else before


def _call_at_interrupt(handler: Any) -> Any:
    """Call this at Ctrl-C. Returns the previous handler, None in other threads than the first: they get none."""
    try:
        return _raw_signal.signal(signal.SIGINT, handler)
    except ValueError:
        return None


def _reseed() -> None:
    """Seed anew, so that no two forks draw the same random numbers."""
    # Not by the attribute `numpy.random`, which imports it: that would take most of the time of a fork.
    for name in ("random", "numpy.random"):
        if name in sys.modules:
            sys.modules[name].seed()


def _use_input(data: bytes) -> None:
    """Make this the standard input of the code, from an unnamed file; without data, an empty one."""
    with tempfile.TemporaryFile() if data else open(os.devnull, "rb") as file:
        if data:
            file.write(data)
            file.seek(0)
        os.dup2(file.fileno(), 0)
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115 - the code's


def reason(error: BaseException) -> str:
    """Return why something failed, in words that can be encoded."""
    return encodable(getattr(error, "strerror", "") or str(error) or type(error).__name__)


def encodable(text: str) -> str:
    """Return the text with surrogates escaped, so that it can be encoded as UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:  # noqa: S112
            continue  # the code has closed or replaced it


def _directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""  # it was removed


def _exit_code(leaving: SystemExit) -> int:
    """Return the exit status as the interpreter does; a text is printed to stderr."""
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    print(leaving.code, file=sys.stderr)
    return 1


def _hint(source: str) -> str:
    """Return what to write instead of a line that only IPython understands."""
    for line in source.splitlines():
        text = line.strip()
        if not text.startswith(("!", "%")):
            continue
        command = text[1:].strip()
        first, _, rest = command.partition(" ")
        if first in ("pip", "conda"):
            instead = "a session installs nothing: make an environment with `redoma env create NAME PACKAGE`, and open "
            instead += "a session with it"
        elif first == "cd":
            instead = f"use os.chdir({rest.strip()!r})"
        elif text.startswith("!"):
            instead = f"use session.command({command!r})"
        else:
            instead = "a session has none of IPython's commands"
        return f" (a line that begins with {text[0]} is not Python: {instead})"
    return ""
