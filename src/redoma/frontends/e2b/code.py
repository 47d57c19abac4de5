"""Stateful code execution: /execute, which streams lines of JSON, and /contexts."""

from __future__ import annotations

import base64
import posixpath
import time
from typing import Annotated, Any

import msgspec

from ...backends import display
from ...models import Chunk, Display, Result, Status
from ...sessions.runs import AsyncSessionRun, RunOptions
from .sandboxes import HOME, Context, Sandbox, language_of
from .wire import E2bRequest, Problem, problem_of

_FORMATS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "text/latex": "latex",
    "application/json": "json",
    display.CHART: "chart",
    display.TABLE: "data",
}
_JSON = ("application/json", display.CHART, display.TABLE)
_NAMES = {
    Status.TIMEOUT: "TimeoutError",
    Status.MEMORY: "MemoryError",
    Status.OUTPUT: "OutputLimitExceeded",
    Status.KILLED: "KeyboardInterrupt",
}
"""Error names for statuses that are not exceptions of the code."""
_Text = Annotated[str, msgspec.Meta(max_length=4096)]


class Execute(msgspec.Struct):
    """The body of `/execute`."""

    code: str
    context_id: str | None = None
    language: str | None = None
    env_vars: Annotated[dict[_Text, _Text], msgspec.Meta(max_length=200)] | None = None


class NewContext(msgspec.Struct):
    """The body of a request to create a context."""

    language: str | None = None
    cwd: _Text | None = None


async def execute(request: E2bRequest, sandbox: Sandbox) -> None:
    """Run code and stream its output and results. If the client disconnects, the code is interrupted."""
    body = await request.json(Execute)
    if body.context_id and body.language:
        raise Problem("invalid_argument", "give a context or a language, not both")
    context = sandbox.context(body.context_id, body.language)
    code, language = dedented(body.code), context.language
    if language == "python" and (script := _shell_lines(code)) is not None:
        code, language = script, "bash"
    options: RunOptions = {
        "context": context.name,
        "untimed": True,  # it ends at the latest with the sandbox
        "env": {"PWD": HOME, **(body.env_vars or {})} if language == "bash" else body.env_vars or {},
        "traceback_apart": True,
        "charts": True,
        "whole_output": True,
    }
    if context is not sandbox.default and language == "python":
        options["cwd"] = inside(context.cwd)
    nothing = ":" if language == "bash" else "pass"
    run = sandbox.session.stream(code or nothing, language, **options)
    context.executions += 1
    await request.begin(200, {"content-type": "application/x-ndjson"})
    await request.until_gone(_follow(request, sandbox, run, context.executions))


async def _follow(request: E2bRequest, sandbox: Sandbox, run: AsyncSessionRun, number: int) -> None:
    await _say(request, "number_of_executions", execution_count=number)
    has_value = False
    try:
        async with run:
            while (event := await run.next_event()) is not None:
                if isinstance(event, Chunk):
                    await _say(request, event.stream, text=event.text, timestamp=time.time_ns())
                else:
                    has_value = has_value or event.is_value
                    await _say(request, "result", **_shown(event))
            result = run.result
        if result.status is Status.FAILED and not sandbox.session.alive:
            return  # the SDK takes an unfinished answer as a sign that the sandbox was killed
        if result.value_repr is not None and not has_value:
            await _say(request, "result", text=unquoted(result.value_repr), is_main_result=True)
        if result.status is not Status.OK:
            await _say(request, "error", **_error(result, run.traceback))
    except Exception as error:  # too late for an error status: report it in the stream
        problem = problem_of(error)
        await _say(request, "error", name="SandboxError", value=problem.message, traceback="")
    await _say(request, "end_of_execution")
    await request.end()


async def _say(request: E2bRequest, kind: str, **more: Any) -> None:
    await request.piece(msgspec.json.encode({"type": kind, **more}) + b"\n")


