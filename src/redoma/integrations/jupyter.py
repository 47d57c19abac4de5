"""A Jupyter kernel whose cells run in a session: variables, files and figures stay there, and nothing of the host is
seen. `redoma kernel install` makes it known to Jupyter, which starts it as `python -m redoma.integrations.jupyter`.
"""

from __future__ import annotations

import asyncio
import codeop
import json
import re
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel

from .. import __version__
from ..lib.errors import RedomaError
from ..models import Chunk, Display, Language, Result
from ..pipeline.executor import AsyncExecutor
from ..sessions import AsyncSession

NAME, TITLE = "redoma", "Python (Redoma)"
_IDLE, _LIFETIME = 12 * 3600.0, 24 * 3600.0
"""Seconds: people leave notebooks open."""
_WORD = re.compile(r"[\w.]*\Z")


T = TypeVar("T")


class RedomaKernel(Kernel):
    """One notebook, one session, which is opened by the first cell."""

    implementation = "redoma"
    implementation_version = __version__
    language = "python"
    language_version = sys.version.partition(" ")[0]
    language_info = {  # noqa: RUF012 - as ipykernel has it
        "name": "python",
        "version": language_version,
        "mimetype": "text/x-python",
        "file_extension": ".py",
        "pygments_lexer": "ipython3",
        "codemirror_mode": {"name": "ipython", "version": 3},
    }
    banner = "Python in a session of Redoma. `!COMMAND` and `%%bash` run Bash."

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._executor: AsyncExecutor | None = None
        self._cell: AsyncSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def _at_home(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something on the event loop that the session lives on: a subshell of Jupyter has another one."""
        here = asyncio.get_running_loop()
        self._loop = self._loop or here
        if self._loop is here:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _opened(self) -> AsyncSession:
        if self._cell is None:
            self._executor = AsyncExecutor()
            self._cell = self._executor.session(requester="jupyter", idle=_IDLE, lifetime=_LIFETIME)
        return self._cell

    async def do_execute(
        self,
        code: str,
        silent: bool,
        store_history: bool = True,
        user_expressions: Any = None,
        allow_stdin: bool = False,
        *,
        cell_meta: Any = None,
        cell_id: Any = None,
    ) -> dict[str, Any]:
        """Run a cell, and publish what it prints and shows as it comes."""
        source, language = source_of(code)
        try:
            result = await self._at_home(self._run(source, language, silent))
        except RedomaError as error:
            return self._failed(type(error).__name__, str(error), silent)
        if not result.ok:
            return self._failed(result.exception or result.status.value, _words(result), silent)
        return {"status": "ok", "execution_count": self.execution_count, "payload": [], "user_expressions": {}}

    async def _run(self, source: str, language: Language, silent: bool) -> Result:
        session, last = self._opened(), None
        if session.ended:
            self._tell("stderr", f"the session has ended ({session.ended}); this is a new one\n", silent)
            await session.restart()
        run = session.stream(source, language, whole_output=True)
        async with run:
            while (event := await run.next_event()) is not None:
                if isinstance(event, Chunk):
                    self._tell(event.stream, event.text, silent)
                elif last is not None:
                    self._show(last, silent)
                last = event if isinstance(event, Display) else last
        result = run.result
        is_value = last is not None and last.text == result.value_repr
        if last is not None and not is_value:
            self._show(last, silent)
        if result.value_repr is not None and not silent:
            data = _bundle(last) if last is not None and is_value else {"text/plain": result.value_repr}
            content = {"execution_count": self.execution_count, "data": data, "metadata": {}}
            self.send_response(self.iopub_socket, "execute_result", content)
        return result

    def _tell(self, stream: str, text: str, silent: bool) -> None:
        if not silent:
            self.send_response(self.iopub_socket, "stream", {"name": stream, "text": text})

    def _show(self, display: Display, silent: bool) -> None:
        if not silent:
            content = {"data": _bundle(display), "metadata": {}, "transient": {}}
            self.send_response(self.iopub_socket, "display_data", content)

    def _failed(self, name: str, why: str, silent: bool) -> dict[str, Any]:
        content = {"ename": name, "evalue": why, "traceback": [why]}
        if not silent:
            self.send_response(self.iopub_socket, "error", content)
        return {"status": "error", "execution_count": self.execution_count, **content}

    async def do_complete(self, code: str, cursor_pos: int) -> dict[str, Any]:
        found = _WORD.search(code[:cursor_pos])
        word = found[0] if found else ""
        names = [name.rstrip("()") for name in await self._at_home(self._names(word))] if word else []
        return {
            "status": "ok",
            "matches": names,
            "cursor_start": cursor_pos - len(word),
            "cursor_end": cursor_pos,
            "metadata": {},
        }

    async def _names(self, word: str) -> list[str]:
        return await self._opened().complete(word)

    async def do_is_complete(self, code: str) -> dict[str, Any]:
        try:
            whole = code.startswith(("!", "%%")) or codeop.compile_command(code, "<cell>", "exec") is not None
        except (SyntaxError, ValueError, OverflowError):
            return {"status": "invalid"}
        return {"status": "complete"} if whole else {"status": "incomplete", "indent": "    "}

    async def interrupt_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Interrupt the cell that runs. It comes in another thread, so that it is heard while one does."""
        if self._cell is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._cell.interrupt)
        if self.session is not None:
            self.session.send(stream, "interrupt_reply", {"status": "ok"}, parent, ident=ident)

    async def do_shutdown(self, restart: bool) -> dict[str, Any]:
        """End the session; nothing of it is left."""
        await self._at_home(self._close())
        return {"status": "ok", "restart": restart}

    async def _close(self) -> None:
        if self._cell is not None and self._executor is not None:
            await self._cell.aclose()
            await self._executor.aclose()
            self._cell = self._executor = None


