"""R0 and R4: the source systems' own interfaces, word for word."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import redoma
from redoma import Config, Core, Executor, execute_safe
from redoma.facades.core import extract


@pytest.fixture
def executor(config: Config) -> Iterator[Executor]:
    with Executor(config) as executor:
        yield executor


@pytest.fixture
def core(executor: Executor) -> Core:
    return Core(executor=executor)


# R0.1, R0.3, R0.4


async def test_execute_safe_returns_the_value(executor: Executor) -> None:
    assert await execute_safe("2 + 2", executor=executor) == {"status": "success", "output": 4}


@pytest.mark.parametrize(
    "code", ["1 / 0", "x", "def f(:", "import os; os.listdir('.')", "open('/etc/passwd')", "\0", ""]
)
async def test_execute_safe_never_raises_for_what_the_code_did(executor: Executor, code: str) -> None:
    said = await execute_safe(code, executor=executor)
    assert said["status"] in ("success", "error")
    assert said["status"] == ("success" if code == "" else "error")
    if code:
        assert said["message"]


async def test_leaving_with_an_exit_status_is_an_ending_of_the_code(executor: Executor) -> None:
    said = await execute_safe("raise SystemExit(3)", executor=executor)
    assert said["status"] == "error"
    assert "Internal error" not in said["message"]


async def test_execute_safe_captures_what_was_printed(executor: Executor, capsys: pytest.CaptureFixture[str]) -> None:
    assert await execute_safe("print('hi')", executor=executor) == {
        "status": "success",
        "output": None,
        "printed": "hi\n",
    }
    assert capsys.readouterr().out == ""


async def test_execute_safe_always_has_a_memory_limit(executor: Executor) -> None:
    said = await execute_safe("x = 'a' * 10**10", executor=executor)
    assert said["status"] == "error"
    assert "MemoryError" in said["message"]


# R4


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print(2 + 2)", "4"),
        ("2 + 2", "4"),
        ("lista = [1, 2, 3]\nprint(sum(lista), lista[::-1])", "6 [3, 2, 1]"),
        ("s = 'abc'\nprint(s.upper(), len(s), 'b' in s)", "ABC 3 True"),
        ("nome = 'A³X'\nprint(f'Olá, {nome}!')", "Olá, A³X!"),
        ("print('passo')", "passo"),
        ("sistema = 'os'\nprint(sistema)", "os"),
        ("print('import os')", "import os"),
        ("x = 1", ""),
    ],
)
def test_ordinary_code_gives_its_output(core: Core, code: str, expected: str) -> None:
    assert core.run_python_code(code) == expected


@pytest.mark.parametrize(
    ("code", "beginning"),
    [
        ("def f(:", "Erro de sintaxe no código: "),
        ("print(indefinida)", "Variável não definida: "),
        ("1 + 'a'", "Tipo de dado inválido: "),
        ("int('x')", "Valor inválido: "),
        ("[][1]", "Índice fora dos limites: "),
        ("{}['k']", "Chave não encontrada: "),
        ("1 / 0", "Divisão por zero: "),
        ("while True: pass", "Tempo limite excedido: "),
        ("x = 'a' * 10**9", "Memória insuficiente: "),
        ("raise RuntimeError('x')", "Erro na execução: "),
        ("def f(n): return f(n + 1)\nf(0)", "Erro na execução: "),
    ],
)
def test_each_error_has_its_message_in_portuguese(core: Core, code: str, beginning: str) -> None:
    assert core.run_python_code(code).startswith(beginning)


@pytest.mark.parametrize(
    "code",
    [
        "import os",
        "import sys\nsys.exit()",
        "import subprocess",
        "import shutil",
        "import math",
        "__import__('os').system('id')",
        "open('/etc/passwd').read()",
        "eval('1')",
        "exec('x = 1')",
        "().__class__.__base__.__subclasses__()",
        "getattr(print, '__self__')",
        "x = 1\n" * 400,
    ],
)
def test_what_is_not_allowed_is_refused_and_does_not_run(core: Core, code: str) -> None:
    assert core.run_python_code(code).startswith("Código não permitido por questões de segurança: ")


def test_what_was_printed_before_an_error_is_kept(core: Core) -> None:
    assert core.run_python_code("print('antes')\n1 / 0").splitlines()[0] == "antes"


def test_messages_can_be_had_in_english(executor: Executor) -> None:
    assert Core(executor=executor, locale="en").run_python_code("x").startswith("Undefined variable: ")


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("```python\nprint(1)\n```", "print(1)"),
        ("Rode isto:\n```py\nx = 1\nprint(x)\n```\nobrigado", "x = 1\nprint(x)"),
        ("~~~\nprint(2)\n~~~", "print(2)"),
        ("```\nprint(3)\n```", "print(3)"),
        ("print(4)", "print(4)"),
        ("execute: print(5)", "print(5)"),
        ("Por favor, execute o código print(6)", "print(6)"),
        ("rode o código abaixo\nfor i in range(3):\n    print(i)", "for i in range(3):\n    print(i)"),
        ("calcule 2 + 2", "2 + 2"),
        ("run x = {'a': 1}", "x = {'a': 1}"),
        ("Veja:\n  ```python\n  print(1)\n  ```", "print(1)"),
        ("```python title=a\nprint(1)\n```", "print(1)"),
        ("rode:\n    print(1)\n    print(2)", "print(1)\nprint(2)"),
        ("execute `print(7)` por favor", "print(7)"),
        ("[1, 2, 3][0]", "[1, 2, 3][0]"),
        ("f'{1 + 1}'", "f'{1 + 1}'"),
        ("x: int = 3", "x: int = 3"),
        ("Tenho reunião às 15", None),
        ("some 1 e 2", None),
        ("olá", None),
        ("bom dia, tudo bem?", None),
        ("", None),
        ("a, b", None),
    ],
)
def test_the_code_is_taken_out_of_a_message(message: str, code: str | None) -> None:
    assert extract(message) == code


@pytest.mark.parametrize("message", ["a:b;" * 50_000 + "?", "```python\n" * 50_000, "x " * 100_000, "(" * 100_000])
def test_a_hostile_message_is_read_and_has_no_code(message: str) -> None:
    assert extract(message) is None  # it took minutes when each place was tried on the whole message


def test_a_processed_message_is_remembered(core: Core) -> None:
    assert core.process_command("execute: print(2 + 2)") == "4"
    assert core.process_command("bom dia") == "Nenhum código encontrado na mensagem"
    assert [(record.code, record.answer) for record in core.history] == [
        ("print(2 + 2)", "4"),
        (None, "Nenhum código encontrado na mensagem"),
    ]


def test_the_log_has_every_field_and_no_secret(executor: Executor, tmp_path: Path) -> None:
    core = Core(executor=executor, log=tmp_path / "logs" / "core.log")
    core.run_python_code("token = 'ghp_16C7e42F292c6912E7710c838347Ae178B4a'")
    core.run_python_code("print('olá')")
    core.run_python_code("1 / 0")
    secret, first, second = map(json.loads, (tmp_path / "logs" / "core.log").read_text().splitlines())
    assert set(first) == {"timestamp", "code", "result", "error", "duration", "memory_used"}
    assert (first["code"], first["result"], first["error"]) == ("print('olá')", "olá", None)
    assert first["memory_used"] > 0
    assert "16C7e42F292c6912E7710c838347Ae178B4a" not in secret["code"]
    assert second["error"].startswith("Divisão por zero")


def test_the_module_level_functions_work_alone() -> None:
    assert redoma.run_python_code("print(2 + 2)") == "4"
    assert redoma.process_command("```\nprint(1)\n```") == "1"
    assert redoma.command_history()[-1].code == "print(1)"
