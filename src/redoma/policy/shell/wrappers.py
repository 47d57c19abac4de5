"""Commands that run other commands: find what a wrapper runs.

`unwrap` takes one command's words and returns what the command runs: another command, code in some language, or a
script read from a file or from standard input. It decides nothing and doesn't use the syntax tree.
"""

from __future__ import annotations

import re
import shlex
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise

from msgspec.structs import replace

from ...lib.patterns import lazy_pattern
from ..facts import UNKNOWN
from ..options import AWKS, PREFIXES, SEDS, Grammar, given, grammar_of, walk
from .interpreters import ASSIGNMENT, Code, Run, Script, Step, interpret, interpreter, strip
from .words import Word, merge, value_of

_Unwrap = Callable[[str, list[Word], str | None], Iterator[Step]]
"""Takes a program's name, its arguments and the text on its standard input (None: unknown); yields what it runs."""

_PAIR_HEADS = frozenset(first for first, space, _ in (name.partition(" ") for name in PREFIXES) if space)
_LOGIN = lazy_pattern(r"-[AbEeHKknPSsvBfmp]*[il]|--lo")
LOGIN = "su -l -c"
"""`via` of commands that start in the home directory of the target user."""
_LOADER = lazy_pattern(r"ld[-.\w]*\.so(?:\.\d+)*\Z")


def is_loader(name: str) -> bool:
    """Return whether this is the dynamic loader, which runs the program named by its arguments."""
    return name.startswith("ld") and _LOADER.match(name) is not None


def unwrap(name: str, args: Sequence[Word], fed: str | None) -> list[Step]:
    """Return what a command runs besides itself. `fed`: the text on standard input, if known."""
    rest = list(args)
    if language := interpreter(name):
        return list(interpret(name, language, rest))
    steps: list[Step] = []
    if is_loader(name):
        steps += [Run(each, "ld.so") for each in strip(grammar_of("ld.so"), rest)]
    if special := _SPECIAL.get(name):
        steps += special(name, rest, fed)
    if name in PREFIXES:
        steps += [Run(each, name, _directory(name, rest, each)) for each in strip(grammar_of(name), rest) if each]
    if name == "git" or name in _PAIR_HEADS:
        texts = [name, *(word.text for word in rest[:8])]
        for at, pair in enumerate(map(" ".join, pairwise(texts))):
            if pair in PREFIXES and (at == 0 or name == "git"):
                steps += [Run(each, pair) for each in strip(grammar_of(pair), rest[at + 1 :]) if each]
    return steps


def _directory(name: str, rest: list[Word], command: tuple[Word, ...]) -> str | None:
    """Return the directory that a wrapper changes to before it runs the command, as in `env -C / rm -rf etc`; None if
    it stays. UNKNOWN if `sudo` changes to the target user's home, or if the path `climbs`."""
    letter = {"env": "-C", "sudo": "-D"}.get(name)
    if letter is None:
        return None
    texts = [word.text for word in rest[: len(rest) - len(command)]]
    found = UNKNOWN if name == "sudo" and any(map(_LOGIN.match, texts)) else None
    for text, after in pairwise([*texts, ""]):
        option, _, value = text.partition("=")
        if option.startswith("--c") and "--chdir".startswith(option):
            found = value or after
        elif option.startswith(letter):
            found = text[2:] or after
    return UNKNOWN if found and climbs(found) else found


def climbs(path: str) -> bool:
    """Return whether `..` comes after a name in a path: the name may be a link, and then `..` is the parent of its
    target."""
    return re.search(r"[^/.]/+\.\.(?:/|\Z)|\.{3,}/+\.\.(?:/|\Z)", path) is not None


def _texts(words: Sequence[Word]) -> list[str]:
    return [word.text for word in words]


def _after(mark: str, rest: list[Word]) -> list[Word]:
    """Return the words after the first `mark`; empty without one."""
    texts = _texts(rest)
    return rest[texts.index(mark) + 1 :] if mark in texts else []