def source_of(cell: str) -> tuple[str, Language]:
    """The source text of a cell, and its language: `%%bash` makes the rest Bash, and so does a `!` before each line."""
    if cell.startswith("%%bash"):
        return cell.partition("\n")[2], "bash"
    lines = [line for line in cell.splitlines() if line.strip()]
    if lines and all(line.startswith("!") for line in lines):
        return "\n".join(line[1:] for line in lines), "bash"
    return cell, "python"


def _words(result: Result) -> str:
    """What went wrong, and what would be allowed."""
    said = result.error or f"exit status {result.exit_code}"
    no = result.denial
    return f"{said}\n{no.allowed}" if no is not None and no.allowed not in said else said


def _bundle(display: Display) -> dict[str, Any]:
    """A display as Jupyter has it: bytes in base64, JSON as data."""
    import base64

    data = {}
    for kind, content in display.data.items():
        if isinstance(content, bytes):
            data[kind] = base64.b64encode(content).decode()
        elif kind == "application/json":
            try:
                data[kind] = json.loads(content)
            except (ValueError, RecursionError):
                continue
        else:
            data[kind] = content
    return data


def install(*, prefix: Path | None = None) -> Path:
    """Make the kernel known to Jupyter, for this user, or for everybody who uses the Python at `prefix`. Returns the
    directory that was written."""
    import tempfile

    from jupyter_client.kernelspec import KernelSpecManager

    spec = {
        "argv": [sys.executable, "-m", __name__, "-f", "{connection_file}"],
        "display_name": TITLE,
        "language": "python",
        "interrupt_mode": "message",
    }
    with tempfile.TemporaryDirectory() as made:
        (Path(made) / "kernel.json").write_text(json.dumps(spec, indent=2) + "\n")
        where = {"user": True} if prefix is None else {"prefix": str(prefix)}
        return Path(KernelSpecManager().install_kernel_spec(made, NAME, **where))


def main() -> None:
    IPKernelApp.launch_instance(kernel_class=RedomaKernel)


if __name__ == "__main__":
    main()
