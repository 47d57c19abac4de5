"""Commands that run other commands: what is left when the wrapper is taken off.

`unwrap` looks at one command's words and says what it makes run: another command, code in some language, a
script read from a file or from standard input. It decides nothing and knows nothing of the syntax tree.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from .facts import UNKNOWN
from .shell_interpreters import Code, Run, Script, Step, interpret, interpreter
from .shell_words import Word, base, merge


class _Wrapper(NamedTuple):
    flags: str = ""
    """Options without a value: single letters, then long names, separated by spaces."""
    values: str = ""
    """Options that take the next word as their value."""
    skip: int = 0
    """Operands of its own before the command."""
    assignments: bool = False


# Words that Bash itself takes off, then programs. An option in neither list is read both ways.
_WRAPPERS: dict[str, _Wrapper] = {
    "!": _Wrapper(),
    "{": _Wrapper(),
    "then": _Wrapper(),
    "do": _Wrapper(),
    "else": _Wrapper(),
    "time": _Wrapper("p v a portability verbose append quiet q", "f o format output"),
    "builtin": _Wrapper(),
    "exec": _Wrapper("c l", "a"),
    "nohup": _Wrapper(),
    "nice": _Wrapper("", "n adjustment"),
    "ionice": _Wrapper("t ignore", "c n class classdata"),
    "chrt": _Wrapper("a b d f i o r R v", "T P D", 1),
    "taskset": _Wrapper("a", "c cpu-list", 1),
    "setsid": _Wrapper("c f w ctty fork wait"),
    "stdbuf": _Wrapper("", "i o e input output error"),
    "unbuffer": _Wrapper("p"),
    "timeout": _Wrapper("v f p foreground preserve-status verbose", "s k signal kill-after", 1),
    "gtimeout": _Wrapper("v foreground preserve-status verbose", "s k signal kill-after", 1),
    "env": _Wrapper("i 0 v ignore-environment null debug", "u C unset chdir a argv0", 0, True),
    "sudo": _Wrapper(
        "A b E e H i K k l n P S s v B askpass background preserve-env login non-interactive stdin shell",
        "u g h p C D R T U r t c user group host prompt chdir chroot close-from command-timeout role type",
        0,
        True,
    ),
    "doas": _Wrapper("L n s", "u C a"),
    "pkexec": _Wrapper("keep-cwd disable-internal-agent", "user"),
    "runuser": _Wrapper("l f p", "u g G"),
    "chroot": _Wrapper("skip-chdir", "userspec groups", 1),
    "setarch": _Wrapper("R v B F I L S T X Z 3", "", 1),
    "linux32": _Wrapper("R v B F I L S T X Z 3"),
    "linux64": _Wrapper("R v B F I L S T X Z 3"),
    "strace": _Wrapper("f ff q qq c C t tt r T v y yy i k x xx", "o e p s u E a b I O P S X trace"),
    "ltrace": _Wrapper("f c C t r S T", "o e p s u n a l x"),
    "valgrind": _Wrapper("q v"),
    "catchsegv": _Wrapper(),
    "fakeroot": _Wrapper("u", "l s i b"),
    "proot": _Wrapper("0", "r b w q"),
    "firejail": _Wrapper("quiet noprofile"),
    "rlwrap": _Wrapper("a c i n r", "f H l"),
    "dbus-run-session": _Wrapper("", "config-file"),
    "dbus-launch": _Wrapper("exit-with-session sh-syntax"),
    "systemd-run": _Wrapper(
        "t P G S q user scope wait pty pipe collect quiet", "p u M H E unit property slice uid gid"
    ),
    "systemd-inhibit": _Wrapper("", "what who why mode"),
    "faketime": _Wrapper("f m p", "", 1),
    "cpulimit": _Wrapper("b f v z", "l p e"),
    "prlimit": _Wrapper("", "p o"),
    "flock": _Wrapper("s x e u n o F v nonblock shared exclusive close", "w E timeout", 1),
    "nsenter": _Wrapper(
        "a m u i n p U C T r w F e all mount uts ipc net pid user cgroup", "t S G target setuid setgid"
    ),
    "unshare": _Wrapper(
        "m u i n p U C T f r c mount uts ipc net pid user cgroup fork map-root-user", "R w S G root wd"
    ),
    "capsh": _Wrapper(),
    "setpriv": _Wrapper("no-new-privs clear-groups", "reuid regid groups"),
    "watch": _Wrapper("b c d e g p t x beep color differences errexit exec", "n q interval"),
    "entr": _Wrapper("a c d n p r s z"),
    "chpst": _Wrapper("v P 0 1 2", "u U e / n l L m d o p f c r t"),
    "softlimit": _Wrapper("", "a c d f l m o p r s t"),
    "tini": _Wrapper("s v w g", "p e"),
    "dumb-init": _Wrapper("c v", "r"),
    "gosu": _Wrapper("", "", 1),
    "su-exec": _Wrapper("", "", 1),
    "torsocks": _Wrapper(),
    "proxychains": _Wrapper("q", "f"),
    "proxychains4": _Wrapper("q", "f"),
    "busybox": _Wrapper(),
    "toybox": _Wrapper(),
    "npx": _Wrapper("y yes no-install q", "p package"),
    "bunx": _Wrapper(),
    "uvx": _Wrapper("", "from with p python"),
    "coproc": _Wrapper(),
    "screen": _Wrapper("d m D R dm", "S c t dmS"),
    "sshpass": _Wrapper("e v", "p f d P"),
}

# Two words that together are a wrapper.
_PAIRS: dict[tuple[str, str], _Wrapper] = {
    ("uv", "run"): _Wrapper("q v frozen locked no-sync isolated no-project", "p python with extra group env-file"),
    ("poetry", "run"): _Wrapper(),
    ("pdm", "run"): _Wrapper(),
    ("hatch", "run"): _Wrapper(),
    ("rye", "run"): _Wrapper(),
    ("pipenv", "run"): _Wrapper(),
    ("pipx", "run"): _Wrapper("", "spec python"),
    ("conda", "run"): _Wrapper("no-capture-output live-stream", "n p name prefix cwd"),
    ("bundle", "exec"): _Wrapper(),
    ("npm", "exec"): _Wrapper("y yes", "p package"),
    ("pnpm", "exec"): _Wrapper("r"),
    ("pnpm", "dlx"): _Wrapper(),
    ("yarn", "dlx"): _Wrapper(),
    ("direnv", "exec"): _Wrapper("", "", 1),
    ("mise", "exec"): _Wrapper("", "", 0),
    ("bisect", "run"): _Wrapper(),
    ("jobs", "-x"): _Wrapper(),
    ("cmake", "-E"): _Wrapper(),
}

_PAIR_HEADS = frozenset(first for first, _ in _PAIRS)
_LOADER = re.compile(r"ld[-.\w]*\.so(?:\.\d+)*\Z")


def unwrap(words: Sequence[Word], fed: str | None) -> list[Step]:
    """What these words make run besides themselves. `fed` is the text on standard input, where it is known."""
    name, rest = base(words[0]), list(words[1:])
    if language := interpreter(name):
        return list(interpret(name, language, rest))
    steps: list[Step] = []
    if name.startswith("ld") and _LOADER.match(name):
        steps += [
            Run(each, "ld.so") for each in _strip(_Wrapper("list verify", "library-path preload audit argv0"), rest)
        ]
    if special := _SPECIAL.get(name):
        steps += special(rest, fed)
    if name in _WRAPPERS:
        steps += [Run(each, name) for each in _strip(_WRAPPERS[name], rest) if each]
    if name == "git" or name in _PAIR_HEADS:
        texts = [name, *(word.text for word in rest[:8])]
        for at, pair in enumerate(pairwise(texts)):
            if pair in _PAIRS and (at == 0 or name == "git"):
                steps += [Run(each, " ".join(pair)) for each in _strip(_PAIRS[pair], rest[at + 1 :]) if each]
    return steps


_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")


def _strip(wrapper: _Wrapper, rest: list[Word]) -> list[tuple[Word, ...]]:
    """The command inside; more than one reading when an option isn't known."""
    flags, values = wrapper.flags.split(), wrapper.values.split()
    readings: list[tuple[Word, ...]] = []
    skip, at = wrapper.skip, 0
    while at < len(rest):
        text = rest[at].text
        if text == "--":
            at += 1 + skip
            break
        if text.startswith("-") and len(text) > 1:
            option = text.lstrip("-").partition("=")[0]
            long = text.startswith("--")
            if (long and "=" in text) or option in flags or (not long and option[0] in flags and option[-1] in flags):
                at += 1
            elif option in values or (not long and option[-1] in values and option[:-1].strip("".join(flags)) == ""):
                at += 2
            elif (not long and option[0] in values) or re.fullmatch(r"-\d+", text):
                at += 1
            else:
                readings.append(tuple(rest[at + 2 :]))
                at += 1
        elif wrapper.assignments and _ASSIGNMENT.match(text):
            at += 1
        elif skip:
            skip, at = skip - 1, at + 1
        else:
            break
    return [tuple(rest[at:]), *readings]