def _builtin(name: str, rest: list[Word], fed: str | None) -> Iterator[Step]:
    operands = rest[1:] if rest and rest[0].text == "--" else rest
    match name:
        case "eval" if operands:
            yield Code("shell", merge(operands), "eval", when="now")
        case "source" | "." if operands:
            yield Script("shell", operands[0], "source")
        case "trap":
            operands = [word for word in rest if word.text not in ("--", "-l", "-p", "-P")]
            if len(operands) > 1 and operands[0].text not in ("", "-"):
                yield Code("shell", operands[0], "trap", when="later")
        case "alias":
            for word in rest:
                _, equals, value = word.text.partition("=")
                if equals:
                    yield Code("shell", replace(word, text=value), "alias")
        case "compgen":  # the words given with -W are expanded, substitutions included; -C names a command
            for option, word in pairwise(rest):
                if option.text == "-W":
                    yield Code("shell", replace(word, text=": " + word.text), "compgen -W")
                elif option.text == "-C":
                    yield Code("shell", word, "compgen -C")
        case "command":
            at = 0
            while at < len(rest) and rest[at].text.startswith("-") and len(rest[at].text) > 1:
                if rest[at].text != "--" and {"v", "V"} & set(rest[at].text):
                    return  # `command -v x` only looks x up
                at += 1
            if rest[at:]:
                yield Run(tuple(rest[at:]), "command")
        case "coproc" if len(rest) > 1:  # `coproc NAME { …; }`: the name comes before the command
            yield Run(tuple(rest[1:]), "coproc")


def _from_input(name: str, rest: list[Word], fed: str | None) -> Iterator[Step]:
    """Yield the script that `at`, `batch`, `crontab -`, or `script` without a command, runs from standard input."""
    if name in ("at", "batch"):
        yield Script("shell", None, "at")
    elif name == "crontab":
        if rest and rest[-1].text == "-":
            yield Script("crontab", None, "crontab")
    elif found := list(_script_command(name, rest, fed)):
        yield from found
    elif not {"--version", "-V", "--help", "-h"} & {word.text for word in rest}:
        yield Script("shell", None, "script")


def _script_file(name: str, rest: list[Word], fed: str | None) -> Iterator[Step]:
    """awk, sed: yield the program file, which may be standard input or a file that the script wrote."""
    for each in given(_texts(rest), "-f", "--file"):
        yield Script("other", value_of(rest, each), each.option)


def _su(name: str, rest: list[Word], fed: str | None) -> Iterator[Step]:
    via = LOGIN if any(word.text == "-" or _LOGIN.match(word.text) for word in rest) else "su -c"
    for each in given(_texts(rest), "-c", "--command", "--session-command"):
        yield Code("shell", value_of(rest, each), via, lookup="shell")


def _option_code(*options: str) -> _Unwrap:
    """Return an unwrapper for a program that passes the value of an option to a shell."""

    def steps(name: str, rest: list[Word], fed: str | None) -> Iterator[Step]:
        for each in given(_texts(rest), *options):
            yield Code("shell", value_of(rest, each), each.option)

    return steps


_script_command = _option_code("-c", "--command")


def _env(name: str, rest: list[Word], fed: str | None) -> Iterator[Step]:
    """Handle `env -S 'rm -rf /'`: env splits the string into words, which may begin with further options of env."""
    for at, word in enumerate(rest):
        text = word.text
        if not text.startswith("-"):
            if not ASSIGNMENT.match(text):
                return
            continue
        if found := re.match(r"--sp?l?i?t?-?s?t?r?i?n?g?(?:=|\Z)|-[i0v]*S", text):
            value = text[found.end() :] or (rest[at + 1].text if at + 1 < len(rest) else "")
            after = rest[at + 1 :] if text[found.end() :] else rest[at + 2 :]
            yield Run((Word("env"), *_split(value), *after), "env -S")
            return


def _split(text: str) -> list[Word]:
    try:
        return [Word(part) for part in shlex.split(text)]
    except ValueError:
        return [Word(part) for part in text.split()]


def _xargs(name: str, rest: list[Word], fed: str | None) -> Iterator[Step]:
    at, marker = 0, ""
    for item in walk(_texts(rest), grammar_of("xargs")):
        if item.option is None:
            break
        at = item.after
        if item.option.name == "-I" or item.option.name in ("-i", "--replace"):
            marker = item.value or "{}"
        if item.option.name in ("-a", "--arg-file") or not item.option.listed:
            fed = None  # it reads another file, or may do so
        if item.option.name == "--":
            break
    command = rest[at:]
    if not command:
        return
    inputs = _split(fed) if fed else [Word(UNKNOWN, loose=True)]
    if marker:
        joined = fed.strip() if fed and "\n" not in fed.strip() else UNKNOWN
        yield Run(tuple(replace(word, text=word.text.replace(marker, joined)) for word in command), "xargs")
    else:
        yield Run((*command, *inputs), "xargs")


_MAX_ACTIONS = 250  # more than `commands.MAX_LAYERS`, so that the excess is reported


