"""The interpreters that a zygote can be started from."""

from __future__ import annotations

import subprocess
import sysconfig
import venv
from pathlib import Path

import redoma


def test_a_virtual_environment_with_a_copy_of_the_interpreter_has_a_jail(tmp_path: Path) -> None:
    venv.create(tmp_path / "copied", symlinks=False, with_pip=False)
    python = tmp_path / "copied" / "bin" / "python"
    assert not python.is_symlink()
    packages = next((tmp_path / "copied" / "lib").glob("python3.*")) / "site-packages"
    there = (sysconfig.get_path("purelib"), str(Path(redoma.__file__).parents[1]))
    (packages / "here.pth").write_text("\n".join(there))
    code = "import redoma; print(redoma.run('import sys; sys.prefix', backend='jail').value)"
    told = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (told.stdout, told.stderr) == ("/opt/venv\n", "")
