"""The last process of a cell: it waits for an order, and becomes the code that nobody has reviewed. Inner.

Until then it is ours, and does with the guest's own rights what has to be done there: it looks at what is in force,
warms the interpreter, places the files and sets the limits. From the first line of the guest's code on nothing here is
trusted any more; what it leaves at `REPORT` is a claim about its value, not about how it ended.
"""

from __future__ import annotations

import ast
import atexit
import errno
import gc
import io
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
import types
from itertools import islice
from typing import Any, NoReturn

from redoma.backends.interpreter import Through, allow_calls
from redoma.backends.jail import probe, protocol, setup, value
from redoma.backends.jail.root import tell

MAIN, REPORT = "/run/main.py", "/run/report"
# Frames from `allow_calls` to the first call of the code. Before Python 3.12 calls into C count too, also its own.
_OUR_FRAMES = 5 if sys.version_info < (3, 12) else 1
_FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
_MAX_SOURCE = 2 << 20  # bytes of code kept as a file, for tracebacks and for processes that start over from it


def load() -> None:
    """In the zygote: what a run, or its end, needs beyond this file."""
    import linecache
    import random
    import tokenize

    _ = (linecache, random, tokenize)


def start(spec: dict[str, Any], control: socket.socket) -> NoReturn:
    order = socket.socket(fileno=spec["order"])
    try:
        arm(spec, order)
    except BaseException as error:
        tell(order, error)
        os._exit(1)
    control.detach()  # closed by number already
    told = protocol.read_order(order.recv)
    if told is None:
        os._exit(0)
    if told["control"] and told["argv"]:
        # The parent sees it close when we become the program, which signals are meant for, and not us.
        order.set_inheritable(False)
    else:
        order.close()
    run(told)


def arm(spec: dict[str, Any], order: socket.socket) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.dup2(spec[name], number, inheritable=True)
    sys.stdin, sys.stdout, sys.stderr = (stream(number) for number in range(3))
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]  # or it would be the zygote's, on the host
    os.chdir("/workspace")
    setup.take(setup.GUEST, spec)
    found = probe.look(spec)
    warm()
    names = spec["prelude"].arm() if spec["prelude"] is not None else {}
    settle(spec["seed"])
    sys.modules["__main__"].__dict__.update(names)
    order.sendall(protocol.frame(protocol.ARMED, json.dumps(found).encode()))


def stream(number: int, *, through: bool = False) -> io.TextIOWrapper:
    """Made anew: the zygote's remember what they were opened on. By the line, so that what was printed before a kill is
    kept; a line without its end only if that was asked for, since it takes twice as long to print."""
    errors = "backslashreplace" if number == 2 else "surrogateescape"
    if through:
        return io.TextIOWrapper(Through(number, "wb", closefd=False), "utf-8", errors, write_through=True)
    file = open(number, "wb" if number else "rb", closefd=False)  # noqa: SIM115 - lives as long as we do
    return io.TextIOWrapper(file, "utf-8", errors, line_buffering=number > 0)


def warm() -> None:
    """Go the whole way of a small program once. A page that is written to for the first time since the fork is copied,
    which takes longer than most of what is done with it; better now than when somebody waits."""
    paper = io.TextIOWrapper(io.BytesIO(), "utf-8", line_buffering=True)
    streams, sys.stdout, sys.stderr = (sys.stdout, sys.stderr), paper, paper
    told = protocol.order({"env": dict(os.environ), "files": {}, "source": "", "rlimits": {}})
    protocol.read_order(io.BytesIO(told).read)
    keep("print('x', 1.5)\n[str(i) for i in range(3)]")
    namespace = types.ModuleType("__main__")
    with open(MAIN, encoding="utf-8") as file:
        report({"value": evaluate(parse(file.read()), namespace.__dict__, 1000)})
    namespace.__dict__.clear()
    gc.collect()
    os.unlink(MAIN)
    os.unlink(REPORT)
    setup.limit({"RLIMIT_CORE": 0})
    sys.stdout, sys.stderr = streams
    environment(dict(os.environ))


def settle(seed: int) -> None:
    """Everything that is the same for all Python code. Each cell has a seed of its own: preloaded modules have the
    state of the zygote, and every cell would draw the same numbers."""
    sys.argv[:] = [MAIN]
    sys.path.insert(0, "/workspace")
    sys.modules["random"].seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed([seed >> 32, seed & 0xFFFFFFFF])
    gc.freeze()
    gc.enable()
    # After the freeze, and held by nobody else: at the end it is collected, with all that only it held.
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=MAIN, __builtins__=__builtins__)
    sys.modules["__main__"] = main


def keep(source: str) -> None:
    """As a file: for tracebacks, and for processes that start over from it."""
    if len(source) < _MAX_SOURCE:
        put(MAIN, source.encode("utf-8", "surrogatepass"))


