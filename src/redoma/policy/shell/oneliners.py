"""Programs of one line in Perl and JavaScript that only compute and print: the filters that people type.

What isn't plainly one of these isn't one. Both are read word by word, and every word, name and operator has to be on a
list here; nothing on the lists opens a file, runs a program or text as code, or reaches an object that could.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..facts import UNKNOWN

_MAX = 2000


def only_prints(name: str, options: Sequence[str], code: str, operands: Sequence[str]) -> bool:
    """Whether the program reads its operands and prints, as far as its one line of code goes."""
    if UNKNOWN in code or len(code) > _MAX:
        return False
    if name == "perl":
        # `-n` and `-p` open operands by Perl's two-argument form, for which `ls |` is a command.
        tame = all(re.fullmatch(r"-[lnpaE0e]+|-F.{1,3}", option) for option in options)
        return tame and _reads(code, _PERL) and all(re.fullmatch(r"[\w./*?+,:@%=~-]+", each) for each in operands)
    if name in ("node", "nodejs"):
        return all(option in ("-e", "-p", "--eval", "--print") for option in options) and _is_plain_javascript(code)
    return False


class _Grammar:
    """A language, as tokens. `operand` is what a value may be; after one, only `operator`s may follow, so that a `/` is
    taken for a division where the language takes it for one."""

    def __init__(self, operand: str, operator: str, words: str) -> None:
        names = "|".join(sorted(words.split(), key=len, reverse=True))
        self.space = re.compile(r"\s+")
        self.word = re.compile(rf"(?:{names})\b(?!\s*(?:=>|::|->))")
        self.operand, self.operator = re.compile(operand), re.compile(operator)


def _reads(code: str, grammar: _Grammar) -> bool:
    """Whether all of it is made of the tokens of the grammar."""
    at, value = 0, False  # whether a value stands before this place
    while at < len(code):
        if found := grammar.space.match(code, at):
            pass
        elif found := grammar.word.match(code, at):
            value = False
        elif not value and (found := grammar.operand.match(code, at)):
            value = True
        elif found := grammar.operator.match(code, at):
            value = found[0] in (")", "]")
        else:
            return False
        at = found.end()
    return True


# In a pattern: no code, and no variable that may hold some. In a text: variables by their plain names.
_PATTERN = r"(?:[^/\\\n$@(]|\\[^\n]|\$(?=[/|)])|\((?!\?\??\{|\?p\{|\*))*"
_PERL = _Grammar(
    operand=rf"m?/{_PATTERN}/[gimsx]*(?!\w)"
    rf"|s/{_PATTERN}/(?:[^/\\\n$@]|\\[^\n]|\$[\d&])*/[gimsx]*(?!\w)"
    r"|'[^'\\]*'"
    r'|"(?:[^"\\$@]|\\[tnr"\\$@]|\$(?:\d+|[a-z_]\w*)(?![\w\[{:>-]))*"'
    r"|\$(?:\d+|_|\.|F\[-?\d+\]|[a-z]\w*)(?![\w\[{:])"
    r"|\d+(?:\.\d+)?",
    operator=r"[;,().!?:+*%]|=~|!~|[=!]=|=(?!~)|[<>]=?(?=\s)|&&|\|\||-(?!>)",
    words="print say printf if unless and or not next last chomp uc lc length join sprintf substr my END eq ne lt gt",
)

_JSON = re.compile(r"""\brequire\((["'])(?:\./|\.\./)?[\w./-]+\.json\1\)""")
_DECLARED = re.compile(r"\b(?:const|let)\s+([A-Za-z]\w*)|(?<![\w.])([a-z])\s*=>|\(([a-z](?:\s*,\s*[a-z])*)\)\s*=>")
_GLOBAL = frozenset(
    re.findall(
        r"\w+",
        """
        assert async_hooks buffer child_process cluster console constants crypto dgram diagnostics_channel dns domain
        events fs global globalThis http http2 https inspector localStorage module navigator net os path perf_hooks
        performance process punycode querystring readline repl require sea sqlite stream string_decoder sys test timers
        tls trace_events tty url util v8 vm wasi worker_threads zlib exports eval this arguments constructor fetch async
        await
        """,
    )
)
"""What `node -e` has without asking for it."""


def _is_plain_javascript(code: str) -> bool:
    """Data of a JSON file, and functions that only compute. Every name is one that it has given itself, and no member
    is named by a value: `x["a"]` could be any. There is neither a regular expression nor a template."""
    code = _JSON.sub("'data'", code)
    declared = {name for found in _DECLARED.findall(code) for name in re.findall(r"\w+", " ".join(found))}
    if declared & _GLOBAL:
        return False
    names = "|".join(sorted(declared)) or r"(?!)"
    script = _Grammar(
        operand=r"'(?:[^'\\\n]|\\[nt'\\])*'|\"(?:[^\"\\\n]|\\[nt\"\\])*\"|\d+(?:\.\d+)?"
        r"|(?:Object\.(?:keys|values|entries)|JSON\.(?:parse|stringify)|Math\.\w+|console\.(?:log|table|info))(?=\()"
        rf"|(?:{names})\b",
        operator=r"\?\.(?=[A-Za-z])|\.(?!(?:constructor|prototype|__\w*|call|apply|bind|caller|callee)\b)[A-Za-z]\w*"
        r"|\[\d+\]|=>|===?|!==?|&&|\|\||\?\?|[;,(){}?:+*%!-]|[<>]=?|=",
        words="const let if else for of return true false null undefined",
    )
    return _reads(code, script)
