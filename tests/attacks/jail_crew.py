"""The processes that carry out the attacks: as the user who runs the tests and, if that is root, as an unprivileged one
as well.

Each is one long-lived process (`jail_worker`). The unprivileged one needs an interpreter that it can execute. It can't
execute one below root's home; then the system's interpreter gets a copy of our packages, once.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jail_attack import CONTROLS, SLOW

import redoma

_HERE = Path(__file__).parent
_USER = 47110
"""A user that owns nothing."""
_PATIENCE = 240.0 * SLOW
_NEEDED = "msgspec yaml _yaml click re2 _re2 stdnum tree_sitter tree_sitter_bash pydantic_monty rich pygments lupa"
"""What Redoma imports. The attacks need little of it, and nothing of what the tests need."""


class Crew:
    """Starts all attacks at once, and returns the verdict of each when requested."""

    def __init__(self, names: Iterable[str], command: list[str]) -> None:
        self._verdicts: dict[str, dict[str, Any]] = {}
        self.left: dict[str, list[str]] | None = None
        self._news = threading.Condition()
        self._gone = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `dismiss`
        # Its own: it looks for what is left there, and other tests have theirs.
        self._temporary = tempfile.mkdtemp(prefix="crew-")
        os.chmod(self._temporary, 0o1777)  # noqa: S103 - like /tmp: it may be another user
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={
                "PATH": os.defpath,
                "HOST_SECRET": f"hostsecret-{secrets.token_hex(16)}",
                "LANG": "C.UTF-8",
                "REDOMA_SLOW": str(SLOW),
                "REDOMA_CONTROLS": CONTROLS,
                "TMPDIR": self._temporary,
            },
            cwd="/",
        )
        if self._process.stdin:
            self._process.stdin.write(json.dumps(list(names)).encode() + b"\n")
            self._process.stdin.close()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            news = json.loads(line)
            with self._news:
                if "left" in news:
                    self.left = news["left"]
                else:
                    self._verdicts[news["name"]] = news
                self._news.notify_all()
        with self._news:
            self._gone = True
            self._news.notify_all()

    def verdict(self, name: str) -> dict[str, Any]:
        with self._news:
            while name not in self._verdicts and not self._gone and self._news.wait(_PATIENCE):
                pass  # as long as there is news of others
        if name not in self._verdicts:
            raise AssertionError(f"there is no verdict: {self._said()}")
        return self._verdicts[name]

    def leftovers(self) -> dict[str, list[str]]:
        """Return what it left on the host, once it is done."""
        with self._news:
            while self.left is None and not self._gone and self._news.wait(_PATIENCE):
                pass
        if self.left is None:
            raise AssertionError(f"it did not get to its end: {self._said()}")
        return self.left

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-4000:]

    def dismiss(self) -> None:
        """End it, also in the middle of its work: when interrupted, it still cleans up."""
        try:
            self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        if self._process.stdout:
            self._process.stdout.close()
        self._errors.close()
        shutil.rmtree(self._temporary, ignore_errors=True)


def ourselves(_: Path) -> list[str]:
    return [sys.executable, str(_HERE / "jail_worker.py")]


BECOME = ("setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups", "--")
_RUNS = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import redoma, msgspec'], check=True)"
"""It must start itself again: `setpriv` still has root's rights when it starts a program, and the program doesn't."""


def unprivileged(place: Path, worker: Path = _HERE / "jail_worker.py") -> list[str]:
    """Return the command by which root starts the worker as another user; what that user can't reach elsewhere is
    copied to `place`.
    """
    if not _fails(sys.executable, "-c", _RUNS) and not _fails("test", "-r", str(worker)):
        return [*BECOME, sys.executable, str(worker)]
    place.chmod(0o755)
    copied = place / "attacks"
    copied.mkdir()
    for file in {*_HERE.glob("jail_*.py"), *_HERE.glob("lean_*.py"), worker}:
        shutil.copy(file, copied)
    interpreter = _environment(place / "venv")
    subprocess.run(["chown", "-R", f"{_USER}:{_USER}", str(place)], check=True)
    if why := _fails(str(interpreter), "-c", _RUNS):
        raise AssertionError(f"the unprivileged user can't run Redoma: {why}")
    return [*BECOME, str(interpreter), str(copied / worker.name)]


def _fails(*command: str) -> str:
    """Return why the unprivileged user can't run this; empty if it can."""
    done = subprocess.run([*BECOME, *command], cwd="/", capture_output=True, text=True, check=False)
    return (done.stderr or "it fails") if done.returncode else ""


def _environment(place: Path) -> Path:
    """Return the system's interpreter with our packages if it has the same version; else with Redoma installed."""
    python = shutil.which("python3", path=os.defpath)
    if python is None:
        raise AssertionError("the system has no python3 for the unprivileged user")
    subprocess.run([python, "-m", "venv", "--without-pip", place], check=True, capture_output=True)
    interpreter = place / "bin" / "python"
    asked = [str(interpreter), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip())
    if packages.parent.name != f"python{sys.version_info[0]}.{sys.version_info[1]}":
        install = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(interpreter),
            "install",
            "-q",
            f"{_HERE.parents[1]}[lua]",
        ]
        subprocess.run(install, check=True, capture_output=True)
        return interpreter
    ours = Path(sysconfig.get_path("purelib"))
    for path in ours.iterdir():
        if path.name.split(".")[0] in _NEEDED.split():
            subprocess.run(["cp", "-r", str(path), str(packages)], check=True)
    shutil.copytree(Path(redoma.__file__).parent, packages / "redoma")
    return interpreter