def put(path: str, content: bytes) -> None:
    """Cheaper than `open`, and this is done in every run."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        while content:
            content = content[os.write(file, content) :]
    finally:
        os.close(file)


def run(told: dict[str, Any]) -> NoReturn:
    try:
        for name, content in told["files"].items():
            if "/" in name:
                os.makedirs(os.path.dirname(name), exist_ok=True)
            with open(name, "wb") as file:
                file.write(content)
    except OSError as error:
        report({"broken": f"place the file {name!r}: {error.strerror}", "errno": error.errno})
        os._exit(125)
    try:
        if told["cwd"]:
            os.chdir(told["cwd"])
    except OSError as error:
        report({"broken": f"enter {told['cwd']}: {error.strerror}", "errno": error.errno})
        os._exit(125)
    if told["argv"]:
        execute(told)
    python(told)


def execute(told: dict[str, Any]) -> NoReturn:
    """Become a program. Of us nothing stays, not even the memory."""
    argv, search = told["argv"], told["env"].get("PATH", os.defpath).split(":")
    if told["source"] is not None:
        with open("/run/script", "w", encoding="utf-8", errors="surrogateescape") as script:
            script.write(told["source"])
    sys.stdout.flush()
    broken = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    setup.limit(told["rlimits"])
    for path in [argv[0]] if "/" in argv[0] else [f"{directory or '.'}/{argv[0]}" for directory in search]:
        try:
            os.execve(path, argv, told["env"])  # noqa: S606 - without a shell is the point
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            broken = error  # type: ignore[assignment]  # another directory may have one that can be started
    report({"broken": f"start {argv[0]}: {broken.strerror}", "errno": broken.errno})
    os._exit(126 if broken.errno in (errno.EACCES, errno.ENOEXEC) else 127)


def python(told: dict[str, Any]) -> NoReturn:
    source, leave = told["source"], os._exit  # bound now: the code may put anything in its place
    environment(told["env"])
    if told["env"].get("PYTHONUNBUFFERED"):  # as the interpreter itself takes it
        sys.stdout, sys.stderr = (stream(number, through=True) for number in (1, 2))
        sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]
    keep(source)
    sys.argv += told["arguments"]
    allow_calls(told["recursion"], _OUR_FRAMES)
    setup.limit(told["rlimits"])
    code, found, known = 0, {}, len(sys.modules)
    try:
        program = parse(source)
    except BaseException as error:  # not the code's own doing: it has no frame to show yet
        error.__traceback__ = None
        program, code, found = [], 1, failure(error)
    try:
        if program:
            found = {"value": evaluate(program, sys.modules["__main__"].__dict__, told["value"])}
    except SystemExit as leaving:
        code = exit_code(leaving)
    except BaseException as error:
        code, found = 130 if isinstance(error, KeyboardInterrupt) else 1, failure(error)
    found |= finish(known)
    if found.get("value") is not None or len(found) > 1:
        report(found)
    if code == 130 and found.get("exception") == "KeyboardInterrupt":
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # as the interpreter ends by it: the status says so
        os.kill(os.getpid(), signal.SIGINT)
    leave(code & 0xFF)
    raise AssertionError


def parse(source: str) -> list[types.CodeType]:
    """The code, and its last expression if it ends with one. What is compiled is text, so a `coding:` cookie has no
    meaning: what runs is what the policy read."""
    tree = ast.parse(source, MAIN)
    if not tree.body or not isinstance(last := tree.body[-1], ast.Expr):
        return [compile(tree, MAIN, "exec", dont_inherit=True)]
    tree.body.pop()
    expression = compile(ast.Expression(last.value), MAIN, "eval", dont_inherit=True)
    return [compile(tree, MAIN, "exec", dont_inherit=True), expression]


def evaluate(program: list[types.CodeType], namespace: dict[str, Any], most: int) -> object:
    """Run it; what its last expression gave, encoded."""
    exec(program[0], namespace)  # noqa: S102 - this is what we are for
    return value.encode(eval(program[1], namespace), most) if len(program) > 1 else None  # noqa: S307


def environment(wanted: dict[str, str]) -> None:
    if dict(os.environ) != wanted:
        os.environ.clear()
        os.environ.update(wanted)
        time.tzset()  # the C library has looked at TZ already, in the zygote


def exit_code(leaving: SystemExit) -> int:
    """As the interpreter itself has it: a number, nothing, or a last word on stderr."""
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code
    print(leaving.code, file=sys.stderr)
    return 1


def failure(error: BaseException) -> dict[str, Any]:
    """Print it as the interpreter would, without our own frames."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    error.__traceback__ = frames
    try:
        sys.excepthook(type(error), error, frames)
    except BaseException:
        traceback.print_exc()
    try:
        text = f"{type(error).__name__}: {error}"
    except BaseException:
        text = type(error).__name__
    number = error.errno if isinstance(error, OSError) else None
    # The interpreter's own has no words, and numpy's is of a kind of its own; code that raises one says something.
    memory = isinstance(error, MemoryError) and (type(error) is not MemoryError or not error.args)
    return {"exception": type(error).__name__, "error": text[:65536], "errno": number, "memory": memory}


def finish(known: int) -> dict[str, Any]:
    """What the interpreter does at its end: wait for threads, run exit handlers, close what was left open."""
    found: dict[str, Any] = {}
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        flush_files()
        forget_modules(known)
        # Runs last words, while what they name is still there. What is new is young, unless there was a lot of it.
        gc.collect(2 if gc.get_objects(2) else 1)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except BaseException as error:
        number = error.errno if isinstance(error, OSError) else None
        found = {"at_exit": type(error).__name__, "errno": number}
    return found


def flush_files() -> None:
    """The collector may close a file before it has taken what was written to it."""
    for held in gc.get_objects():
        if type(held) in _FILES and not held.closed:
            held.flush()


def forget_modules(known: int) -> None:
    """Only the code's own: the others are shared with the zygote, and would be copied."""
    new = islice(reversed(sys.modules.items()), len(sys.modules) - known)  # to look at one is to touch it
    for name, module in list(new):
        if _is_the_guests(module):
            del sys.modules[name]
    sys.modules.pop("__main__", None)


def _is_the_guests(module: object) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(module, types.ModuleType) and isinstance(file, str) and file.startswith("/workspace")


def report(found: dict[str, Any]) -> None:
    try:
        put(REPORT, json.dumps(found).encode())
    except BaseException:
        return  # then there is no value: the guest has spoilt the place it should have been left at
