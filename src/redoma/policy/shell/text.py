"""Plain string work of the shell: escapes, braces, and what `echo` and `printf` make of constants."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from ..facts import UNKNOWN

MAX_FIELDS = 256
"""Words that one word may expand to."""
MAX_TEMPLATE = 4096
"""Characters of a word whose braces are expanded."""

_ESCAPES = {"a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPE = re.compile(
    r"\\(?:x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|0?([0-7]{1,3})|c(.)|(.))", re.DOTALL
)


def ansi_c(raw: str) -> str:
    """Decode the inside of `$'…'`, which is also what `echo -e` and `printf` do."""

    def one(found: re.Match[str]) -> str:
        if digits := found[1] or found[2] or found[3]:
            code = int(digits, 16)
        elif found[4]:
            code = int(found[4], 8) & 0xFF
        elif found[5]:
            code = ord(found[5]) & 0x1F
        else:
            return _ESCAPES.get(found[6], found[6])
        # A NUL would be taken for UNKNOWN, and Bash ends the string there in any case.
        return chr(code) if 0 < code < 0x110000 and not 0xD800 <= code < 0xE000 else ""

    return _ESCAPE.sub(one, raw)


_SEQUENCE = re.compile(r"(-?\d{1,4}|[A-Za-z])\.\.(-?\d{1,4}|[A-Za-z])(?:\.\.-?\d+)?\Z")


def expand_braces(template: str) -> list[str]:
    """Expand `{a,b}` and `{1..3}`, outermost first; nothing at all when it would be too many."""
    done: list[str] = []
    todo = [template]
    while todo:
        if len(todo) + len(done) > MAX_FIELDS or len(template) > MAX_TEMPLATE:
            return []
        each = todo.pop()
        if group := _first_group(each):
            start, end, options = group
            todo += [each[:start] + option + each[end:] for option in reversed(options)]
        else:
            done.append(each)
    return done


def _first_group(template: str) -> tuple[int, int, list[str]] | None:
    """Where the first braces that mean something begin and end, and what is between their commas."""
    groups: dict[int, tuple[int, list[int]]] = {}
    open_groups: list[tuple[int, list[int]]] = []
    for found in re.finditer(r"[{},]", template):
        if found[0] == "{":
            open_groups.append((found.start(), []))
        elif open_groups and found[0] == ",":
            open_groups[-1][1].append(found.start())
        elif open_groups:
            start, commas = open_groups.pop()
            groups[start] = (found.start(), commas)
    for start, (end, commas) in sorted(groups.items()):
        edges = [start, *commas, end]
        inside = [template[left + 1 : right] for left, right in pairwise(edges)]
        if options := inside if commas else _sequence(inside[0]):
            return start, end + 1, options
    return None


def _sequence(inside: str) -> list[str]:
    if not (found := _SEQUENCE.match(inside)):
        return []
    first, last = found[1], found[2]
    if first.lstrip("-").isdigit() and last.lstrip("-").isdigit():
        low, high = sorted((int(first), int(last)))
        return [str(number) for number in range(low, min(high, low + MAX_FIELDS) + 1)]
    if first.isalpha() and last.isalpha():
        low, high = sorted((ord(first), ord(last)))
        return [chr(code) for code in range(low, high + 1)]
    return []


def echoed_words(words: Sequence[str]) -> str | None:
    if not words or words[0] not in ("echo", "printf") or any(UNKNOWN in word for word in words):
        return None
    args = list(words[1:])
    if words[0] == "echo":
        flags = ""
        while args and re.fullmatch(r"-[neE]+", args[0]):
            flags += args.pop(0)
        text = " ".join(args) + ("" if "n" in flags else "\n")
        return ansi_c(text) if "e" in flags else text
    if args[:1] == ["--"]:
        del args[0]
    if not args or args[0].startswith("-"):
        return None
    form, rest = ansi_c(args[0]), args[1:]
    if re.fullmatch(r"(?:[^%]|%[sb]|%%)*", form, re.DOTALL) is None:
        return None
    count = len(re.findall(r"%[sb]", form))
    out = ""
    for _ in range(min(-(-len(rest) // count), MAX_FIELDS) if count and rest else 1):
        values = iter(rest[:count] + [""] * count)
        out += re.sub(r"%[sb]", lambda found, v=values: next(v) if found[0] == "%s" else ansi_c(next(v)), form)  # type: ignore[misc]
        rest = rest[count:]
    return out.replace("%%", "%")


OWN_PATH = frozenset({"0", "BASH_SOURCE", "BASH_ARGV0"})
"""Variables that hold a script's own path, unless they are set."""
_OWN = r'"?\$(?:0|\{0\}|BASH_SOURCE|\{BASH_SOURCE(?:\[0\])?(?::-\$0)?\})"?'
_OWN_DIRECTORY = rf"\$\(\s*dirname\s+(?:--\s+)?{_OWN}\s*\)"
_QUIETLY = r"(?:\s*(?:&>|1?>)\s*/dev/null(?:\s+2>&1)?)?"
_OWN_DIRECTORIES = re.compile(
    rf"{_OWN_DIRECTORY}\Z"
    rf'|\$\(\s*cd\s+(?:-P\s+)?(?:--\s+)?"?{_OWN_DIRECTORY}(?P<below>(?:/[\w.-]+)*)/?"?{_QUIETLY}\s*&&\s*pwd(?:\s+-P)?\s*\)\Z'
)


def own_directory(substitution: str) -> str | None:
    """`$(dirname "$0")` and `$(cd "$(dirname "$0")/.." && pwd)`: the script's directory, which counts as `.`."""
    found = _OWN_DIRECTORIES.match(substitution)
    return "." + (found["below"] or "") if found else None
