"""Variables that are set in other ways than `name=value`: however PATH is changed, `ls` may be any program then."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence

from ..facts import UNKNOWN
from .programs import is_hook

EXPANSION = re.compile(r"\$\{(!?)([A-Za-z_]\w*)(?:\[[^\]]*\])?:?=([^}]*)")
"""`${name:=value}`, also of the variable that another one names (`!`)."""
_DESCRIPTOR = re.compile(r"(?<!\$)\{([A-Za-z_]\w*)\}[<>]")
_SUM = re.compile(
    r"(?<![\w${])(?:(?:\+\+|--)\s*([A-Za-z_]\w*)"
    r"|([A-Za-z_]\w*)(?:\[|\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?![=~])\s*(?=[\w(+$-]))))"
)
_VALUED = {"read": "adinNptu", "mapfile": "CcdnOsu", "readarray": "CcdnOsu", "wait": "p", "printf": "v"}
"""Options of builtins that take a value ..."""
_NAMING = {"read": "a", "wait": "p", "printf": "v"}
"""... which is a variable's name."""
_SEARCHED = ("PATH", "BASH_ENV", "LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "IFS")


def named(builtin: str, args: Sequence[str]) -> list[str]:
    """The variables that a builtin sets or unsets, as they are given to it."""
    words, names, letters = [*args], [], ""
    while builtin not in ("let", "getopts") and words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if word == "--":
            break
        for at, letter in enumerate(word[1:], 1):
            letters += letter
            if letter in _VALUED.get(builtin, ""):
                value = word[at + 1 :] or "".join(words[:1])
                del words[: not word[at + 1 :]]
                names += [value] if letter in _NAMING.get(builtin, "") else []
                break
    if UNKNOWN in letters:
        names.append(UNKNOWN)
    match builtin:
        case "read":
            return names + words
        case "unset":
            return [] if "f" in letters else names + words
        case "mapfile" | "readarray":
            return names + words[:1]
        case "getopts":
            return [word for word in words if word != "--"][1:2]
        case "let":
            return [name for word in words for name in _summed(word)]
    return names


def sets_hook(builtin: str, args: Sequence[str]) -> bool:
    """Whether it gives a hook a value that can't be known, or may do so. What is unset hooks nothing, except that
    without PATH programs are looked for in the current directory."""
    targets = named(builtin, args)
    if builtin == "unset":
        return any(name == "PATH" or not re.match(r"[\w-]+(?:\[|\Z)", name) for name in targets)
    return any(map(_may_be_hook, targets))


def refers_to_hook(value: str) -> bool:
    """Of `declare -n name=value`."""
    return is_hook(value.strip("\"'").partition("[")[0], UNKNOWN, UNKNOWN)


def expansion_sets_hook(text: str) -> bool:
    """`${PATH:=/x}`; of several in one text, whether one does."""
    for indirect, name, value in EXPANSION.findall(text):
        plain = UNKNOWN if "$" in value or "`" in value else value.strip("\"'")
        if indirect or is_hook(name, plain, value):
            return True
    return False


def sum_sets_hook(text: str) -> bool:
    """`((PATH=5))` has programs looked for in the directory 5."""
    return _are_hooks(_summed(text))


def redirection_sets_hook(text: str) -> bool:
    """`{PATH}>file` puts the number of a descriptor there."""
    return _are_hooks(_DESCRIPTOR.findall(text))


def _summed(text: str) -> list[str]:
    return [before or after for before, after in _SUM.findall(text)]


def _are_hooks(names: Iterable[str]) -> bool:
    return any(is_hook(name, UNKNOWN, UNKNOWN) for name in names)


def _may_be_hook(name: str) -> bool:
    # A glob is a name if a file is called so. `a[1]` looks like one, too: that only fits where it can mean a hook.
    target = name.partition("[")[0]
    if UNKNOWN in target or "*" in target or "?" in target:
        return True
    return is_hook(target, UNKNOWN, UNKNOWN) or any(fnmatch.fnmatchcase(hook, name) for hook in _SEARCHED)
