"""A Lua state for one script, and its end of the channel to Redoma. This module is loaded in a cell.

The script has no files, programs or modules (`host.lua` lists what it has). For everything outside, it sends questions
as frames on standard output: four bytes of length, then JSON. The answers arrive on standard input in the same form.
Lua strings are encoded as Latin-1, one character for each byte. The script sends one question at a time, and none
before it has read the last answer.

The reader of the frames trusts none of this: see `backend`. A script that escaped from Lua into this interpreter could
request nothing more than before, and the cell confines both.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypedDict

PROGRAM = "lua"
"""The name under which the code in a cell calls `run`."""
MAX_FRAME = 1 << 20
"""Maximum bytes of one question."""

_HEADER = struct.Struct("!I")
_WORLD = Path(__file__).with_suffix(".lua").read_bytes()
_FIELDS = {
    "print": ("text",),
    "get": ("entry",),
    "release": ("executor",),
    "start": ("process",),
    "write": ("text", "process"),
    "close_stdin": ("process",),
    "signal": ("process", "number"),
    "wait": ("process",),
    "close": ("process",),
    "read": ("process", "stream", "size"),
    "close_stream": ("process", "stream"),
}
"""The questions and the names of their arguments. `exec` and `exit` are handled below."""


class ScriptJob(TypedDict):
    """The script to run. It is passed into the cell as the text of a dictionary, so it is plain data."""

    source: str
    name: str
    arguments: list[str]


class LuaError(Exception):
    """The script failed. Raised instead of lupa's exceptions, whose tracebacks would show our own code."""

    def __init__(self, message: str, trace: str) -> None:
        super().__init__(message)
        self.trace = trace


Run = Callable[..., Any]
_state: list[Run] = []


def arm() -> dict[str, Any]:
    """Make a Lua state ahead of time, in a guest that has no code yet. Returns the names that the code will find."""
    _state.append(make())
    return {PROGRAM: run}


def make() -> Run:
    """Make a Lua state. Returns the function that runs a script in it."""
    import lupa.lua54 as lupa

    runtime = lupa.LuaRuntime(
        encoding="latin-1",
        register_eval=False,
        register_builtins=False,
        unpack_returned_tuples=True,
        attribute_filter=_nothing,
    )
    seeds = struct.unpack("2q", os.urandom(16))
    world: Run = runtime.execute(_WORLD, _ask, *seeds, name="=redoma", mode="t")
    return world


def run(job: ScriptJob) -> None:
    """Run a script: the only thing that a cell is asked to do. Raises `LuaError` if the script fails."""
    sys.excepthook = _complain
    world = _state.pop() if _state else make()
    found = world(_source(job["source"]), *map(_latin, (job["name"], *job["arguments"])))
    if found is None:
        return
    message, trace = found if isinstance(found, tuple) else (found, "")
    if message == "not enough memory":
        raise MemoryError
    raise LuaError(_text(message), _text(trace))


def _source(text: str) -> str:
    """Remove a first line that begins with `#`, such as `#!`, but not its newline: line numbers must stay right."""
    text = text.removeprefix("\ufeff")
    if text.startswith("#"):
        text = "".join(text.partition("\n")[1:])
    return _latin(text)


def _latin(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("latin-1")


def _text(latin: str) -> str:
    return latin.encode("latin-1").decode("utf-8", "replace")


def _complain(kind: type[BaseException], error: BaseException, _: object) -> None:
    text = f"{error}\n{error.trace}\n" if isinstance(error, LuaError) and error.trace else f"{error or kind.__name__}\n"
    if isinstance(error, MemoryError):
        text = "not enough memory\n"
    _write(2, text.encode("utf-8", "backslashreplace"))


def _nothing(*_: object) -> NoReturn:
    raise AttributeError("nothing of Python is to be had here")


# --- the channel ---


def _ask(method: str, *given: Any) -> tuple[Any, ...]:
    """Send a question and wait for the answer; called by Lua. Returns whether it succeeded, then the answer or the
    error; nothing more for nil.
    """
    if method == "exit":
        os._exit(given[0] & 0xFF)
    payload = json.dumps(_question(method, given), ensure_ascii=False).encode()
    if len(payload) > MAX_FRAME:
        return (
            False,
            f"{method} is too large: {len(payload)} bytes, where {MAX_FRAME} cross. Next: pass less at a time",
        )
    _write(1, _HEADER.pack(len(payload)) + payload)
    if method == "print":
        return (True,)
    answer = json.loads(_read(*_HEADER.unpack(_read(_HEADER.size))))
    if "error" in answer:
        return False, answer["error"]
    return (True,) if answer["value"] is None else (True, answer["value"])


def _question(method: str, given: tuple[Any, ...]) -> dict[str, Any]:
    if method != "exec":
        return {"do": method, **dict(zip(_FIELDS[method], given, strict=True))}
    executor, directory, count, *rest = given
    words, env = rest[: count or 1], rest[count or 1 :]
    return {
        "do": "exec",
        "executor": executor,
        "command": words if count else words[0],
        "work_dir": directory,
        "env": dict(zip(env[::2], env[1::2], strict=True)),
    }


def _write(number: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(number, rest) :]


def _read(size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(0, min(size - len(data), 1 << 20))
        if not piece:
            os._exit(1)  # the other end is closed, so there is no answer and no reader for an error
        data += piece
    return data
