"""Programs that run what a file of the project says: `make`, `npm`, `ansible-playbook`. Which file that is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .words import Word


class Runner(NamedTuple):
    plans: tuple[str, ...] = ()
    """The files it looks for, where none is named."""
    named_by: tuple[str, ...] = ()
    """The options that name one."""
    enters: tuple[str, ...] = ()
    """The options that name a directory to begin in."""
    operands: bool = False
    """Whether its operands are such files."""


_MAKE = Runner(("GNUmakefile", "makefile", "Makefile"), ("-f", "--file", "--makefile"), ("-C", "--directory"))
_NODE = Runner(("package.json",), (), ("-C", "--prefix", "--cwd", "--dir"))
_GRADLE = Runner(("build.gradle", "build.gradle.kts", "settings.gradle"), ("-b", "--build-file"), ("-p",))
_COMPOSE = Runner(
    ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml"),
    ("-f", "--file"),
    ("--project-directory",),
)

RUNNERS: dict[str, Runner] = {
    **dict.fromkeys(("make", "gmake", "bmake", "remake"), _MAKE),
    **dict.fromkeys(("npm", "npx", "yarn", "pnpm", "bun", "bunx"), _NODE),
    "ninja": Runner(("build.ninja",), ("-f",), ("-C",)),
    "just": Runner(("justfile", "Justfile", ".justfile"), ("-f", "--justfile"), ("-d", "--working-directory")),
    "task": Runner(("Taskfile.yml", "Taskfile.yaml"), ("-t", "--taskfile"), ("-d", "--dir")),
    "rake": Runner(("rakefile", "Rakefile", "Rakefile.rb"), ("-f", "--rakefile"), ("-C",)),
    "invoke": Runner(("tasks.py",), (), ("-r", "--search-root")),
    "fab": Runner(("fabfile.py",), (), ("-r", "--search-root")),
    "nox": Runner(("noxfile.py",), ("-f", "--noxfile")),
    "tox": Runner(("tox.ini", "tox.toml", "pyproject.toml", "setup.cfg"), ("-c", "--conf")),
    "cargo": Runner(("Cargo.toml", "build.rs"), ("--manifest-path",), ("-C",)),
    "mvn": Runner(("pom.xml",), ("-f", "--file")),
    "gradle": _GRADLE,
    "composer": Runner(("composer.json",), (), ("-d", "--working-dir")),
    "docker-compose": _COMPOSE,
    "ansible-playbook": Runner(operands=True),
    "snakemake": Runner(("Snakefile", "workflow/Snakefile"), ("-s", "--snakefile"), ("-d", "--directory")),
    "ant": Runner(("build.xml",), ("-f", "-file", "-buildfile")),
    "cmake": Runner(("CMakeLists.txt",), ("-P",)),
    "java": Runner((), ("-jar",)),
    "bats": Runner(operands=True),
    # What these run is neither one file nor named: hooks, tests, modules of the project.
    **dict.fromkeys(
        ("run-parts", "git", "go", "uv", "pytest", "pre-commit", "gunicorn", "uvicorn", "flask", "celery", "alembic"),
        Runner(),
    ),
}


def plans(name: str, args: Sequence[Word]) -> Iterator[tuple[Word, str]]:
    """The files that say what it will run, and the directory where it looks for them."""
    runner = RUNNERS.get(name)
    if runner is None:
        return
    named, entered = _given(args, runner.named_by), _given(args, runner.enters)
    if runner.operands:
        named += [word for word in args if not word.text.startswith("-")]
    place = "/".join(word.text for word in entered) or "."
    for word in named or map(Word, runner.plans):
        yield word, place


def _given(args: Sequence[Word], options: Sequence[str]) -> list[Word]:
    """The values of options, in the forms `-f x`, `-fx`, `--file x` and `--file=x`."""
    found: list[Word] = []
    for at, word in enumerate(args):
        for option in options:
            glued = f"{option}=" if option.startswith("--") else option
            if word.text == option:
                found += args[at + 1 : at + 2]
            elif word.text.startswith(glued):
                found.append(Word(word.text[len(glued) :]))
    return found
