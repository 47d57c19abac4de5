"""The process of a cell that waits for an order and then runs the untrusted code. Loaded in the zygote.

Until it runs that code it is trusted. It has the guest's own rights already, and does what must be done with them: it
warms the interpreter up, places files and sets limits. From the first line of untrusted code on, nothing here is
trusted any more. What it leaves at `REPORT` is a claim about its value, not about how it ended.
"""

from __future__ import annotations

import _ast
import _json
import _signal
import _socket
import atexit
import errno
import gc
import io
import os
import random
import resource
import sys
import time
import types
from itertools import islice

from redoma.backends.interpreter import Through, allow_calls
from redoma.backends.jail import protocol, value
from redoma.backends.jail.root import tell

TYPE_CHECKING = False  # import only what every run needs: see `load`
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn, TextIO

    from redoma.backends.display import Displays
    from redoma.backends.jail.compiled import Maker

MAIN, REPORT, SCRIPT, WORKSPACE = "/run/main.py", "/run/report", "/run/script", "/workspace"
"""In a lean cell they are below its directory: see `start`."""
READY = "/run/ready"
"""A FIFO from which a shell that was started ahead learns that its script is there."""
_ORDER = 3  # the descriptor of the socket that the order comes by
# Frames between `allow_calls` and the first call of the code. Before Python 3.12, calls into C count, too.
_OUR_FRAMES = 5 if sys.version_info < (3, 12) else 1
_FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
_MAX_SOURCE = 2 << 20  # bytes of code kept as a file, for tracebacks and for processes that start over from it


def load() -> None:
    """In the zygote: import what many programs need. A zygote for one run skips this."""
    import ast
    import base64
    import contextlib
    import json
    import linecache
    import re
    import signal
    import socket
    import textwrap
    import threading
    import tokenize
    import traceback
    import typing
    import warnings

    _ = (ast, base64, contextlib, json, linecache, re, signal, socket, textwrap, threading, tokenize)
    _ = (traceback, typing, warnings)


def use_pipes() -> None:
    """In the zygote: open the standard streams on pipes, as in a guest, so that guests can keep the objects."""
    reading, writing = os.pipe()
    for number in range(3):
        os.dup2(writing if number else reading, number)
    os.close(reading)
    os.close(writing)
    set_streams(*(stream(number) for number in range(3)))


def set_streams(stdin: TextIO, stdout: TextIO, stderr: TextIO) -> None:
    """Replace the standard streams, also those that Python keeps aside."""
    sys.stdin, sys.stdout, sys.stderr = stdin, stdout, stderr
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = stdin, stdout, stderr  # type: ignore[misc,assignment]


def start(
    found: bytes, seed: int, prelude: types.ModuleType | None, maker: Maker, place: bytes, *, ahead: bool, warm: bool
) -> NoReturn:
    """In the guest, after c/cell.c has made and probed the cell: arm the interpreter, wait for the order, run it.

    `found` is the result of the probe, `seed` that of the random numbers. `prelude` is a module of another backend
    whose `arm()` is called. `maker` starts the holder (see c/cell.c). `place` is the directory of a lean cell; empty in
    other cells, which have their own root. `ahead`: a first message names a program to start before the order comes.
    `warm`: run a small program first.
    """
    global MAIN, REPORT, SCRIPT, WORKSPACE
    if place:
        MAIN, REPORT, SCRIPT, WORKSPACE = (os.fsdecode(place) + path for path in (MAIN, REPORT, SCRIPT, WORKSPACE))
    channel = _socket.socket(fileno=_ORDER)
    if ahead:
        start_ahead(channel, found, maker)
    try:
        if (threading := sys.modules.get("threading")) is not None:
            threading.main_thread()._set_native_id()  # or it would be that of the zygote
        if warm:
            warm_up()
        else:
            try_to_write()
        names = prelude.arm() if prelude is not None else offer_displays()
        settle(seed)
        sys.modules["__main__"].__dict__.update(names)
        holder = maker.hold()
        channel.sendall(protocol.frame(protocol.ARMED, found))
    except BaseException as error:
        tell(_ORDER, error)
        os._exit(1)
    order = protocol.read_order(channel.recv)
    if order is None:
        os._exit(0)
    if not order["argv"]:
        if "RLIMIT_NPROC" in order["rlimits"] and holder > 0:
            order["rlimits"]["RLIMIT_NPROC"] += 1  # the holder counts as one
    elif holder > 0:  # it would keep memory that nobody needs
        maker.release()
    run(order, channel)


