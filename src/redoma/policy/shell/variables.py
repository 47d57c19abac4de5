"""Variables that make innocent programs run something else ("hooks"), and all the ways to set one. Once PATH is
changed, by whatever means, `ls` may be any program."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence

from ...lib.patterns import lazy_pattern
from ..facts import UNKNOWN, names
from ..options import grammar_of, walk

_HOOK_NAMES = """
    PATH IFS ENV BASH_ENV BASH_CMDS BASH_ALIASES BASH_LOADABLES_PATH PROMPT_COMMAND PS0 PS1 PS2 PS3 PS4 SHELLOPTS
    BASHOPTS CDPATH FCEDIT FPATH ZDOTDIR LD_PRELOAD LD_AUDIT LD_LIBRARY_PATH GCONV_PATH HOSTALIASES OPENSSL_CONF
    OPENSSL_ENGINES OPENSSL_MODULES PAGER MANPAGER SYSTEMD_PAGER EDITOR VISUAL SUDO_EDITOR SYSTEMD_EDITOR KUBE_EDITOR
    BROWSER LESSOPEN LESSCLOSE LESSEDIT SSH_ASKPASS SUDO_ASKPASS SSH_SK_HELPER SSH_PKCS11_HELPER RSYNC_RSH
    RSYNC_CONNECT_PROG CVS_RSH SVN_SSH SVN_EDITOR GIT_SSH GIT_SSH_COMMAND GIT_PAGER GIT_EDITOR GIT_SEQUENCE_EDITOR
    GIT_EXTERNAL_DIFF GIT_ASKPASS GIT_PROXY_COMMAND GIT_EXEC_PATH GIT_TEMPLATE_DIR HGRCPATH HGEDITOR HGMERGE
    KUBECTL_EXTERNAL_DIFF PYTHONSTARTUP PYTHONHOME PYTHONINSPECT PYTHONBREAKPOINT PYTHONUSERBASE PYTHONPLATLIBDIR
    PYTHONEXECUTABLE PYTHONPYCACHEPREFIX PERL5OPT PERL5LIB PERL5DB PERLLIB RUBYOPT RUBYLIB NODE_OPTIONS NODE_PATH
    JAVA_TOOL_OPTIONS _JAVA_OPTIONS JDK_JAVA_OPTIONS RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER PHPRC PHP_INI_SCAN_DIR
    R_PROFILE R_PROFILE_USER R_ENVIRON R_ENVIRON_USER MAKEFILES MAKEFLAGS TAR_OPTIONS GREP_OPTIONS RIPGREP_CONFIG_PATH
    WGETRC VIMINIT EXINIT PSQLRC PSQL_EDITOR PSQL_PAGER
    """
_HOOKS = frozenset(_HOOK_NAMES.split())
_HOOK_PREFIXES = ("DYLD_", "BASH_FUNC_", "GIT_CONFIG", "LUA_INIT", "LUA_PATH", "LUA_CPATH", "LESSKEY")
SEARCHES = ("PATH", "PYTHONPATH")
"""Variables that determine where programs and modules are searched for."""
TAME_PROGRAMS = frozenset({"", "cat", "less", "more", "true", ":", "vi", "vim", "nvim", "nano", "emacs", "code --wait"})
_SYSTEM_PATH = frozenset(["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"])
_TAME_PATH = lazy_pattern(
    r"(?:/(?:usr|bin|sbin|opt|snap)(?:/[\w.+-]+)*"
    r"|~/(?:\.local/bin|bin|\.cargo/bin|go/bin|\.npm-global/bin|\.pyenv/(?:bin|shims)))/?\Z"
)


def may_be_hook(name: str) -> bool:
    """Return whether some value of this variable makes innocent commands run something else."""
    return name in _HOOKS or name.startswith(_HOOK_PREFIXES)


def is_hook(name: str, value: str, raw: str, reader: str = "") -> bool:
    """Return whether setting this variable makes later, innocent commands run something else.

    `raw`: the value as written, which shows whether `$PATH` comes first in it. `reader`: the command that it is set
    for, if only for one.
    """
    if not may_be_hook(name):
        return False
    if name == "IFS":
        # White space splits words where they are split here, too, and `IFS= read` is the usual way to read lines.
        return bool(value.strip(" \t\n")) and reader not in ("read", "mapfile", "readarray")
    if name == "PATH":
        parts = raw.strip("\"'").split(":")
        return parts[0] not in ("$PATH", "${PATH}") and not all(map(_is_tame, parts))
    if name == "ENV":
        return "/" in value or "$(" in value or "`" in value
    if name == "NODE_OPTIONS":
        return re.search(r"-r\b|--require|--import|-loader|--inspect|--env-file|--openssl|\0", value) is not None
    if name == "MAKEFLAGS":
        return re.fullmatch(r"-j ?\S*", value) is None
    if name == "PS4" or name.startswith("PS"):
        return "$(" in value or "`" in value or UNKNOWN in value
    if name.endswith(("PAGER", "EDITOR")) or name in ("VISUAL", "BROWSER"):
        return value not in TAME_PROGRAMS
    return name != "GREP_OPTIONS" or "-f" in value


def _is_tame(part: str) -> bool:
    """Return whether a part of a PATH is a directory of the system, or one of the usual ones at home."""
    if part in _SYSTEM_PATH:  # as nearly always, and then no pattern is compiled
        return True
    part = re.sub(r"\$\{?PATH\}?", "/usr", part)
    return _TAME_PATH.match(re.sub(r"\A\$\{?HOME\}?", "~", part)) is not None


SET_BY_BASH = names("""
    _ REPLY MAPFILE OPTARG OPTIND OLDPWD COPROC DIRSTACK PIPESTATUS GROUPS FUNCNAME HISTCMD LINENO RANDOM SRANDOM
    SECONDS EPOCHSECONDS EPOCHREALTIME BASH_ARGC BASH_ARGV BASH_COMMAND BASH_LINENO BASH_REMATCH BASH_SUBSHELL BASHPID
