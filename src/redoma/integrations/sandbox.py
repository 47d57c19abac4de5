"""What the adapters share: a session that an agent's tools use."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar, Unpack

from ..lib.errors import RedomaError
from ..models import Language, Result
from ..pipeline.sync import Executor
from ..sessions.session import Session, SessionOptions

MAX_TEXT = 8000
"""Characters of what a model gets back."""

P = ParamSpec("P")
T = TypeVar("T")


class Sandbox:
    """A session for the tools of an agent, in ordinary and in asynchronous code. Use it as a context manager, or call
    `close` when done. Options are those of `redoma.Session`.

    What goes wrong in a tool is told to the model as a text, so that it can do something about it.
    """

    def __init__(self, executor: Executor | None = None, **options: Unpack[SessionOptions]) -> None:
        self.session = Session(executor, **options)

    def run(self, code: str, language: Language = "python", *, requester: str, timeout: float | None = None) -> Result:
        """Run source text; variables and files stay. A session that has ended begins anew."""
        if self.session.ended and not self.session.alive:
            self.session.restart()
        return self.session.run(code, language, requester=requester, timeout=timeout)

    def run_text(self, code: str, language: Language = "python", *, requester: str) -> str:
        """Run source text, and return what a model is to read."""
        return told(lambda: self.run(code, language, requester=requester).to_text(MAX_TEXT))

    def read_text(self, path: str) -> str:
        """A text file of the session, or why it can't be read."""
        return told(lambda: self.session.files.read(path).decode("utf-8", "replace")[: 4 * MAX_TEXT])

    def write_text(self, path: str, text: str) -> str:
        """Write a file of the session; returns what was done."""

        def write() -> str:
            self.session.files.write(path, text)
            return f"wrote {len(text):,} characters to {path}"

        return told(write)

    async def in_thread(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call one of these from asynchronous code. If that is cancelled, so is what runs, and it is waited for."""
        call = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            await asyncio.to_thread(self.session.interrupt)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([call])
            raise

    def close(self) -> None:
        """End the session: nothing of it is left."""
        self.session.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def tools(sandbox: Sandbox, requester: str) -> list[Callable[..., Awaitable[str]]]:
    """Return `run_python`, `run_bash`, `read_file` and `write_file` as asynchronous functions, for frameworks that make
    tools from names, signatures and docstrings.
    """

    async def run_python(code: str) -> str:
        """Run Python in a sandbox, and get what it printed and its last expression. Variables and files stay.

        Args:
            code: The source text.
        """
        return await sandbox.in_thread(sandbox.run_text, code, requester=requester)

    async def run_bash(script: str) -> str:
        """Run a Bash script in the same sandbox.

        Args:
            script: The source text.
        """
        return await sandbox.in_thread(sandbox.run_text, script, "bash", requester=requester)

    async def read_file(path: str) -> str:
        """Read a text file of the sandbox.

        Args:
            path: Relative to its first directory.
        """
        return await sandbox.in_thread(sandbox.read_text, path)

    async def write_file(path: str, text: str) -> str:
        """Write a text file of the sandbox.

        Args:
            path: Relative to its first directory.
            text: The whole content.
        """
        return await sandbox.in_thread(sandbox.write_text, path, text)

    return [run_python, run_bash, read_file, write_file]


def told(function: Callable[[], str]) -> str:
    """What a function returns; or, as a text, what went wrong, why, and what to do next."""
    try:
        return function()
    except (RedomaError, OSError) as error:
        return f"status: failed\nerror: {error}"