def await_start(channel: _socket.socket) -> None:
    """Wait for the word to start: the run may not be on record yet. If Redoma goes away instead, end this process."""
    if not channel.recv(1):
        os._exit(0)


def offer_displays() -> dict[str, Any]:
    """Return the names that code can use to display things, as in a notebook."""
    if _PYPLOT in sys.modules:  # preloaded
        watch_pyplot()
    else:
        sys.meta_path.insert(0, PyplotFinder())
    return {"display": display}


def stream(number: int, *, through: bool = False) -> io.TextIOWrapper:
    """Return a text stream on a descriptor, flushed after each line, so that output before a kill is kept. `through`
    flushes after each write, which takes twice as long.
    """
    errors = "backslashreplace" if number == 2 else "surrogateescape"
    if through:
        return io.TextIOWrapper(Through(number, "wb", closefd=False), "utf-8", errors, write_through=True)
    file = open(number, "wb" if number else "rb", closefd=False)  # noqa: SIM115 - lives as long as we do
    return io.TextIOWrapper(file, "utf-8", errors, line_buffering=number > 0)


_SAMPLE: dict[str, Any] = {
    "argv": [],
    "arguments": [],
    "source": "print('x', 1.5)\n[str(i) for i in range(3)]",
    "env": {},
    "files": {},
    "cwd": None,
    "value": 1000,
    "recursion": 1000,
    "rlimits": {"RLIMIT_CORE": 0},
    "site": False,
}
_SAMPLE_ORDER = protocol.order(_SAMPLE)
_TIMES = 12  # after which the interpreter has specialised what it runs often


def rehearse() -> None:
    """In the zygote: do what each guest does until it has run its code, several times. Functions that are run for the
    first few times write to their own code, and so would copy pages in each cell.
    """
    global MAIN, REPORT
    before = MAIN, REPORT
    MAIN = REPORT = os.devnull
    finders, argv, main = sys.meta_path[:], sys.argv[:], sys.modules["__main__"]
    for _ in range(_TIMES):
        practise()
        offer_displays()
        settle(0)
        sys.meta_path[:], sys.argv[:], sys.modules["__main__"] = finders, argv, main
    MAIN, REPORT = before


def warm_up() -> None:
    """Run a small program once, ahead of time: the first write to each page after the fork copies it, which would cost
    more than the run itself.
    """
    practise()
    os.unlink(MAIN)
    os.unlink(REPORT)


def try_to_write() -> None:
    """Raise `OSError` now, while the cell is made, if a run could not write our files."""
    put(MAIN, b"")
    os.unlink(MAIN)


def practise() -> None:
    """Run a small program as if it had been ordered, and leave nothing but its files."""
    order = protocol.read_order(io.BytesIO(_SAMPLE_ORDER).read)
    if order is None:
        raise EOFError
    paper = io.TextIOWrapper(io.BytesIO(), "utf-8", line_buffering=True)
    streams, sys.stdout, sys.stderr = (sys.stdout, sys.stderr), paper, paper
    main, depth, known = sys.modules["__main__"], sys.getrecursionlimit(), len(sys.modules)
    path = sys.path[:]
    sys.modules["__main__"] = types.ModuleType("__main__")
    report(perform(order, _no_wait)[1])
    clean_up(known)
    sys.modules["__main__"] = main
    sys.setrecursionlimit(depth)
    sys.path[:] = path
    _own_places.clear()
    sys.stdout, sys.stderr = streams


def settle(seed: int) -> None:
    """Do what is the same for all Python code. Seeds the random numbers: otherwise every cell would have the state of
    the zygote and draw the same ones.
    """
    sys.argv[:] = [MAIN]
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed([seed >> 32, seed & 0xFFFFFFFF])
    gc.freeze()
    gc.enable()
    # Made after the freeze and referenced by nothing else, so it is collected at the end with all that only it holds.
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=MAIN, __builtins__=__builtins__)
    sys.modules["__main__"] = main


