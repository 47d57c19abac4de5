"""The shape of the package: who may import whom, what is public, and what is loaded when."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import redoma

PACKAGE = Path(redoma.__file__).parent

# Each room, and the rooms it may import. Whatever is not listed is a mistake, so a new room has to be placed here.
MAY_IMPORT = {
    "__main__": {"frontends"},
    "lib": set(),
    "models": {"lib"},
    "telemetry": {"lib", "models"},  # looks at what others hand it, by shape
    "redaction": {"lib", "models"},
    "policy": {"lib", "models", "redaction"},
    "output": {"lib", "models", "redaction"},
    "audit": {"lib", "models", "telemetry"},
    "approval": {"lib", "models", "redaction", "telemetry"},
    "network": {"lib", "models", "telemetry"},
    "backends": {"lib", "models", "network", "telemetry"},
    "environments": {"backends", "lib", "models"},
    "workspace": {"backends", "lib", "models", "telemetry"},
    "config": {"lib", "models", "policy"},
    "pipeline": {
        *("approval", "audit", "backends", "config", "lib", "models", "output", "policy", "redaction", "telemetry"),
        *("environments", "workspace", "sessions"),  # the last only to open one: `Executor.session`
    },
    "exec": {"backends", "config", "lib", "models", "pipeline"},
    "sessions": {"backends", "exec", "lib", "models", "output", "pipeline", "redaction", "telemetry", "workspace"},
    "facades": {"audit", "backends", "config", "lib", "models", "pipeline", "policy", "redaction"},
    "scripts": {"backends", "config", "lib", "models", "pipeline", "policy", "redaction"},
    "integrations": {"config", "lib", "models", "pipeline", "sessions"},
    "history": {
        *("audit", "backends", "config", "lib", "models", "output", "pipeline", "policy", "redaction", "workspace"),
    },
    "monitor": {"audit", "config", "lib", "models", "pipeline", "policy", "redaction", "telemetry", ""},
    "frontends": {
        *("approval", "audit", "backends", "config", "environments", "exec", "facades", "history", "lib", "models"),
        *("monitor", "network", "output", "pipeline", "policy", "scripts", "sessions", "telemetry", "workspace", ""),
        "integrations",  # only to make one known: `redoma kernel install`
    },
}


def imports_of(file: Path) -> set[str]:
    """The rooms a file imports, also inside functions; type-checking imports don't run and don't count."""
    package = ["redoma", *file.relative_to(PACKAGE).parent.parts]
    found: set[str] = set()
    todo: list[ast.AST] = [ast.parse(file.read_text())]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        todo.extend(ast.iter_child_nodes(node))
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] if "." in name else "" for name in names if name.split(".")[0] == "redoma"}
    return found


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_dependencies_point_one_way(room: str) -> None:
    files = [PACKAGE / f"{room}.py"] if (PACKAGE / f"{room}.py").exists() else sorted((PACKAGE / room).rglob("*.py"))
    assert files
    for file in files:
        others = imports_of(file) - {room, "__version__"}
        assert others <= MAY_IMPORT[room], f"{file.relative_to(PACKAGE)} imports {sorted(others - MAY_IMPORT[room])}"


def test_every_room_is_placed() -> None:
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert rooms - {"__init__"} == set(MAY_IMPORT)


def test_every_public_name_can_be_had() -> None:
    assert {name for name in redoma.__all__ if not hasattr(redoma, name)} == set()
    assert set(dir(redoma)) == {*redoma.__all__, "__version__"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = redoma.nonsense


def loaded_by(code: str) -> set[str]:
    script = f"import sys; before = set(sys.modules); {code}; print(*sorted(set(sys.modules) - before))"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )


def test_importing_redoma_loads_nothing_heavy() -> None:
    heavy = {"msgspec", "click", "yaml", "re2", "asyncio", "tree_sitter", "pydantic_monty", "stdnum"}
    heavy |= {"logging", "opentelemetry", "prometheus_client", "redoma.telemetry"}
    assert not loaded_by("import redoma") & heavy


def test_a_run_loads_only_what_it_uses() -> None:
    unused = {"redoma.backends.docker", "redoma.backends.monty", "redoma.backends.native", "redoma.policy.shell"}
    unused |= {"redoma.network", "h11", "cryptography", "idna"}  # for runs that name hosts
    unused |= {"redoma.environments", "redoma.pipeline.packages"}
    unused |= {"redoma.workspace", "redoma.output.diagnoses", "redoma.output.expectations", "sqlite3", "yaml", "click"}
    assert not loaded_by("import redoma; assert redoma.run('1 + 1').value == 2") & unused


def test_judging_python_does_not_load_the_bash_parser_nor_the_reverse() -> None:
    judge = (
        "from redoma.policy import load, evaluate; from redoma import Request; "
        "evaluate(load(), Request(code={!r}, language={!r}))"
    )
    assert "tree_sitter" not in loaded_by(judge.format("print(1)", "python"))
    assert "redoma.policy.python" not in loaded_by(judge.format("ls -l", "bash"))


def test_ctypes_is_in_two_files() -> None:
    users = [file.name for file in PACKAGE.rglob("*.py") if "import ctypes" in file.read_text()]
    assert sorted(users) == ["compiled.py", "linux.py"]
