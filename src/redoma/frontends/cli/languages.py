"""Whether a text of which nobody says the language could be Python or Bash."""

from __future__ import annotations

import ast
import builtins


def is_bash(code: str) -> bool:
    """Whether it parses as Bash."""
    from redoma.policy import shell
    from redoma.policy.facts import Trait

    facts = shell.facts_of_script(code)
    return not any(isinstance(fact, Trait) and fact.name == "shell.parse-error" for fact in facts)


def undefined_name(code: str) -> str:
    """Of Python that is nothing but expressions, the first name that nothing defines: `rm` of `rm -rf`. Else empty."""
    tree = _parsed(code)
    if tree is None or not all(isinstance(statement, ast.Expr) for statement in tree.body):
        return ""
    nodes = list(ast.walk(tree))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    defined = {*vars(builtins), "__file__"}
    defined |= {name.id for name in names if isinstance(name.ctx, ast.Store)}
    defined |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    undefined = [name for name in names if name.id not in defined]
    return min(undefined, key=lambda name: (name.lineno, name.col_offset)).id if undefined else ""


def is_meant_as_python(code: str) -> bool:
    """Whether it parses as Python, and could do something else than fail."""
    return _parsed(code) is not None and not undefined_name(code)


def _parsed(code: str) -> ast.Module | None:
    import warnings

    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
