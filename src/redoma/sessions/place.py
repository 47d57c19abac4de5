"""Chooses the backend of a session (cells of its own, or a container) and builds the code that starts its driver."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from ..backends.base import Backend
from ..backends.jail import JailBackend
from ..lib.errors import BackendError, BackendUnavailable, Unsupported
from ..pipeline.executor import AsyncExecutor
from ..pipeline.installed import Installed, session_cells
from . import driver

_CANDIDATES = ("jail", "docker")
_MODULES = (
    "redoma.backends.interpreter",
    "redoma.backends.jail.value",
    "redoma.backends.display",
    "redoma.sessions.frames",
    "redoma.sessions.charts",
    "redoma.sessions.files",
    "redoma.sessions.copying",
    "redoma.sessions.worker",
    "redoma.sessions.driver",
)
"""The modules of a driver, each after those that it imports."""


class Places:
    """The backends of one executor's sessions, and how many sessions are open."""

    def __init__(self, executor: AsyncExecutor) -> None:
        self._executor = executor
        self._cells: JailBackend | None = None
        self.open = 0

    def find(self, wanted: str) -> tuple[Backend, bool]:
        """Return a backend, and whether it has the driver loaded. Raises `Unsupported` if there is none."""
        tried: list[str] = []
        for name in _CANDIDATES if wanted == "auto" else (wanted,):
            if name not in self._executor.backends:
                continue
            backend = self._executor.backends[name]
            try:
                can = backend.capabilities()
            except BackendUnavailable as error:
                tried.append(f"{error.what}: {error.why}")
                continue
            if not can.control or "python" not in can.languages or name == "native":
                tried.append(f"{name} has no sessions")
            elif name == "jail" and isinstance(self._executor.backends, Installed):
                return self._own_cells(), True
            else:
                return backend, can.image is not None
        raise Unsupported(
            "no session can be opened here",
            why="; ".join(tried) or f"{wanted} is not among the backends",
            next="see `redoma doctor`: a session needs the jail or docker",
        )

    def _own_cells(self) -> JailBackend:
        """Return cells with the driver loaded. They are separate from those for one-shot runs, since a session keeps
        its cell for long."""
        if self._cells is None:
            self._cells = session_cells(self._executor.config, self._executor.config.sessions.maximum)
        return self._cells

    def take(self) -> None:
        """Count one more open session. Raises `BackendError` if there are too many."""
        most = self._executor.config.sessions.maximum
        if self.open >= most:
            raise BackendError(
                "no more sessions can be opened",
                why=f"{most} are open, which is as many as may be",
                next="close some, or raise `sessions.maximum` in the configuration",
            )
        self.open += 1

    def give_back(self) -> None:
        """Count one open session less."""
        self.open -= 1

    async def aclose(self) -> None:
        if self._cells is not None:
            await self._cells.aclose()


def boot(options: dict[str, Any], *, loaded: bool) -> str:
    """Return the code that starts a driver; if it is not `loaded` there, with the source of all its modules."""
    call = f"{driver.PROGRAM}({options!r})"
    return call if loaded else f"{_loader()}{call}\n"


@functools.cache
def _loader() -> str:
    top = Path(__file__).parents[1]
    texts = [(name, (top / f"{name.removeprefix('redoma.').replace('.', '/')}.py").read_text()) for name in _MODULES]
    packages = sorted({name.rpartition(".")[0] for name in _MODULES} | {"redoma", "redoma.backends"})
    return (
        "import sys, types\n"
        f"for name in {packages!r}:\n"
        "    sys.modules[name] = types.ModuleType(name)\n"
        "    sys.modules[name].__path__ = []\n"
        f"for name, text in {texts!r}:\n"
        "    module = sys.modules[name] = types.ModuleType(name)\n"
        "    module.__file__ = name\n"
        "    above, _, own = name.rpartition('.')\n"
        "    setattr(sys.modules[above], own, module)\n"
        "    exec(compile(text, name, 'exec'), module.__dict__)\n"
        f"for name in {[*packages, *_MODULES]!r}:\n"
        "    del sys.modules[name]\n"
        f"{driver.PROGRAM} = module.main\n"
        "del name, text, module, above, own\n"
    )