def limit(limits: dict[str, int]) -> None:
    """Set resource limits by name, soft and hard."""
    for which, bound in bounds(limits):
        resource.setrlimit(which, (bound, bound))


def bounds(limits: dict[str, int]) -> list[tuple[int, int]]:
    """Return the numbers and values of resource limits that are given by name; no value is above our own limit."""
    found = []
    for name, wanted in limits.items():
        which = getattr(resource, name)
        hard = resource.getrlimit(which)[1]
        found.append((which, wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)))
    return found


def keep(source: str) -> None:
    """Write the code to a file, for tracebacks and for child processes that load it again (multiprocessing)."""
    if len(source) < _MAX_SOURCE:
        put(MAIN, source.encode("utf-8", "surrogatepass"))


def put(path: str, content: bytes) -> None:
    """Write a file. Cheaper than `open`, and every run does it."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        while content:
            content = content[os.write(file, content) :]
    finally:
        os.close(file)


def place_files(order: dict[str, Any]) -> bool:
    """Place the files of the order. Reports it and returns False if that fails."""
    name = ""
    try:
        for name, content in order["files"].items():
            if "/" in name:
                os.makedirs(os.path.dirname(name), exist_ok=True)
            with open(name, "wb") as file:
                file.write(content)
    except OSError as error:
        not_placed(name, error)
        return False
    return True


def place_script(order: dict[str, Any]) -> bool:
    """Place the script for another program, if the order has one. Reports it and returns False if that fails."""
    try:
        if order["source"] is not None:
            put(SCRIPT, order["source"].encode("utf-8", "surrogateescape"))
    except OSError as error:
        not_placed(SCRIPT, error)
        return False
    return True


def not_placed(name: str, error: OSError) -> None:
    """Report a file that could not be placed."""
    report({"broken": f"place the file {name!r}: {error.strerror}", "errno": error.errno})


def run(order: dict[str, Any], channel: _socket.socket) -> NoReturn:
    """Place the files of the order, enter its directory, and run it at the word to start. Reports what fails."""
    if not place_files(order):
        os._exit(125)
    try:
        if order["cwd"]:
            os.chdir(order["cwd"])
    except OSError as error:
        report({"broken": f"enter {order['cwd']}: {error.strerror}", "errno": error.errno})
        os._exit(125)
    if order["argv"]:
        execute(order, channel)
    python(order, channel)


def execute(order: dict[str, Any], channel: _socket.socket) -> NoReturn:
    """Execute a program in place of this process, at the word to start. Reports it if none can be started."""
    argv, search = order["argv"], order["env"].get("PATH", os.defpath).split(":")
    sys.stdout.flush()
    broken = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    if not place_script(order):  # before its size is limited
        os._exit(125)
    limit(order["rlimits"])
    await_start(channel)  # the socket closes on exec
    for path in [argv[0]] if "/" in argv[0] else [f"{directory or '.'}/{argv[0]}" for directory in search]:
        try:
            os.execve(path, argv, order["env"])  # noqa: S606 - without a shell is the point
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            broken = error  # type: ignore[assignment]  # another directory of PATH may have one that works
    report({"broken": f"start {argv[0]}: {broken.strerror}", "errno": broken.errno})
    os._exit(126 if broken.errno in (errno.EACCES, errno.ENOEXEC) else 127)


# --- a shell that is started ahead of its run ---

_BEGIN = b"unset BASH_ENV; SECONDS=0; : bash"
"""What Bash reads before it opens its script. Then all is as in a shell that has just been started (`$_` is its name),
but for `set`, which lists SECONDS, BASH_ARGC and PIPESTATUS.
"""
_FREE_LATER = 0.002  # seconds: the kernel takes up to a millisecond to free our memory, and the script goes first


def start_ahead(channel: _socket.socket, found: bytes, maker: Maker) -> None:
    """Start the shell that the next message names, in place of this process, and have it wait. Continues in a helper,
    which passes the script on when the order comes. Returns only where a cell can have no helper.

    Loading a shell takes longer than most scripts. Bash executes the file that BASH_ENV names before it opens its
    script. Here that is a FIFO, so it waits there with everything else done.
    """
    try:
        shell = protocol.read_order(channel.recv)
        if shell is None:
            os._exit(0)
        search = shell["env"].get("PATH", os.defpath).split(":")
        path = next(path for directory in search if os.access(path := f"{directory}/{shell['argv'][0]}", os.X_OK))
        os.mkfifo(READY, 0o600)
        if not maker.start(path, shell["argv"], {**shell["env"], "BASH_ENV": READY}, bounds(shell["rlimits"])):
            os.unlink(READY)
            return
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # the script may interrupt its whole group
        ready = os.open(READY, os.O_WRONLY | os.O_CLOEXEC)  # when Bash has opened it, too
        os.unlink(READY)
        practise_passing_on(shell)
        channel.sendall(protocol.frame(protocol.ARMED, found))
        wait_for_either(channel.fileno(), ready)
    except BaseException as error:
        tell(_ORDER, error)
        os._exit(1)
    order = protocol.read_order(channel.recv)
    if order is None:
        os._exit(0)
    is_prepared = is_for(order, shell) and place_files(order)
    await_start(channel)
    channel.close()
    # The script comes last. If this process is killed before, the shell goes on, and finds none.
    os.write(ready, _BEGIN if is_prepared and place_script(order) else b"exit 125")
    os.close(ready)
    time.sleep(_FREE_LATER)
    os._exit(0)


def wait_for_either(channel: int, ready: int) -> None:
    """Wait until the channel is readable. If the reader of `ready` ends before that, end: Redoma sees it at once."""
    import select

    both = select.poll()
    both.register(channel, select.POLLIN)
    both.register(ready, 0)  # errors are reported without being asked for
    if channel not in dict(both.poll()):
        os._exit(1)


def practise_passing_on(shell: dict[str, Any]) -> None:
    """Do what the helper does with an order, ahead of time: see `warm_up`."""
    encoded = protocol.order({**shell, "files": {}, "source": _SAMPLE["source"]})
    order = protocol.read_order(io.BytesIO(encoded).read)
    if order is not None and is_for(order, shell) and place_files(order) and place_script(order):
        os.unlink(SCRIPT)


def is_for(order: dict[str, Any], shell: dict[str, Any]) -> bool:
    """Return whether the order is for this shell, which can't be changed any more. Reports it if it isn't."""
    for what in ("argv", "env", "rlimits", "cwd"):
        if order[what] != shell[what]:
            report({"broken": f"use a shell that was started with another {what}"})
            return False
    return True


# --- Python ---


def python(order: dict[str, Any], channel: _socket.socket) -> NoReturn:
    """Run Python code, report on it, and end this process."""

    def wait() -> None:
        await_start(channel)
        channel.close()

    known, leave = len(sys.modules), os._exit  # bound now: the code may replace os._exit
    if order["env"].get("PYTHONUNBUFFERED"):  # as the interpreter does
        set_streams(sys.stdin, stream(1, through=True), stream(2, through=True))
    code, found = perform(order, wait)
    found |= finish(known)
    if found.get("value") is not None or len(found) > 1:
        report(found)
    if code == 130 and found.get("exception") == "KeyboardInterrupt":
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # end by the signal, as the interpreter does
        os.kill(os.getpid(), _signal.SIGINT)
    leave(code & 0xFF)
    raise AssertionError


def _no_wait() -> None:
    """In a rehearsal there is no word to start."""


def perform(order: dict[str, Any], wait: Callable[[], None]) -> tuple[int, dict[str, Any]]:
    """Run the Python code of an order. Everything before its first line is done before `wait` returns.

    Returns its exit code, and what to report.
    """
    source = order["source"]
    environment(order["env"])
    keep(source)
    sys.argv += order["arguments"]
    allow_calls(order["recursion"], _OUR_FRAMES)
    limit(order["rlimits"])
    program: list[types.CodeType] = []
    wrong: BaseException | None = None
    try:
        program = parse(source)
    except BaseException as error:  # before the code has a frame, so there is no traceback to show
        wrong = error.with_traceback(None)
    wait()
    find_own_modules(order["cwd"])
    code, found = 0, {}
    if order["site"]:
        find_packages()
    if wrong is not None:
        code, found = 1, failure(wrong)
    try:
        if program:
            result = evaluate(program, sys.modules["__main__"].__dict__)
            found = {"value": value.encode(result, order["value"])}
            show(result)
    except SystemExit as leaving:
        code = exit_code(leaving)
    except BaseException as error:
        code, found = 130 if isinstance(error, KeyboardInterrupt) else 1, failure(error)
    if _shown:
        found["displays"] = _shown
    return code, found


_own_places: list[str] = []  # where the modules of the code are


def find_own_modules(directory: str | None) -> None:
    """Let imports find the files of the run, and the modules of a project, as for a script that is there.

    Not before the word to start: compiling code can import modules of the standard library, and a file may have the
    name of one.
    """
    for place in [WORKSPACE, directory] if directory else [WORKSPACE]:
        sys.path.insert(0, place)
        _own_places.append(place)


def find_packages() -> None:
    """Do what `site` does at the start of an interpreter: the zygote did not see the packages of the environment. Their
    `.pth` files and `sitecustomize` run here, as code of the guest.
    """
    import site

    sys.path_importer_cache.clear()  # it has cached that the directory is empty
    site.addsitedir(f"{sys.prefix}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages")
    site.execsitecustomize()


def parse(source: str) -> list[types.CodeType]:
    """Compile the code, and its last expression separately if it ends with one.

    Text is compiled, so a `coding:` cookie is ignored: what runs is what the policy read.
    """
    # What `ast.parse` does, without importing that large module.
    tree: Any = compile(source, MAIN, "exec", _ast.PyCF_ONLY_AST, dont_inherit=True)
    if not tree.body or not isinstance(last := tree.body[-1], _ast.Expr):
        return [compile(tree, MAIN, "exec", dont_inherit=True)]
    tree.body.pop()
    expression = compile(_ast.Expression(last.value), MAIN, "eval", dont_inherit=True)
    return [compile(tree, MAIN, "exec", dont_inherit=True), expression]


def evaluate(program: list[types.CodeType], namespace: dict[str, Any]) -> object:
    """Run it. Returns the value of its last expression."""
    exec(program[0], namespace)  # noqa: S102 - this is what we are for
    return eval(program[1], namespace) if len(program) > 1 else None  # noqa: S307


# --- displays ---

_PYPLOT = "matplotlib.pyplot"
_PLAIN = (type(None), int, float, str, bool, bytes, list, tuple, dict, set)
"""Types whose values have no representation but their `repr`."""
_shown: list[dict[str, str]] = []
_displays: Displays | None = None
_showing: dict[str, Any] = {"__name__": "display"}


def displays() -> Displays:
    """Return the one collector of displays. Made, and its module loaded, when something is first shown."""
    global _displays
    if _displays is None:
        _displays = showing()["Displays"](keep_display, protocol.MAX_SHOWN)
    return _displays


def showing() -> dict[str, Any]:
    """Return the names of `backends.display`. Its source is executed: our package can't be imported in a guest."""
    if "Displays" not in _showing:
        path = os.path.join(os.path.dirname(os.path.dirname(__file__)), "display.py")
        with open(path, encoding="utf-8") as file:
            exec(compile(file.read(), path, "exec", dont_inherit=True), _showing)  # noqa: S102 - our own
    return _showing