def _shown(display: Display) -> dict[str, Any]:
    shown: dict[str, Any] = {"is_main_result": display.is_value}
    for kind, content in display.data.items():
        if kind not in _FORMATS:
            continue
        if isinstance(content, bytes):
            content = base64.b64encode(content).decode()
        elif kind in _JSON:
            try:
                content = msgspec.json.decode(content)
            except (msgspec.DecodeError, RecursionError):
                continue  # the code produced invalid JSON
        shown[_FORMATS[kind]] = unquoted(content) if kind == "text/plain" else content
    return shown


def unquoted(text: str) -> str:
    """Return the text of a result as E2B shows it: strings without their quotes."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def dedented(code: str) -> str:
    """Remove leading empty lines and the indentation of the first line, as notebooks do."""
    lines = code.splitlines(keepends=True)
    while lines and not lines[0].strip():
        lines.pop(0)
    if not lines:
        return ""
    indent = lines[0][: len(lines[0]) - len(lines[0].lstrip(" \t"))]
    return "".join(line.removeprefix(indent) for line in lines)


def _shell_lines(code: str) -> str | None:
    """Return the Bash script of a cell that consists of `!command` lines only; None for any other cell."""
    lines = [line.strip() for line in code.splitlines() if line.strip()]
    return "\n".join(line[1:] for line in lines) if lines and all(line.startswith("!") for line in lines) else None


def _error(result: Result, traceback: str) -> dict[str, str]:
    """Describe a failed run in the form of an exception."""
    said = result.error or ""
    if result.exception:
        value = said.removeprefix(f"{result.exception}: ")
        return {"name": result.exception, "value": value, "traceback": traceback or said}
    if result.status.ending == "refused":
        name = "Refused"
    elif result.status is Status.ERROR:
        name, said = "SystemExit", str(result.exit_code)
    else:
        name = _NAMES.get(result.status, "SandboxError")
    return {"name": name, "value": said, "traceback": f"{name}: {said}"}


def inside(path: str) -> str:
    """Convert a client's path to a path of the session: paths below /home/user become relative."""
    if path == "~" or path.startswith("~/"):
        path = HOME + path[1:]
    whole = posixpath.normpath(posixpath.join(HOME, path))
    if whole == HOME:
        return "."
    return whole.removeprefix(f"{HOME}/")


def outside(path: str) -> str:
    """Return the absolute path as clients see it."""
    return posixpath.normpath(posixpath.join(HOME, inside(path)))


# --- contexts ---


def _described(context: Context) -> dict[str, str]:
    return {"id": context.id, "language": context.language, "cwd": context.cwd}


async def contexts(request: E2bRequest, sandbox: Sandbox) -> None:
    """Answer the contexts of a sandbox."""
    await request.answer([_described(each) for each in sandbox.contexts.values()])


async def create_context(request: E2bRequest, sandbox: Sandbox) -> None:
    """Create a context, and its working directory if it does not exist."""
    body = await request.json(NewContext)
    cwd = outside(body.cwd or HOME)
    await sandbox.session.files.make_dir(inside(cwd))  # no error if it exists
    await request.answer(_described(sandbox.add_context(language_of(body.language), cwd)))


async def remove_context(request: E2bRequest, sandbox: Sandbox, context: str) -> None:
    """Drop the variables of a context and remove it; the default context stays."""
    found = sandbox.context(context, None)
    await _forget(sandbox, found)
    if found is not sandbox.default:
        sandbox.contexts.pop(found.id, None)
    await request.answer(status=204)


async def restart_context(request: E2bRequest, sandbox: Sandbox, context: str) -> None:
    """Drop the variables of a context and reset its count of executions."""
    found = sandbox.context(context, None)
    await _forget(sandbox, found)
    found.executions = 0
    await request.answer(status=204)


async def _forget(sandbox: Sandbox, context: Context) -> None:
    """Drop the variables of a context, after interrupting the code that runs in it."""
    current = sandbox.session.current
    if current is not None and current.context == context.name:
        sandbox.session.interrupt()
    if context.language == "python":
        await sandbox.session.forget(context.name)
