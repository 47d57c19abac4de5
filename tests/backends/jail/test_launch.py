"""The interpreters that a zygote can be started from."""

from __future__ import annotations

import os
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

import redoma
from pace import SLOW
from redoma.backends.jail import start
from redoma.backends.jail.launch import Zygote, ZygoteOptions
from redoma.backends.monty import worker


def test_a_virtual_environment_with_a_copy_of_the_interpreter_has_a_jail(tmp_path: Path) -> None:
    venv.create(tmp_path / "copied", symlinks=False, with_pip=False)
    python = tmp_path / "copied" / "bin" / "python"
    assert not python.is_symlink()
    packages = next((tmp_path / "copied" / "lib").glob("python3.*")) / "site-packages"
    there = (sysconfig.get_path("purelib"), str(Path(redoma.__file__).parents[1]))
    (packages / "here.pth").write_text("\n".join(there))
    code = "import redoma; print(redoma.run('import sys; sys.prefix', backend='jail').value)"
    told = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60 * SLOW, check=False)
    assert (told.stdout, told.stderr) == ("/opt/venv\n", "")


@pytest.mark.parametrize("programs", [{}, worker.programs()], ids=["jail", "monty"])
def test_what_was_started_ahead_is_what_runs(programs: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    start.ahead(lambda: programs)
    assert start._ahead is not None
    ahead = start._ahead[1].pid
    monkeypatch.setattr(start, "Started", None)  # no other can be
    zygote = Zygote(ZygoteOptions(watched=True, programs=programs, once=True))
    try:
        assert zygote.pid == ahead
    finally:
        zygote.close()
    assert not Path(f"/proc/{ahead}").exists()


def test_what_was_started_ahead_for_something_else_ends_unused() -> None:
    start.ahead(worker.programs)
    assert start._ahead is not None
    ahead = start._ahead[1].pid
    zygote = Zygote(ZygoteOptions(watched=True))
    try:
        assert zygote.pid != ahead
        os.waitpid(ahead, 0)  # it ends by itself
    finally:
        zygote.close()
