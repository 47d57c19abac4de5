"""The messages of the Python core, in Portuguese and in English."""

from __future__ import annotations

import builtins
from typing import Literal

from ..models import Finding
from ..policy import load

Locale = Literal["pt-BR", "en"]

MESSAGES: dict[Locale, dict[str, str]] = {
    "pt-BR": {
        "SyntaxError": "Erro de sintaxe no código",
        "NameError": "Variável não definida",
        "TypeError": "Tipo de dado inválido",
        "ValueError": "Valor inválido",
        "IndexError": "Índice fora dos limites",
        "KeyError": "Chave não encontrada",
        "ZeroDivisionError": "Divisão por zero",
        "TimeoutError": "Tempo limite excedido",
        "MemoryError": "Memória insuficiente",
        "else": "Erro na execução",
        "refused": "Código não permitido por questões de segurança",
        "success": "Execução concluída com sucesso",
        "time": "mais de {time:g} segundos",
        "memory": "mais de {memory} MB",
        "output": "mais de {output} MB de saída",
        "exit": "código de saída {code}",
        "no code": "Nenhum código encontrado na mensagem",
    },
    "en": {
        "SyntaxError": "Syntax error in the code",
        "NameError": "Undefined variable",
        "TypeError": "Invalid data type",
        "ValueError": "Invalid value",
        "IndexError": "Index out of bounds",
        "KeyError": "Key not found",
        "ZeroDivisionError": "Division by zero",
        "TimeoutError": "Time limit exceeded",
        "MemoryError": "Out of memory",
        "else": "Execution error",
        "refused": "Code not allowed for security reasons",
        "success": "Execution completed successfully",
        "time": "more than {time:g} seconds",
        "memory": "more than {memory} MB",
        "output": "more than {output} MB of output",
        "exit": "exit status {code}",
        "no code": "No code found in the message",
    },
}

_IMPORTS = ("não é permitido importar módulos", "Use os recursos próprios da linguagem")
_LENGTH = ("o código passa de 1000 caracteres", "Divida-o em partes menores")
_TEXT_AS_CODE = ("não é permitido executar texto como código", "Escreva o código por extenso")
_PROGRAMS = ("não é permitido iniciar programas nem comandos do sistema", "Use apenas cálculos, textos e listas")
_INTERPRETER = ("não é permitido inspecionar o interpretador nem ler a entrada", "Use nomes e atributos simples")
_FILES = ("não é permitido acessar arquivos", "Escreva os dados no próprio código")
_NETWORK = ("não é permitido acessar a rede", "Escreva os dados no próprio código")
_SECRET = ("o código contém um segredo, como uma senha ou um token", "Retire o segredo do código")
_CHARACTERS = ("o código contém caracteres invisíveis ou inválidos", "Escreva-o em texto simples, em UTF-8")
_UNREADABLE = ("o código é complexo demais para ser verificado", "Simplifique o código")
_SYSTEM = ("o código tenta agir sobre o sistema", "Use apenas cálculos, textos e listas")

_REFUSALS: dict[str, tuple[str, str]] = {
    "core.import": _IMPORTS,
    "strict.import": _IMPORTS,
    "strict.smuggled-module": _IMPORTS,
    "python.dynamic-import": _IMPORTS,
    "core.length": _LENGTH,
    "script.length": _LENGTH,
    "source.too-large": _LENGTH,
    "python.dynamic-code": _TEXT_AS_CODE,
    "script.text-as-code": _TEXT_AS_CODE,
    "strict.text-as-code": _TEXT_AS_CODE,
    "strict.call": ("não é permitido usar o sistema nem executar texto como código", _TEXT_AS_CODE[1]),
    "python.dynamic-command": _PROGRAMS,
    "script.starts-a-shell": _PROGRAMS,
    "python.dynamic-attribute": _INTERPRETER,
    "strict.introspection": _INTERPRETER,
    "strict.file": _FILES,
    "strict.request": _NETWORK,
    "script.secret": _SECRET,
    "script.assigned-secret": _SECRET,
    "script.unquoted-secret": _SECRET,
    "source.nul": _CHARACTERS,
    "source.bad-utf8": _CHARACTERS,
    "source.invisible": _CHARACTERS,
    "python.encoding": _CHARACTERS,
    "source.too-deep": _UNREADABLE,
    "policy.unreadable": _UNREADABLE,
}
"""Rule → reason and advice in Portuguese. The advice suggests nothing that the core refuses."""


def kind_of(exception: str) -> str:
    """Return the key of `MESSAGES` for an exception's name: its own or, for a built-in one, that of the nearest
    base.
    """
    kind = getattr(builtins, exception, None)
    bases = kind.__mro__ if isinstance(kind, type) and issubclass(kind, BaseException) else ()
    return next((name for name in (exception, *(base.__name__ for base in bases)) if name in _KINDS), "else")


_KINDS = frozenset(name for name in MESSAGES["en"] if name.endswith("Error"))


def refusal(finding: Finding, locale: Locale) -> str:
    """Return why the core refuses, and what to do instead. A rule of the user's own has its own texts."""
    if locale == "en" or not (finding.rule in _REFUSALS or _is_ours(finding.rule)):
        reason, advice = finding.reason, finding.suggestion
    else:
        reason, advice = _REFUSALS.get(finding.rule, _SYSTEM)
    line = {"pt-BR": "linha", "en": "line"}[locale]
    where = f" ({line} {finding.line})" if finding.line else ""
    return f"{reason}{where}" + (f". {advice[:1].upper()}{advice[1:]}" if advice else "")


def _is_ours(rule: str) -> bool:
    return any(each.id == rule for each in load("core").rules)