""")
"""Variables that Bash sets by itself: what a script has assigned may be replaced by a command that doesn't name them,
as REPLY is by `read`."""


# Ways to set a variable other than `name=value`

SETTERS = names("read mapfile readarray getopts unset let printf wait")
"""Builtins that set, or unset, the variables that their arguments name (see `named`). Those that declare variables are
`options.DECLARES`."""
READERS = names("read mapfile readarray getopts")
"""Those of them that set variables to text that is read at run time."""

EXPANSION = lazy_pattern(r"\$\{(!?)([A-Za-z_]\w*)(?:\[[^\]]*\])?:?=([^}]*)")
"""`${name:=value}`, also with `!`, which sets the variable that `name` refers to."""
_DESCRIPTOR = lazy_pattern(r"(?<!\$)\{([A-Za-z_]\w*)\}[<>]")
_SUM = lazy_pattern(
    r"(?<![\w${])(?:(?:\+\+|--)\s*([A-Za-z_]\w*)"
    r"|([A-Za-z_]\w*)(?:\[|\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?![=~])\s*(?=[\w(+$-]))))"
)
_NAMING = {"read": "-a", "wait": "-p", "printf": "-v"}
"""Options of builtins whose value is a variable's name."""
_SEARCHED = ("PATH", "BASH_ENV", "LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "IFS")


def named(builtin: str, args: Sequence[str]) -> list[str]:
    """Return the names of the variables that a builtin (one of `SETTERS`) sets or unsets, as written in its arguments:
    also `name[1]`, and UNKNOWN. Not those of `SET_BY_BASH`, except for what `read` sets without a name."""
    words, found, letters = [*args], [], ""
    if builtin not in ("let", "getopts"):
        for item in walk(args, grammar_of(builtin)):
            if item.option is None:
                break
            words = [*args[item.after :]]
            if item.option.name == "--":
                break
            letters += item.option.letters
            if item.option.name == _NAMING.get(builtin):
                found.append(item.value or "")
    if UNKNOWN in letters:
        found.append(UNKNOWN)
    match builtin:
        case "read":
            return found + words or ["REPLY"]
        case "unset":
            return [] if "f" in letters else found + words
        case "mapfile" | "readarray":
            return found + words[:1]
        case "getopts":
            return [word for word in words if word != "--"][1:2]
        case "let":
            return [name for word in words for name in _summed(word)]
    return found


def sets_hook(builtin: str, args: Sequence[str]) -> bool:
    """Return whether a builtin sets, or may set, a hook to an unknown value. To unset a hook is harmless, except for
    PATH: without it, programs are searched for in the current directory."""
    targets = named(builtin, args)
    if builtin == "unset":
        return any(name == "PATH" or not re.match(r"[\w-]+(?:\[|\Z)", name) for name in targets)
    return any(map(_may_be_hook, targets))


def refers_to_hook(value: str) -> bool:
    """Return whether the value in `declare -n name=value` refers to a hook."""
    return is_hook(value.strip("\"'").partition("[")[0], UNKNOWN, UNKNOWN)


def expansion_sets_hook(text: str) -> bool:
    """Return whether an expansion in the text sets a hook: `${PATH:=/x}`."""
    for indirect, name, value in EXPANSION.findall(text):
        plain = UNKNOWN if "$" in value or "`" in value else value.strip("\"'")
        if indirect or is_hook(name, plain, value):
            return True
    return False


def sum_sets_hook(text: str) -> bool:
    """Return whether arithmetic sets a hook: after `((PATH=5))`, programs are searched for in the directory 5."""
    return _are_hooks(_summed(text))


def redirection_sets_hook(text: str) -> bool:
    """Return whether a redirection sets a hook: `{PATH}>file` stores a descriptor number in PATH."""
    return _are_hooks(_DESCRIPTOR.findall(text))


def _summed(text: str) -> list[str]:
    return [before or after for before, after in _SUM.findall(text)]


def _are_hooks(names: Iterable[str]) -> bool:
    return any(is_hook(name, UNKNOWN, UNKNOWN) for name in names)


def _may_be_hook(name: str) -> bool:
    # A glob may match a file that has the name of a hook. `a[1]` looks like a glob, too, so brackets count only if they
    # match the name of a hook.
    target = name.partition("[")[0]
    if UNKNOWN in target or "*" in target or "?" in target:
        return True
    return is_hook(target, UNKNOWN, UNKNOWN) or any(fnmatch.fnmatchcase(hook, name) for hook in _SEARCHED)
