"""The tools: what they take, what they call, and what clients are told of them."""

from __future__ import annotations

import base64
import logging
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import CallToolResult, ToolAnnotations
from pydantic import BaseModel, Field

from ... import __version__
from ...lib.errors import InvalidRequest, Pending
from ...models import Result
from ...policy import level_of
from ...sessions import AsyncSession
from . import answers
from .answers import (
    ChangesOutput,
    CheckOutput,
    DoneOutput,
    EntryOutput,
    FileOutput,
    FilesOutput,
    RunOutput,
    SessionOutput,
    SessionsOutput,
    answer,
    clean,
)
from .approval import Tried, telling, with_approval
from .tool_host import ToolHost, Wanted, to_its_end

_INSTRUCTIONS = (
    "Redoma runs code in a sandbox: each run in a cell of its own, without network and without files of the user, "
    "unless they are given to it. Use run_python, run_bash or run_command for anything that need not touch the user's "
    "project; session_open keeps variables and files between runs. To change the project, use try_command: it works "
    "on a copy, and shows every file that it would change; apply_changes makes that happen. If a person has to approve "
    "something, the answer is `pending`, with an id: have them approve it, then make exactly the same call again. "
    "`denial.allowed` says what would be allowed instead of what was refused."
)

_MAX_READ = 64 << 10
"""Bytes of a file that one call reads."""
_MAX_ENTRIES = 500
_MAX_WRITE = 8 << 20

Code = Annotated[str, Field(description="The source text.")]
Session = Annotated[str, Field(description="The id that session_open has returned.")]
MaybeSession = Annotated[str | None, Field(description="Run in this session; without it, in a new cell.")]
Arguments = Annotated[list[str], Field(description="Arguments: sys.argv[1:], or $1 and so on.")]
Input = Annotated[str, Field(description="Standard input.")]
Placed = Annotated[dict[str, str], Field(description="Files to put into its directory first: name → text.")]
Outputs = Annotated[list[str], Field(description="Files to bring back, by glob, such as plot.png; pictures are shown.")]
Hosts = Annotated[
    list[str], Field(description="Hosts that it may reach, such as `GET api.example.org`. Policy may want approval.")
]
Seconds = Annotated[float | None, Field(gt=0, description="Seconds that it may take.")]
Reason = Annotated[str, Field(max_length=2000, description="Why, for whoever may have to approve it.")]
Project = Annotated[str, Field(description="A project that the service offers; leave it out over stdio.")]
Changes = Annotated[str, Field(description="The id that try_command has returned.")]
Path = Annotated[str, Field(description="A path in the session; a relative one begins in its first directory.")]