def _su(rest: list[Word], fed: str | None) -> Iterator[Step]:
    for at, word in enumerate(rest[:-1]):
        if word.text in ("-c", "--command", "--session-command"):
            yield Code("shell", rest[at + 1], "su -c")
    for word in rest:
        if word.text.startswith("--command="):
            yield Code("shell", word._replace(text=word.text.partition("=")[2]), "su -c")


def _option_code(*options: str) -> Callable[[list[Word], str | None], Iterator[Step]]:
    """A program that hands the value of an option to a shell."""

    def steps(rest: list[Word], fed: str | None) -> Iterator[Step]:
        for at, word in enumerate(rest):
            option, equals, value = word.text.partition("=")
            short = re.match(r"-[A-Za-z]+\Z", word.text)
            if word.text in options or (short and f"-{word.text[-1]}" in options):
                if at + 1 < len(rest):
                    yield Code("shell", rest[at + 1], word.text)
            elif equals and option in options:
                yield Code("shell", word._replace(text=value), option)

    return steps


def _env(rest: list[Word], fed: str | None) -> Iterator[Step]:
    """`env -S 'rm -rf /'` splits its argument itself."""
    for at, word in enumerate(rest):
        text = word.text
        if not text.startswith("-"):
            if not _ASSIGNMENT.match(text):
                return
            continue
        if found := re.match(r"--split-string=?|-[i0v]*S", text):
            value = text[found.end() :] or (rest[at + 1].text if at + 1 < len(rest) else "")
            after = rest[at + 1 :] if text[found.end() :] else rest[at + 2 :]
            yield Run((*_split(value), *after), "env -S")
            return