def _find(name: str, rest: list[Word], fed: str | None) -> Iterator[Step]:
    texts = _texts(rest)
    ends = [at for at, text in enumerate(texts) if text in (";", "+")]
    actions = (at for at, text in enumerate(texts) if text in ("-exec", "-execdir", "-ok", "-okdir"))
    for at in islice(actions, _MAX_ACTIONS):
        after = bisect_right(ends, at)
        end = ends[after] if after < len(ends) else len(texts)
        for target in _results(texts[:at]):
            words = (
                replace(word, text=word.text.replace("{}", target), found="{}" in word.text)
                for word in rest[at + 1 : end]
            )
            yield Run(tuple(words), f"find {texts[at]}")


def _results(args: Sequence[str]) -> list[str]:
    """Return what `{}` may stand for: `search_roots` or, with a plain `-name x` in ".", the more exact `./x`."""
    name = next((value for option, value in pairwise(args) if option in ("-name", "-iname")), None)
    if name is None or {"!", "-not", "-o", "-or", ","} & set(args):
        return search_roots(args)
    return [f"./{name}" if root.rstrip(UNKNOWN).strip("/") == "." else root for root in search_roots(args)]


def search_roots(args: Sequence[str]) -> list[str]:
    """Return what the results of `find` look like: an unknown path below each starting point; for "/", just "/"."""
    end = next((at for at, text in enumerate(args) if re.match(r"-[^HLPDO]|[(!]", text)), len(args))
    roots = [text for text in args[:end] if text and not text.startswith("-")] or ["."]
    return [root if root.strip("/") == "" else root.rstrip("/") + "/" + UNKNOWN for root in roots]


_FD_STOP = ("-x", "-X", "--exec", "--exec-batch")


def _fd(name: str, rest: list[Word], fed: str | None) -> Iterator[Step]:
    for at, word in enumerate(rest):
        if word.text in _FD_STOP:
            yield Run(
                (*(replace(w, text=w.text.replace("{}", UNKNOWN)) for w in rest[at + 1 :]), Word(UNKNOWN)), "fd -x"
            )
            return


def _ssh(name: str, rest: list[Word], fed: str | None) -> Iterator[Step]:
    """Yield the command after the host; options may come before and after the host. Without a command, the remote shell
    runs standard input."""
    host = False
    for item in walk(_texts(rest), grammar_of("ssh")):
        if item.option is None and host:
            yield Code("shell", merge(rest[item.at :]), "ssh")
            return
        host = host or item.option is None
    if host and fed is not None:
        yield Script("shell", None, "ssh")


def _parallel(name: str, rest: list[Word], fed: str | None) -> Iterator[Step]:
    texts = _texts(rest)
    at = next((item.at for item in walk(texts, grammar_of("parallel")) if item.option is None), len(rest))
    marks = [i for i in range(at, len(rest)) if re.match(r":::+\+?\Z", texts[i])]
    command = rest[at : marks[0]] if marks else rest[at:]
    inputs = rest[marks[0] + 1 :] if marks else []
    if not command:
        for word in inputs:
            yield Code("shell", word, "parallel")
        if not marks:
            yield Script("shell", None, "parallel")
        return
    # parallel quotes its input, so the input is data, unless the command itself runs its arguments as code.
    for value in inputs or [Word('"${_}"')]:
        line = merge(command)
        text = line.text.replace("{}", value.text) if "{}" in line.text else f"{line.text} {value.text}"
        yield Code("shell", replace(line, text=text, makers=line.makers | value.makers), "parallel")


def _joined(name: str, rest: list[Word], fed: str | None) -> Iterator[Step]:
    """Handle a program that joins its operands and passes them to a shell."""
    for command in strip(grammar_of(name), rest):
        if command:
            yield Code("shell", merge(command), name)


def _docker(name: str, rest: list[Word], fed: str | None) -> Iterator[Step]:
    """Yield what runs in the container: for `run` and `exec`, the words after the image or container."""
    texts = _texts(rest)
    at = next((i for i, text in enumerate(texts) if text in ("run", "exec")), None)
    if at is None or any(not text.startswith("-") and text not in ("container", "compose") for text in texts[:at]):
        return
    for each in islice(given(texts, "--entrypoint"), 1):
        yield Run((value_of(rest, each),), "docker --entrypoint")
    for command in strip(grammar_of("docker run"), rest[at + 1 :]):
        if command:
            yield Run(command, f"docker {texts[at]}")


def _kubectl(name: str, rest: list[Word], fed: str | None) -> Iterator[Step]:
    if {"exec", "run", "debug"} & set(_texts(rest)) and (command := _after("--", rest)):
        yield Run(tuple(command), "kubectl exec")