class Tools:
    """The tools of one server. Those that may need a person return what was tried: see `approval`."""

    def __init__(self, host: ToolHost) -> None:
        self._host = host

    # --- runs ---

    async def run_python(
        self,
        ctx: Context[Any, Any],
        code: Code,
        session_id: MaybeSession = None,
        args: Arguments = [],
        stdin: Input = "",
        files: Placed = {},
        outputs: Outputs = [],
        network: Hosts = [],
        timeout: Seconds = None,
        reason: Reason = "",
    ) -> Tried:
        """Run Python in a sandbox, and get what it printed and the value of its last expression.

        Without a session each run is in a new cell, and nothing of it is left. In a session (session_open) variables,
        imports and files stay, and figures of matplotlib are shown as pictures.
        """
        wanted = Wanted(
            language="python",
            code=code,
            argv=tuple(args),
            stdin=stdin,
            files=files,
            outputs=tuple(outputs),
            network=tuple(network),
            timeout=timeout,
            reason=reason,
        )
        return await self._run(ctx, wanted, session_id)

    async def run_bash(
        self,
        ctx: Context[Any, Any],
        script: Code,
        session_id: MaybeSession = None,
        args: Arguments = [],
        stdin: Input = "",
        files: Placed = {},
        outputs: Outputs = [],
        network: Hosts = [],
        timeout: Seconds = None,
        reason: Reason = "",
    ) -> Tried:
        """Run a Bash script in a sandbox, and get what it printed and its exit code.

        In a session the directory it ends in and what it exports are where the next run begins.
        """
        wanted = Wanted(
            language="bash",
            code=script,
            argv=tuple(args),
            stdin=stdin,
            files=files,
            outputs=tuple(outputs),
            network=tuple(network),
            timeout=timeout,
            reason=reason,
        )
        return await self._run(ctx, wanted, session_id)

    async def run_command(
        self,
        ctx: Context[Any, Any],
        command: Annotated[list[str], Field(min_length=1, description='A program and its arguments: ["ls", "-la"].')],
        session_id: MaybeSession = None,
        stdin: Input = "",
        files: Placed = {},
        outputs: Outputs = [],
        network: Hosts = [],
        timeout: Seconds = None,
        reason: Reason = "",
    ) -> Tried:
        """Run a program with its arguments in a sandbox, without a shell."""
        wanted = Wanted(
            language="command",
            argv=tuple(command),
            stdin=stdin,
            files=files,
            outputs=tuple(outputs),
            network=tuple(network),
            timeout=timeout,
            reason=reason,
        )
        return await self._run(ctx, wanted, session_id)

    async def _run(self, ctx: Context[Any, Any], wanted: Wanted, session_id: str | None) -> Tried:
        if session_id is None:
            result = await self._host.run(ctx, wanted)
        else:
            result = await self._host.run_in(ctx, session_id, wanted)
        return Tried(answers.run_answer(result, session_id=session_id), _question_of(result))

    async def check(
        self,
        ctx: Context[Any, Any],
        code: Annotated[str, Field(description="Source text; of a command, its words as a shell would write them.")],
        language: Literal["python", "bash"] = "python",
    ) -> Annotated[CallToolResult, CheckOutput]:
        """Say what policy makes of code in a sandbox, without running it: allow, prompt (a person has to approve) or
        forbid, with the reasons."""
        submission = self._host.prepare(self._host.caller(ctx), Wanted(language=language, code=code))
        evaluation = self._host.executor.check(submission.request)
        data = answers.check_output(evaluation, level_of(submission.request, evaluation).level.value)
        return answer(answers.check_text(data), data)

    # --- sessions ---

    async def session_open(
        self,
        ctx: Context[Any, Any],
        timeout: Annotated[float | None, Field(gt=0, description="Seconds that each run may take.")] = None,
    ) -> Annotated[CallToolResult, SessionOutput]:
        """Open a session: a sandbox that keeps variables, files and processes between runs. Returns its id, which every
        tool for sessions takes. It ends by itself when it is not used for a while."""
        return _of_session(await self._host.open_session(ctx, timeout))

    async def session_list(self, ctx: Context[Any, Any]) -> Annotated[CallToolResult, SessionsOutput]:
        """List your sessions."""
        found = [_session_output(each) for each in self._host.sessions(self._host.caller(ctx))]
        lines = [f"{each.session_id}  {'alive' if each.alive else f'ended: {each.ended}'}" for each in found]
        return answer("\n".join(lines) or "no session is open", SessionsOutput(sessions=found))

    async def session_restart(
        self, ctx: Context[Any, Any], session_id: Session
    ) -> Annotated[CallToolResult, SessionOutput]:
        """Give a session a new Python, without variables and processes. Files stay, unless the session had ended."""
        session = self._host.session(self._host.caller(ctx), session_id)
        await to_its_end(session.restart())
        return _of_session(session)

    async def session_interrupt(
        self, ctx: Context[Any, Any], session_id: Session
    ) -> Annotated[CallToolResult, DoneOutput]:
        """Interrupt what runs in a session, as Ctrl-C does."""
        did = self._host.session(self._host.caller(ctx), session_id).interrupt()
        done = "interrupted" if did else "nothing ran"
        return answer(done, DoneOutput(done=done))

    async def session_close(self, ctx: Context[Any, Any], session_id: Session) -> Annotated[CallToolResult, DoneOutput]:
        """End a session. Its variables, files and processes are gone."""
        await self._host.close_session(self._host.caller(ctx), session_id)
        return answer("closed", DoneOutput(done="closed"))

    async def read_file(
        self,
        ctx: Context[Any, Any],
        session_id: Session,
        path: Path,
        offset: Annotated[int, Field(ge=0, description="The first byte to read.")] = 0,
    ) -> Annotated[CallToolResult, FileOutput]:
        """Read a file of a session, 64 KiB at a time. A picture is shown whole."""
        files = self._host.session(self._host.caller(ctx), session_id).files
        room = _MAX_READ if offset else answers.MAX_PICTURE_BYTES
        content = await to_its_end(_beginning(files.chunks(path, offset=offset), room + 1))
        kind = answers.picture_kind(content) if offset == 0 and len(content) <= room else None
        if kind is not None:
            data = FileOutput(path=clean(path))
            words = f"{path}: a picture of {len(content):,} bytes"
            return answer(words, data, pictures=[answers.picture(kind, content)])
        return _of_file(path, offset, content[:_MAX_READ], more=len(content) > _MAX_READ)

    async def write_file(
        self,
        ctx: Context[Any, Any],
        session_id: Session,
        path: Path,
        text: Annotated[str | None, Field(max_length=_MAX_WRITE, description="The content, as text.")] = None,
        base64_content: Annotated[
            str | None, Field(max_length=_MAX_WRITE, description="The content in base64, instead.")
        ] = None,
    ) -> Annotated[CallToolResult, DoneOutput]:
        """Write a file of a session, whole or not at all. One that is there is replaced."""
        content = _content(text, base64_content)
        await to_its_end(self._host.session(self._host.caller(ctx), session_id).files.write(path, content))
        done = f"wrote {len(content):,} bytes to {clean(path)}"
        return answer(done, DoneOutput(done=done))

    async def list_files(
        self, ctx: Context[Any, Any], session_id: Session, path: Path = "."
    ) -> Annotated[CallToolResult, FilesOutput]:
        """List a directory of a session."""
        found = await to_its_end(self._host.session(self._host.caller(ctx), session_id).files.list(path))
        entries = [EntryOutput(name=clean(each.name), kind=each.kind, size=each.size) for each in found[:_MAX_ENTRIES]]
        data = FilesOutput(path=clean(path), entries=entries, more=max(0, len(found) - _MAX_ENTRIES))
        lines = [f"{each.kind:9} {each.size:>10,}  {each.name}" for each in entries]
        lines += [f"… and {data.more} more"] if data.more else []
        return answer("\n".join(lines) or "nothing is in it", data)

    # --- a project ---

    async def try_command(
        self,
        ctx: Context[Any, Any],
        command: Annotated[str, Field(description="A line of Bash, such as `make clean`.")],
        project: Project = "",
        timeout: Seconds = None,
        reason: Reason = "",
    ) -> Tried:
        """See what a command would do to the user's project: it runs on a copy, in a sandbox. Returns every file that
        it added, changed or removed, with the differences, and an id. The project itself is as it was, until
        apply_changes."""
        wanted = Wanted(
            language="bash", code=command, workspace="overlay", project=project, timeout=timeout, reason=reason
        )
        result = await self._host.run(ctx, wanted)
        run, effect = answers.run_output(result), result.effect
        if effect is None:
            data = ChangesOutput(id="", state="none", project=project, run=run, approval=run.approval)
        else:
            state, name = "kept" if effect.changes else "none", self._host.project_name(effect.project)
            kept_as = result.id if effect.changes else ""
            data = answers.changes_output(effect, id=kept_as, state=state, project=name)
            data.run = run
        text = result.to_text(answers.MAX_TEXT // 2)
        if effect is not None:
            text += f"\n\n{answers.changes_text(data)}"
        if data.id:
            text += f"\nnext: apply_changes, or discard_changes, with the id {data.id}"
        if data.approval is not None:
            text += f"\nnext: {answers.how_to_go_on(data.approval)}"
        failed = not result.ok and result.status.ending != "pending"
        return Tried(answer(text, data, is_error=failed), _question_of(result))

    async def apply_changes(
        self,
        ctx: Context[Any, Any],
        id: Changes,
        paths: Annotated[list[str], Field(description="Only what is at these paths or below; empty: all.")] = [],
        protected: Annotated[list[str], Field(description="Protected paths that are to be changed, too.")] = [],
    ) -> Tried:
        """Make what try_command did happen to the project, all or nothing. undo_changes takes it back."""
        caller = self._host.caller(ctx)
        try:
            kept = await to_its_end(self._host.apply(caller, id, tuple(paths) or None, tuple(protected)))
        except Pending as error:
            waits = answers.pending(error.id)
            data = ChangesOutput(id=id, state="kept", project="", approval=waits)
            text = f"status: pending\n{self._host.words(error.what)}\nnext: {answers.how_to_go_on(waits)}"
            return Tried(answer(text, data), error.id)
        data = answers.kept_output(kept, self._host.project_name(kept.effect.project))
        return Tried(answer(f"applied\n{answers.changes_text(data)}", data))

    async def discard_changes(self, ctx: Context[Any, Any], id: Changes) -> Annotated[CallToolResult, ChangesOutput]:
        """Drop what try_command did. The project was never touched."""
        kept = await to_its_end(self._host.discard(self._host.caller(ctx), id))
        data = answers.kept_output(kept, self._host.project_name(kept.effect.project))
        return answer("discarded; the project is as it was", data)

    async def undo_changes(self, ctx: Context[Any, Any], id: Changes) -> Annotated[CallToolResult, ChangesOutput]:
        """Take back exactly what apply_changes did. Refused if those files have changed since."""
        kept = await to_its_end(self._host.undo(self._host.caller(ctx), id))
        data = answers.kept_output(kept, self._host.project_name(kept.effect.project))
        return answer("undone; the project is as it was before", data)


def _question_of(result: Result) -> str:
    return result.approval_id if result.status.ending == "pending" else ""


def _session_output(session: AsyncSession) -> SessionOutput:
    return SessionOutput(session_id=session.id, alive=session.alive, ended=clean(session.ended), backend=session.name)


def _of_session(session: AsyncSession) -> CallToolResult:
    data = _session_output(session)
    return answer(f"session_id: {data.session_id}", data)


async def _beginning(pieces: AsyncIterator[bytes], size: int) -> bytes:
    found = bytearray()
    async for piece in pieces:
        found += piece
        if len(found) >= size:
            break
    return bytes(found[:size])


def _of_file(path: str, offset: int, content: bytes, *, more: bool) -> CallToolResult:
    if more:  # not in the middle of a letter
        content = content[: len(content) - _unfinished(content)]
    following = offset + len(content)
    data = FileOutput(path=clean(path), offset=offset, next_offset=following if more else None)
    try:
        data.text = content.decode()
        text = data.text
    except UnicodeDecodeError:
        data.base64 = base64.b64encode(content).decode()
        text = f"{len(content):,} bytes that are not text; they are in `base64`"
    if more:
        text += f"\n[there is more: read on with offset={following}]"
    return answer(text, data, limit=_MAX_READ + 200)


def _unfinished(content: bytes) -> int:
    """How many of the last bytes are the beginning of a letter in UTF-8."""
    for back in range(1, min(4, len(content)) + 1):
        byte = content[-back]
        if byte < 0x80:
            return 0
        if byte >= 0xC0:
            return back if back < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4) else 0
    return 0