def _split(text: str) -> list[Word]:
    try:
        return [Word(part) for part in shlex.split(text)]
    except ValueError:
        return [Word(part) for part in text.split()]


_XARGS_VALUES = "adEILnPs"


def _xargs(rest: list[Word], fed: str | None) -> Iterator[Step]:
    at, marker = 0, ""
    while at < len(rest) and rest[at].text.startswith("-"):
        text = rest[at].text
        if text == "--":
            at += 1
            break
        if text.startswith("--"):
            option, _, value = text.partition("=")
            if option == "--replace":
                marker = value or "{}"
            at += 2 if not value and option in _XARGS_LONG else 1
            continue
        letter = next((letter for letter in text[1:] if letter in _XARGS_VALUES or letter == "i"), "")
        value = text.partition(letter)[2] if letter else ""
        if letter == "i":
            marker = value or "{}"
        elif letter == "I":
            marker = value or (rest[at + 1].text if at + 1 < len(rest) else "{}")
        at += 2 if letter and letter != "i" and not value else 1
    command = rest[at:]
    if not command:
        return
    given = _split(fed) if fed else [Word(UNKNOWN, loose=True)]
    if marker:
        joined = fed.strip() if fed is not None and "\n" not in fed.strip() else UNKNOWN
        yield Run(tuple(word._replace(text=word.text.replace(marker, joined)) for word in command), "xargs")
    else:
        yield Run((*command, *given), "xargs")


_XARGS_LONG = ("--arg-file", "--delimiter", "--max-args", "--max-procs", "--max-chars", "--max-lines")


def _find(rest: list[Word], fed: str | None) -> Iterator[Step]:
    texts = [word.text for word in rest]
    for at, text in enumerate(texts):
        if text not in ("-exec", "-execdir", "-ok", "-okdir"):
            continue
        end = next((i for i in range(at + 1, len(texts)) if texts[i] in (";", "+")), len(texts))
        for target in search_roots(texts):
            yield Run(tuple(w._replace(text=w.text.replace("{}", target)) for w in rest[at + 1 : end]), f"find {text}")


def search_roots(args: Sequence[str]) -> list[str]:
    """What the results of `find` look like: something below where it starts. Below "/" that is as good as "/"."""
    end = next((at for at, text in enumerate(args) if re.match(r"-[^HLPDO]|[(!]", text)), len(args))
    roots = [text for text in args[:end] if text and not text.startswith("-")] or ["."]
    return [root if root.strip("/") == "" else root.rstrip("/") + "/" + UNKNOWN for root in roots]


_FD_STOP = ("-x", "-X", "--exec", "--exec-batch")


def _fd(rest: list[Word], fed: str | None) -> Iterator[Step]:
    for at, word in enumerate(rest):
        if word.text in _FD_STOP:
            yield Run(
                (*(w._replace(text=w.text.replace("{}", UNKNOWN)) for w in rest[at + 1 :]), Word(UNKNOWN)), "fd -x"
            )
            return


