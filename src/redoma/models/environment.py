"""The packages that a run is to have: an environment by its name, or a list of packages."""

from __future__ import annotations

import msgspec


class EnvironmentUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which packages a run finds. An approval is bound to their content, or to the list if they have to be installed
    first."""

    name: str = ""
    """Of the environment; empty where the request only has a list of packages."""
    packages: tuple[str, ...] = ()
    """Requirements as pip reads them, such as `pandas>=2`."""
    digest: str = ""
    """Of its files. Empty: they have to be installed before the run."""
    preload: tuple[str, ...] = ()
    """Modules that its runs find already imported, by the owner's word that they can be trusted."""

    @property
    def words(self) -> str:
        """For reading."""
        if self.name:
            return f"environment {self.name}, sha256 {self.digest}"
        return f"packages {', '.join(self.packages)}" + (
            f", sha256 {self.digest}" if self.digest else ", to be installed"
        )