def _git(name: str, rest: list[Word], fed: str | None) -> Iterator[Step]:
    texts = _texts(rest)
    for at, text in enumerate(texts):
        if text == "foreach":
            if command := [word for word in rest[at + 1 :] if word.text not in ("--recursive", "--quiet", "-q")]:
                yield Code("shell", merge(command), "git submodule foreach")
        elif text in ("-x", "--exec", "--extcmd") and {"rebase", "difftool"} & set(texts) and at + 1 < len(rest):
            yield Code("shell", rest[at + 1], f"git {text}")
        elif text.startswith(("--exec=", "--extcmd=")):
            yield Code("shell", replace(rest[at], text=text.partition("=")[2]), "git --exec")
        elif text.startswith("--") and text.endswith("-filter") and "filter-branch" in texts and at + 1 < len(rest):
            yield Code("shell", rest[at + 1], f"git {text}")


def _tmux(name: str, rest: list[Word], fed: str | None) -> Iterator[Step]:
    """Yield words that may be shell commands: the last operand of new-session and similar, and what send-keys types."""
    texts = {word.text for word in rest}
    if texts & {"new", "new-session", "neww", "new-window", "splitw", "split-window", "send", "send-keys", "run-shell"}:
        for word in rest[1:]:
            if " " in word.text or UNKNOWN in word.text or (word is rest[-1] and "/" in word.text):
                yield Code("shell", word, "tmux")


def _after_dashes(via: str, *, mark: str = "--", first: tuple[Word, ...] = ()) -> _Unwrap:
    """Return an unwrapper for a program that runs the command after `mark`. `first`: words to put before it."""

    def steps(name: str, rest: list[Word], fed: str | None) -> Iterator[Step]:
        if command := _after(mark, rest):
            yield Run((*first, *command), via)

    return steps


def _start_stop_daemon(name: str, rest: list[Word], fed: str | None) -> Iterator[Step]:
    """Yield the program, which is the value of an option, with its arguments, which come after `--`."""
    arguments = _after("--", rest)
    for each in given(_texts(rest), "-x", "--exec", "-a", "--startas"):
        yield Run((value_of(rest, each), *arguments), "start-stop-daemon")


def _hyperfine(name: str, rest: list[Word], fed: str | None) -> Iterator[Step]:
    """Yield the operands and the values of --prepare, --setup and --cleanup: each is a shell command."""
    for word in rest:
        option, _, value = word.text.partition("=") if word.text.startswith("--") else ("", "", word.text)
        if value and not value.isdecimal() and not value.startswith("-"):
            yield Code("shell", replace(word, text=value), f"hyperfine {option}".rstrip())


# For each program or builtin that runs others in a way of its own: the function that finds them. Only this: what a
# builtin does to variables is in `variables`.
_SPECIAL: dict[str, _Unwrap] = {
    **dict.fromkeys(("eval", "source", ".", "trap", "alias", "compgen", "command", "coproc"), _builtin),
    **dict.fromkeys(("at", "batch", "crontab", "script"), _from_input),
    **dict.fromkeys(AWKS | SEDS, _script_file),
    **dict.fromkeys(("su", "runuser"), _su),
    **dict.fromkeys(("xargs", "gxargs"), _xargs),
    **dict.fromkeys(("find", "gfind"), _find),
    **dict.fromkeys(("fd", "fdfind"), _fd),
    **dict.fromkeys(("ssh", "autossh"), _ssh),
    **dict.fromkeys(("docker", "podman", "nerdctl"), _docker),
    **dict.fromkeys(("kubectl", "oc"), _kubectl),
    **dict.fromkeys(("watch", "watchexec"), _joined),
    **dict.fromkeys(("mapfile", "readarray", "complete"), _option_code("-C")),
    "env": _env,
    "parallel": _parallel,
    "git": _git,
    "tmux": _tmux,
    "start-stop-daemon": _start_stop_daemon,
    "hyperfine": _hyperfine,
    "flock": _script_command,
    "nix-shell": _option_code("--run", "--command"),
    "sg": _option_code("-c"),
    "fzf": _option_code("--preview"),
    "split": _option_code("--filter"),
    "gdb": _after_dashes("gdb", mark="--args"),
    "capsh": _after_dashes("capsh", first=(Word("bash"),)),
    "mise": _after_dashes("mise"),
    "nix": _after_dashes("nix"),
    "runcon": lambda name, rest, fed: (Run(each, name) for each in strip(Grammar(operands=1), rest) if each),
}

WRAPPERS = _PAIR_HEADS | {"git", *PREFIXES, *_SPECIAL}
"""Every name that `unwrap` may find something for, besides interpreters and loaders."""
