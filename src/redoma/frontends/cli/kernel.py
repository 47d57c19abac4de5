"""kernel: a Jupyter kernel whose cells run in a session."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from redoma.lib.errors import RedomaError
from redoma.lib.extras import pip_install

from .emit import note


@click.group("kernel")
def kernel() -> None:
    """Run the cells of notebooks in a session."""


@kernel.command("install")
@click.option("--sys-prefix", "own", is_flag=True, help="Install it beside Redoma, not for the user.")
def install(own: bool) -> None:
    """Make the kernel `redoma` known to Jupyter.

    \b
    Examples:
      redoma kernel install
      jupyter nbconvert --execute --ExecutePreprocessor.kernel_name=redoma --to notebook a.ipynb
    """
    try:
        from redoma.integrations import jupyter
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(("ipykernel", "jupyter")):
            raise
        raise RedomaError(
            "this needs the package ipykernel", why=f"there is no {error.name}", next=pip_install("redoma[jupyter]")
        ) from None
    place = jupyter.install(prefix=Path(sys.prefix) if own else None)
    note(f'written to {place}. Next: choose "{jupyter.TITLE}" in Jupyter')