def display(*objects: Any) -> None:
    """Show objects as a notebook does: by their richest representations, and as text."""
    displays().display(*objects)


def show(result: object) -> None:
    """Display the value of the last expression, if it has more than a `repr`, and all open figures. A failure is
    printed, but does not fail the run.
    """
    if type(result) in _PLAIN and _PYPLOT not in sys.modules:
        return
    try:
        displays().result(result)
        displays().figures()
    except BaseException as error:
        failure(error)


def keep_display(types_: list[tuple[str, int]], body: bytes, _is_value: bool) -> None:
    """Keep a display for the report, with its parts as text."""
    import base64

    found, at = dict[str, str](), 0
    for kind, size in types_:
        part, at = body[at : at + size], at + size
        found[kind] = base64.b64encode(part).decode() if kind in showing()["BINARY"] else part.decode()
    _shown.append(found)


class PyplotFinder:
    """Makes `plt.show()` display figures, as soon as pyplot is imported. Loads nothing before that."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _PYPLOT:
            return None
        sys.meta_path.remove(self)
        watch_pyplot()
        return sys.meta_path[0].find_spec(name, path, target)


def watch_pyplot() -> None:
    """Make `plt.show()` display figures."""
    showing()["watch_pyplot"](displays())


def environment(changed: dict[str, str]) -> None:
    """Set environment variables, besides those that every run has."""
    if changed:
        os.environ.update(changed)
        time.tzset()  # the C library has already read TZ, in the zygote


def exit_code(leaving: SystemExit) -> int:
    """Return the exit code that the interpreter would; print the argument to stderr if it is not a number."""
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code
    print(leaving.code, file=sys.stderr)
    return 1


def failure(error: BaseException) -> dict[str, Any]:
    """Print an exception as the interpreter would, without our own frames. Returns what to report of it."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    error.__traceback__ = frames
    try:
        sys.excepthook(type(error), error, frames)
    except BaseException:
        import traceback

        traceback.print_exc()
    try:
        text = f"{type(error).__name__}: {error}"
    except BaseException:
        text = type(error).__name__
    number = error.errno if isinstance(error, OSError) else None
    # The interpreter's own MemoryError has no arguments, and numpy's is a subclass. Others are raised by the code.
    memory = isinstance(error, MemoryError) and (type(error) is not MemoryError or not error.args)
    return {"exception": type(error).__name__, "error": text[:65536], "errno": number, "memory": memory}