def _content(text: str | None, encoded: str | None) -> bytes:
    if (text is None) == (encoded is None):
        raise InvalidRequest("there is no content, or too much", why="give text or base64_content", next="give one")
    if text is not None:
        return text.encode()
    try:
        return base64.b64decode(encoded or "", validate=True)
    except ValueError:
        raise InvalidRequest("base64_content can't be read", why="it is not base64", next="encode it again") from None


_RUNS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=True)
"""A run touches nothing but its cell, or its session; but it may reach hosts that were named."""
_LOOKS = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
_OPENS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False)
_ENDS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)
_TRIES = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False)
_CHANGES = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False)


def build(host: ToolHost) -> MCPServer[Any]:
    """The MCP server whose tools run on this host."""
    tools = Tools(host)
    root = logging.getLogger()
    quiet = logging.NullHandler()
    root.addHandler(quiet)  # or the SDK would set up logging for the whole process, as a program of its own does
    try:
        server: MCPServer[Any] = MCPServer(
            "redoma", title="Redoma", version=__version__, instructions=_INSTRUCTIONS, subscriptions=False
        )
    finally:
        root.removeHandler(quiet)
    asked: list[tuple[Any, type[BaseModel], str, ToolAnnotations]] = [
        (tools.run_python, RunOutput, "Run Python", _RUNS),
        (tools.run_bash, RunOutput, "Run Bash", _RUNS),
        (tools.run_command, RunOutput, "Run a command", _RUNS),
        (tools.try_command, ChangesOutput, "See what a command would change", _TRIES),
        (tools.apply_changes, ChangesOutput, "Apply changes to the project", _CHANGES),
    ]
    for attempt, output, title, hints in asked:
        tool = with_approval(host, telling(host, attempt), output)
        server.add_tool(tool, attempt.__name__, title, annotations=hints)
    plain: list[tuple[Any, str, ToolAnnotations]] = [
        (tools.check, "Check code against the policy", _LOOKS),
        (tools.session_open, "Open a session", _OPENS),
        (tools.session_list, "List sessions", _LOOKS),
        (tools.session_restart, "Restart a session", _ENDS),
        (tools.session_interrupt, "Interrupt a session", _OPENS),
        (tools.session_close, "Close a session", _ENDS),
        (tools.read_file, "Read a file of a session", _LOOKS),
        (tools.write_file, "Write a file of a session", _ENDS),
        (tools.list_files, "List files of a session", _LOOKS),
        (tools.discard_changes, "Discard changes", _CHANGES),
        (tools.undo_changes, "Undo changes", _CHANGES),
    ]
    for function, title, hints in plain:
        server.add_tool(telling(host, function), function.__name__, title, annotations=hints)
    return server
