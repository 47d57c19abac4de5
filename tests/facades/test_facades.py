"""`execute_safe` and the Python core, word for word."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import redoma
from redoma import Config, Core, Executor, execute_safe
from redoma.config import LogConfig, PolicyConfig
from redoma.facades.core import extract
from redoma.facades.core_messages import refusal
from redoma.models import Decision, Finding
from redoma.pipeline import sync
from redoma.policy import load


@pytest.fixture
def executor(config: Config) -> Iterator[Executor]:
    with Executor(config) as executor:
        yield executor


@pytest.fixture
def core(executor: Executor) -> Core:
    return Core(executor=executor)


# execute_safe


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


# The Python core


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print(2 + 2)", "4"),
        ("2 + 2", "4"),
        ("range(3)", "range(0, 3)"),
        ("lista = [1, 2, 3]\nprint(sum(lista), lista[::-1])", "6 [3, 2, 1]"),
        ("s = 'abc'\nprint(s.upper(), len(s), 'b' in s)", "ABC 3 True"),
        ("nome = 'A³X'\nprint(f'Olá, {nome}!')", "Olá, A³X!"),
        ("print('passo')", "passo"),
        ("sistema = 'os'\nprint(sistema)", "os"),
        ("print('import os')", "import os"),
        ("x = 1", "Execução concluída com sucesso"),
        ("", "Execução concluída com sucesso"),
        ("lista = []\nlista.append(1)", "Execução concluída com sucesso"),
        ("raise SystemExit", "Execução concluída com sucesso"),
        ("print()", "Execução concluída com sucesso"),
        ("print(reduce(lambda a, b: a * b, [1, 2, 3, 4]))", "24"),
        ("reduce(lambda a, b: a + b, ['a'], 'b')", "'ba'"),
        ("def reduce(x): return 'a própria'\nprint(reduce(1))", "a própria"),
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
        ("raise UnicodeDecodeError('a', b'', 0, 1, 'x')", "Valor inválido: "),
        ("raise ValueError", "Valor inválido: ValueError"),
        ("assert False", "Erro na execução: AssertionError"),
        ("raise SystemExit(3)", "Erro na execução: código de saída 3"),
        ("reduce(lambda a, b: a / b, [1, 0])", "Divisão por zero: "),
        ("import math\nreduce(1)", "Código não permitido por questões de segurança: "),
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
        ("calcule ```python\nprint(2 + 3)\n```", "print(2 + 3)"),
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
    first, second = core.history
    assert set(first) >= {"type", "code", "result"}
    assert (first["type"], first["code"], first["result"]) == ("core", "print(2 + 2)", "4")
    assert (second["type"], second["code"]) == ("core", None)
    assert second["result"] == "Nenhum código encontrado na mensagem"
    first["result"] = "outro"
    assert core.history[0]["result"] == "4"  # what is handed out is a copy


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
    entry = redoma.command_history()[-1]
    assert (entry["type"], entry["code"], entry["result"]) == ("core", "print(1)", "1")


@pytest.mark.parametrize("leaf", ["0", "print(n)", "print(repr([[n]]))"])
def test_a_hundred_calls_of_the_users_own_fit_and_not_many_more(core: Core, leaf: str) -> None:
    code = f"def f(n):\n    if n == 1:\n        {leaf}\n        return 'fim'\n    return f(n - 1)\nf({{}})"
    assert not core.run_python_code(code.format(100)).startswith("Erro")
    assert core.run_python_code(code.format(110)).startswith("Erro na execução: ")


CORE_RULES = [rule for rule in load("core").rules if "python" in rule.example_languages and rule.match]
ENGLISH = re.compile(r"\b(it|the|of|is|not|line|column|code|write|module|policy|this|profile)\b", re.I)


@pytest.mark.parametrize("rule", CORE_RULES, ids=lambda rule: rule.id)
def test_a_refusal_is_in_portuguese_from_its_first_word_to_its_last(core: Core, rule: redoma.Rule) -> None:
    for code in rule.match:
        if rule.id != "python.syntax" and not core.validate_code(code):
            said = core.run_python_code(code)
            prefix = "Código não permitido por questões de segurança: "
            assert said.startswith((prefix, "Erro de sintaxe no código: "))
            if said.startswith(prefix):
                assert not ENGLISH.search(said), said
                assert "[" not in said  # no name of a rule, which is English too


def test_every_built_in_rule_of_the_profile_is_told_in_portuguese() -> None:
    for rule in load("core").rules:
        finding = Finding(
            rule=rule.id, decision=Decision.FORBID, reason=rule.reason, line=2, suggestion=rule.suggestion
        )
        said = refusal(finding, "pt-BR")
        assert rule.reason not in said
        assert re.fullmatch(r"(o código|não é permitido) .+ \(linha 2\)\. [A-Z].+", said)


def test_a_rule_of_the_users_own_speaks_for_itself(config: Config) -> None:
    rule = redoma.Rule(id="mine", decision=Decision.FORBID, reason="aqui não se imprime", calls=("print",))
    with Executor(Config(audit=config.audit, policy=PolicyConfig(rules=(rule,)))) as executor:
        said = Core(executor=executor).run_python_code("print(1)")
    assert said == "Código não permitido por questões de segurança: aqui não se imprime (linha 1)"


def test_no_advice_of_the_profile_is_something_that_it_refuses(core: Core) -> None:
    for rule in load("core").rules:
        if "python" not in rule.example_languages or rule.command or rule.writes or rule.time_over:
            continue
        if rule.id.startswith("hosts."):  # about a request that names hosts, which the profile has no way to do
            continue
        named = re.findall(r"[a-z_]+(?=\.[a-z])|[a-z_]+(?=\()|\bjson\b|\bcsv\b|\bfile\b|\bvariable\b", rule.suggestion)
        assert named == [], f"{rule.id}: {rule.suggestion}"
    # Each refusal that used to recommend what is refused itself.
    for code in ("eval(x)", "import os", "import json\njson._os", "__import__(n)", "requests.post(1)", "os.system(x)"):
        for locale in ("pt-BR", "en"):
            said = Core(executor=core._executor, locale=locale).run_python_code(code)
            assert not re.search(r"json|csv|ast\b|subprocess|requests|import the", said), said


def test_code_is_validated_without_running_it(core: Core) -> None:
    assert core.validate_code("print(reduce(lambda a, b: a + b, [1, 2]))") is True
    assert core.validate_code("while True: pass") is True
    for code in ("import os", "eval('1')", "open('x')", "def f(:", "#" * 1001):
        assert core.validate_code(code) is False
    assert core.validate_code(None) is False  # type: ignore[arg-type]
    assert core.validate_code("print('passo')") is True


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (SyntaxError("invalid syntax"), "Erro de sintaxe no código: invalid syntax"),
        (IndentationError("unexpected indent"), "Erro de sintaxe no código: unexpected indent"),
        (NameError("name 'x' is not defined"), "Variável não definida: name 'x' is not defined"),
        (TypeError("x"), "Tipo de dado inválido: x"),
        (ValueError("x"), "Valor inválido: x"),
        (IndexError("x"), "Índice fora dos limites: x"),
        (KeyError("k"), "Chave não encontrada: 'k'"),
        (ZeroDivisionError("division by zero"), "Divisão por zero: division by zero"),
        (TimeoutError("x"), "Tempo limite excedido: x"),
        (MemoryError("x"), "Memória insuficiente: x"),
        (RuntimeError("x"), "Erro na execução: x"),
        (json.JSONDecodeError("x", "", 0), "Valor inválido: x: line 1 column 1 (char 0)"),
        (ValueError(), "Valor inválido: ValueError"),
        (
            ValueError("ghp_16C7e42F292c6912E7710c838347Ae178B4a"),
            "Valor inválido: [redacted:github-token]",
        ),
    ],
)
def test_an_exception_becomes_its_message(error: BaseException, message: str) -> None:
    assert redoma.handle_execution_error(error) == message


def test_the_other_names_of_the_core_are_importable() -> None:
    assert redoma.validate_code("print(1)") is True
    assert redoma.validate_code("import os") is False


def test_one_key_of_the_configuration_turns_the_log_on(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "logs" / "core.log"
    with Executor(Config(audit=config.audit, log=LogConfig(core=path))) as executor:
        monkeypatch.setattr(sync, "_default", (os.getpid(), executor))
        redoma.run_python_code("print('função')")  # which is not given a log by anybody
        Core().run_python_code("x = 1")
        redoma.process_command("execute: 1 / 0")
    first, second, third = map(json.loads, path.read_text().splitlines())
    assert (first["code"], first["result"], first["error"]) == ("print('função')", "função", None)
    assert (second["code"], second["result"]) == ("x = 1", "Execução concluída com sucesso")
    assert third["error"].startswith("Divisão por zero")