_SSH_VALUES = "bcDEeFIiJLlmOopQRSWw"


def _ssh(rest: list[Word], fed: str | None) -> Iterator[Step]:
    at, host = 0, False
    while at < len(rest):
        text = rest[at].text
        if text.startswith("-") and len(text) > 1:
            at += 2 if text[-1] in _SSH_VALUES and not any(letter in _SSH_VALUES for letter in text[1:-1]) else 1
        elif host:
            break
        else:
            host, at = True, at + 1
    if command := rest[at:]:
        yield Code("shell", merge(command), "ssh")
    elif host and fed is not None:
        yield Script("shell", None, "ssh")


def _parallel(rest: list[Word], fed: str | None) -> Iterator[Step]:
    at = 0
    while at < len(rest) and rest[at].text.startswith("-"):
        at += 2 if rest[at].text in ("-j", "--jobs", "-a", "-S", "-I", "-n", "-N", "--joblog", "-d", "-P") else 1
    texts = [word.text for word in rest]
    marks = [i for i in range(at, len(rest)) if re.match(r":::+\+?\Z", texts[i])]
    command = rest[at : marks[0]] if marks else rest[at:]
    inputs = rest[marks[0] + 1 :] if marks else []
    if not command:
        for word in inputs:
            yield Code("shell", word, "parallel")
        if not marks:
            yield Script("shell", None, "parallel")
        return
    for value in inputs or [Word(UNKNOWN, loose=True)]:
        line = merge(command)
        text = line.text.replace("{}", value.text) if "{}" in line.text else f"{line.text} {value.text}"
        yield Code("shell", line._replace(text=text, makers=line.makers | value.makers), "parallel")


def _eval(rest: list[Word], fed: str | None) -> Iterator[Step]:
    operands = rest[1:] if rest and rest[0].text == "--" else rest
    if operands:
        yield Code("shell", merge(operands), "eval", when="now")


def _source(rest: list[Word], fed: str | None) -> Iterator[Step]:
    operands = rest[1:] if rest and rest[0].text == "--" else rest
    if operands:
        yield Script("shell", operands[0], "source")


def _trap(rest: list[Word], fed: str | None) -> Iterator[Step]:
    operands = [word for word in rest if word.text not in ("--", "-l", "-p", "-P")]
    if len(operands) > 1 and operands[0].text not in ("", "-"):
        yield Code("shell", operands[0], "trap", when="later")


def _alias(rest: list[Word], fed: str | None) -> Iterator[Step]:
    for word in rest:
        _, equals, value = word.text.partition("=")
        if equals:
            yield Code("shell", word._replace(text=value), "alias")


def _compgen(rest: list[Word], fed: str | None) -> Iterator[Step]:
    """The words given with -W are expanded, substitutions included; -C names a command."""
    for at, word in enumerate(rest[:-1]):
        if word.text == "-W":
            yield Code("shell", rest[at + 1]._replace(text=": " + rest[at + 1].text), "compgen -W")
        elif word.text == "-C":
            yield Code("shell", rest[at + 1], "compgen -C")


def _command(rest: list[Word], fed: str | None) -> Iterator[Step]:
    """`command -v x` only looks x up."""
    at = 0
    while at < len(rest) and rest[at].text.startswith("-") and len(rest[at].text) > 1:
        if rest[at].text != "--" and {"v", "V"} & set(rest[at].text):
            return
        at += 1
    if rest[at:]:
        yield Run(tuple(rest[at:]), "command")


def _joined(via: str, skip: Sequence[str] = (), values: str = "") -> Callable[[list[Word], str | None], Iterator[Step]]:
    """A program that joins its operands and hands them to a shell."""

    def steps(rest: list[Word], fed: str | None) -> Iterator[Step]:
        for command in _strip(_Wrapper(values=values), rest):
            if command:
                yield Code("shell", merge(command), via)

    return steps


def _docker(rest: list[Word], fed: str | None) -> Iterator[Step]:
    """What runs in the container: for `run` and `exec`, the words after the image or container."""
    texts = [word.text for word in rest]
    at = next((i for i, text in enumerate(texts) if text in ("run", "exec")), None)
    if at is None or any(not text.startswith("-") and text not in ("container", "compose") for text in texts[:at]):
        return
    if "--entrypoint" in texts and texts.index("--entrypoint") + 1 < len(texts):
        yield Run((rest[texts.index("--entrypoint") + 1],), "docker --entrypoint")
    for command in _strip(_DOCKER, rest[at + 1 :]):
        if command:
            yield Run(command, f"docker {texts[at]}")


