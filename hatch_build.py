"""Compiles the C of the backends when a wheel or an editable installation is made. `python hatch_build.py` does only
that.

It takes the C compiler of the machine (`CC`, `cc`, `gcc`, `clang`), else the one in the PyPI package `ziglang`, which
pip fetches for the build alone. Nothing of it depends on a version of Python or of the C library.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

BACKENDS = Path(__file__).resolve().parent / "src/redoma/backends"
LIBRARY, INIT, SUPERVISOR = "jail/built/cell.so", "jail/built/init", "native/built/supervisor"
IMAGE = "jail/built/image.so"
GLIBC = {"x86_64": "2.17", "aarch64": "2.17"}
"""The oldest C library that zig compiles for; the functions we call are older."""

_COMPILE = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-c"]
_FREESTANDING = (["-ffreestanding", "-fno-stack-protector"], ["-static", "-nostdlib", "-no-pie", "-s"])
_PARTS = {
    LIBRARY: ("jail/c/cell.c", ["-fPIC"], ["-shared", "-Wl,-z,relro,-z,now", "-s"]),
    INIT: ("jail/c/init.c", *_FREESTANDING),
    IMAGE: (
        "jail/c/image.c",
        ["-fPIC", "-fvisibility=hidden", *_FREESTANDING[0]],
        ["-shared", "-nostdlib", "-Wl,-z,relro,-z,now", "-s"],
    ),
    SUPERVISOR: ("native/c/supervisor.c", *_FREESTANDING),
}
"""What is made: its source, options to compile it, options to link it. (With `-nostdlib`, zig finds no headers.)"""


def compiler(machine: str = "") -> list[str]:
    """The command that compiles for this machine, or for another (`x86_64`, `aarch64`): that needs zig."""
    here = platform.machine()
    if machine in ("", here):
        if os.environ.get("CC"):
            return shlex.split(os.environ["CC"])
        for name in ("cc", "gcc", "clang"):
            if (found := shutil.which(name)) and _can_compile(found):
                return [found]
    if importlib.util.find_spec("ziglang") is None:
        raise SystemExit("no C compiler was found. Next: apt install gcc libc6-dev, or pip install ziglang")
    machine = machine or here
    return [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-gnu.{GLIBC[machine]}"]


def _can_compile(command: str) -> bool:
    """Whether it has the headers: a compiler without them is installed on some machines."""
    text = "#define _GNU_SOURCE\n#include <linux/landlock.h>\n#include <sched.h>\n"
    tried = subprocess.run(
        [command, "-fsyntax-only", "-x", "c", "-"], input=text.encode(), capture_output=True, check=False
    )
    return tried.returncode == 0


def compile_all(output: Path = BACKENDS, machine: str = "", extra: tuple[str, ...] = ()) -> list[Path]:
    """Compile everything. Each file is replaced as a whole: a zygote may be using the one before."""
    command = compiler(machine)
    made = []
    for name, (source, compile_options, link_options) in _PARTS.items():
        target = output / name
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f"{target.name}.{os.getpid()}")
        compiled = target.with_name(f"{target.name}.{os.getpid()}.o")
        subprocess.run([*command, *_COMPILE, *compile_options, *extra, "-o", compiled, BACKENDS / source], check=True)
        subprocess.run([*command, *link_options, *extra, "-o", part, compiled], check=True)
        compiled.unlink()
        part.chmod(0o755)
        made.append(part.rename(target))
    return made


def is_current() -> bool:
    """Whether what is compiled is as new as its sources."""
    made = [BACKENDS / name for name in _PARTS]
    sources = [*BACKENDS.glob("**/*.c"), *BACKENDS.glob("**/*.h"), Path(__file__)]
    return all(each.exists() for each in made) and min(each.stat().st_mtime for each in made) >= max(
        each.stat().st_mtime for each in sources
    )


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a program, where the build backend is not installed
    pass
else:

    class CompileHook(BuildHookInterface):  # type: ignore[misc]
        """Compiles for a wheel, and tags it for the machine rather than for a version of Python."""

        def dependencies(self) -> list[str]:
            """What pip has to install for the build: a compiler, where the machine has none."""
            try:
                compiler()
            except SystemExit:
                return ["ziglang>=0.13"]
            return []

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            machine = os.environ.get("REDOMA_MACHINE", "")
            compile_all(machine=machine)
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-manylinux_2_17_{machine or platform.machine()}"
            build_data["artifacts"] += [f"src/redoma/backends/{name}" for name in _PARTS]


if __name__ == "__main__":
    if sys.argv[1:] == ["--if-changed"] and is_current():
        raise SystemExit
    for path in compile_all():
        print(path)
