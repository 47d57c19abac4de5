"""The packages that a run is to have: an environment by its name, or a list of packages."""

from __future__ import annotations

import msgspec


class Interpreter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An interpreter of this machine, other than the one that Redoma runs on."""

    path: str
    """As it was named, absolute."""
    executable: str
    """The program itself: of a virtual environment, the one that it is based on."""
    prefix: str
    """The directory that it is installed in. Cells see it, read-only."""
    version: str
    """As directories are called after it: `python3.12`."""
    library: str = ""
    """The directory of its shared library, if it has one."""
    identity: tuple[int, ...]
    """Device, inode, size and time of the program: by these, another one at the same path is told from it."""


class EnvironmentUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which packages a run finds. An approval is bound to their content, or to the list if they have to be installed
    first."""

    name: str = ""
    """The environment's name; empty if the request only has a list of packages."""
    packages: tuple[str, ...] = ()
    """Requirements as pip reads them, such as `pandas>=2`."""
    digest: str = ""
    """The digest of its files. Empty: they have to be installed before the run."""
    preload: tuple[str, ...] = ()
    """Modules that its runs find already imported, by the owner's word that they can be trusted."""
    interpreter: Interpreter | None = None
    """The interpreter that runs the code; None for Redoma's own."""

    @property
    def words(self) -> str:
        """For reading."""
        if self.name:
            other = f", {self.interpreter.version} of {self.interpreter.path}" if self.interpreter is not None else ""
            return f"environment {self.name}, sha256 {self.digest}{other}"
        return f"packages {', '.join(self.packages)}" + (
            f", sha256 {self.digest}" if self.digest else ", to be installed"
        )