_DOCKER = _Wrapper(
    "d i t P rm init privileged detach interactive tty",
    "a c e h l m p u v w name network net volume mount env env-file user workdir publish memory cpus platform "
    "entrypoint label hostname add-host cap-add cap-drop security-opt device tmpfs ulimit gpus shm-size restart",
    1,
)


def _kubectl(rest: list[Word], fed: str | None) -> Iterator[Step]:
    texts = [word.text for word in rest]
    if {"exec", "run", "debug"} & set(texts) and "--" in texts and rest[texts.index("--") + 1 :]:
        yield Run(tuple(rest[texts.index("--") + 1 :]), "kubectl exec")


def _git(rest: list[Word], fed: str | None) -> Iterator[Step]:
    texts = [word.text for word in rest]
    for at, text in enumerate(texts):
        if text == "foreach":
            if command := [word for word in rest[at + 1 :] if word.text not in ("--recursive", "--quiet", "-q")]:
                yield Code("shell", merge(command), "git submodule foreach")
        elif text in ("-x", "--exec", "--extcmd") and {"rebase", "difftool"} & set(texts) and at + 1 < len(rest):
            yield Code("shell", rest[at + 1], f"git {text}")
        elif text.startswith(("--exec=", "--extcmd=")):
            yield Code("shell", rest[at]._replace(text=text.partition("=")[2]), "git --exec")
        elif text.startswith("--") and text.endswith("-filter") and "filter-branch" in texts and at + 1 < len(rest):
            yield Code("shell", rest[at + 1], f"git {text}")


def _stdin_script(rest: list[Word], fed: str | None) -> Iterator[Step]:
    """`at` and `batch` run what they read, later."""
    yield Script("shell", None, "at")


def _crontab(rest: list[Word], fed: str | None) -> Iterator[Step]:
    if rest and rest[-1].text == "-":
        yield Script("crontab", None, "crontab")


def _tmux(rest: list[Word], fed: str | None) -> Iterator[Step]:
    """The last operand of new-session and its like is a shell command; send-keys types one."""
    texts = {word.text for word in rest}
    if texts & {"new", "new-session", "neww", "new-window", "splitw", "split-window", "send", "send-keys", "run-shell"}:
        for word in rest[1:]:
            if " " in word.text or UNKNOWN in word.text:
                yield Code("shell", word, "tmux")


def _after_dashes(via: str) -> Callable[[list[Word], str | None], Iterator[Step]]:
    def steps(rest: list[Word], fed: str | None) -> Iterator[Step]:
        texts = [word.text for word in rest]
        if "--" in texts and rest[texts.index("--") + 1 :]:
            yield Run(tuple(rest[texts.index("--") + 1 :]), via)

    return steps


def _coproc(rest: list[Word], fed: str | None) -> Iterator[Step]:
    """`coproc NAME { …; }`: the name comes before the command."""
    if len(rest) > 1:
        yield Run(tuple(rest[1:]), "coproc")


_SPECIAL: dict[str, Callable[[list[Word], str | None], Iterator[Step]]] = {
    "su": _su,
    "runuser": _su,
    "env": _env,
    "xargs": _xargs,
    "gxargs": _xargs,
    "find": _find,
    "gfind": _find,
    "fd": _fd,
    "fdfind": _fd,
    "ssh": _ssh,
    "autossh": _ssh,
    "parallel": _parallel,
    "eval": _eval,
    "source": _source,
    ".": _source,
    "trap": _trap,
    "alias": _alias,
    "command": _command,
    "watch": _joined("watch", values="n q interval"),
    "script": _option_code("-c", "--command"),
    "flock": _option_code("-c", "--command"),
    "nix-shell": _option_code("--run", "--command"),
    "sg": _option_code("-c"),
    "docker": _docker,
    "podman": _docker,
    "nerdctl": _docker,
    "kubectl": _kubectl,
    "oc": _kubectl,
    "git": _git,
    "at": _stdin_script,
    "batch": _stdin_script,
    "crontab": _crontab,
    "tmux": _tmux,
    "screen": lambda rest, fed: (
        Run(each, "screen") for each in _strip(_Wrapper("d m D R dm dmS", "S c t"), rest) if each
    ),
    "gdb": _after_dashes("gdb"),
    "capsh": _after_dashes("capsh"),
    "mise": _after_dashes("mise"),
    "nix": _after_dashes("nix"),
    "coproc": _coproc,
    "mapfile": _option_code("-C"),
    "readarray": _option_code("-C"),
    "complete": _option_code("-C"),
    "compgen": _compgen,
    "fzf": _option_code("--preview"),
    "split": _option_code("--filter"),
}