def finish(known: int) -> dict[str, Any]:
    """Do what the interpreter does at its end: wait for threads, run exit handlers, close files. Returns what to report
    if that fails.
    """
    try:
        threading = sys.modules.get("threading")
        if threading is not None and (len(threading._active) > 1 or threading._threading_atexits):
            threading._shutdown()
        atexit._run_exitfuncs()
        clean_up(known)
    except BaseException as error:
        return {"errno": error.errno if isinstance(error, OSError) else None}
    return {}


def clean_up(known: int) -> None:
    """Let go of what the code has left, and flush the streams. `known` modules were there before it."""
    flush_files()
    forget_modules(known)
    # Runs finalisers while the names they use still exist. New objects are in young generations, unless many.
    gc.collect(2 if gc.get_objects(2) else 1)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def flush_files() -> None:
    """Flush open files: the garbage collector may close a raw file before the buffer above it is written."""
    for held in gc.get_objects():
        if type(held) in _FILES and not held.closed:
            held.flush()


def forget_modules(known: int) -> None:
    """Clear the modules that the code imported. The others are shared with the zygote; touching them copies pages."""
    new = islice(reversed(sys.modules.items()), len(sys.modules) - known)  # looking at one writes to it
    for name, module in list(new):
        if _is_the_guests(module):
            del sys.modules[name]
    sys.modules.pop("__main__", None)


def _is_the_guests(module: object) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(module, types.ModuleType) and isinstance(file, str) and file.startswith(tuple(_own_places))


def report(found: dict[str, Any]) -> None:
    """Write the report for Redoma: see `run.Report`."""
    try:
        put(REPORT, as_json(found).encode())
    except BaseException:
        return  # the guest has made the file unusable, so there is no value


def as_json(value: object) -> str:
    """Return plain data with text keys as JSON. (`json` is a large module to import.)"""
    if isinstance(value, str):
        return _json.encode_basestring_ascii(value)
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "{" + ", ".join(f"{as_json(key)}: {as_json(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(as_json, value)) + "]"
    if isinstance(value, float):
        return float.__repr__(value)
    if isinstance(value, int):
        return int.__repr__(value)
    raise TypeError(f"{type(value).__name__} is not plain data")
