"""Commands that stand in front of another one: `nice -n 5 make`, `timeout 10 ls`, `npm exec tsc`.

Which options each has, and whether they take a value: enough to know where the command inside begins.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .words import Word


class Prefix(NamedTuple):
    flags: str = ""
    """Options without a value: single letters, then long names, separated by spaces."""
    values: str = ""
    """Options that take the next word as their value."""
    skip: int = 0
    """Operands of its own before the command."""
    assignments: bool = False


# Words that Bash itself takes off, then programs. An option in neither list is read both ways.
PREFIXES: dict[str, Prefix] = {
    "!": Prefix(),
    "{": Prefix(),
    "then": Prefix(),
    "do": Prefix(),
    "else": Prefix(),
    "time": Prefix("p v a portability verbose append quiet q", "f o format output"),
    "builtin": Prefix(),
    "exec": Prefix("c l", "a"),
    "nohup": Prefix(),
    "nice": Prefix("", "n adjustment"),
    "ionice": Prefix("t ignore", "c n class classdata"),
    "chrt": Prefix("a b d f i o r R v", "T P D", 1),
    "taskset": Prefix("a", "c cpu-list", 1),
    "setsid": Prefix("c f w ctty fork wait"),
    "stdbuf": Prefix("", "i o e input output error"),
    "unbuffer": Prefix("p"),
    "timeout": Prefix("v f p foreground preserve-status verbose", "s k signal kill-after", 1),
    "gtimeout": Prefix("v foreground preserve-status verbose", "s k signal kill-after", 1),
    "env": Prefix("i 0 v ignore-environment null debug", "u C unset chdir a argv0", 0, True),
    "sudo": Prefix(
        "A b E e H i K k l n P S s v B askpass background preserve-env login non-interactive stdin shell",
        "u g h p C D R T U r t c user group host prompt chdir chroot close-from command-timeout role type",
        0,
        True,
    ),
    "doas": Prefix("L n s", "u C a"),
    "pkexec": Prefix("keep-cwd disable-internal-agent", "user"),
    "runuser": Prefix("l f p", "u g G"),
    "chroot": Prefix("skip-chdir", "userspec groups", 1),
    "setarch": Prefix("R v B F I L S T X Z 3", "", 1),
    "linux32": Prefix("R v B F I L S T X Z 3"),
    "linux64": Prefix("R v B F I L S T X Z 3"),
    "strace": Prefix("f ff q qq c C t tt r T v y yy i k x xx", "o e p s u E a b I O P S X trace"),
    "ltrace": Prefix("f c C t r S T", "o e p s u n a l x"),
    "valgrind": Prefix("q v"),
    "catchsegv": Prefix(),
    "fakeroot": Prefix("u", "l s i b"),
    "proot": Prefix("0", "r b w q"),
    "firejail": Prefix("quiet noprofile"),
    "rlwrap": Prefix("a c i n r", "f H l"),
    "dbus-run-session": Prefix("", "config-file"),
    "dbus-launch": Prefix("exit-with-session sh-syntax"),
    "systemd-run": Prefix("t P G S q user scope wait pty pipe collect quiet", "p u M H E unit property slice uid gid"),
    "systemd-inhibit": Prefix("", "what who why mode"),
    "faketime": Prefix("f m p", "", 1),
    "cpulimit": Prefix("b f v z", "l p e"),
    "prlimit": Prefix("", "p o"),
    "flock": Prefix("s x e u n o F v nonblock shared exclusive close", "w E timeout", 1),
    "nsenter": Prefix("a m u i n p U C T r w F e all mount uts ipc net pid user cgroup", "t S G target setuid setgid"),
    "unshare": Prefix("m u i n p U C T f r c mount uts ipc net pid user cgroup fork map-root-user", "R w S G root wd"),
    "capsh": Prefix(),
    "setpriv": Prefix("no-new-privs clear-groups", "reuid regid groups"),
    "watch": Prefix("b c d e g p t x beep color differences errexit exec", "n q interval"),
    "entr": Prefix("a c d n p r s z"),
    "chpst": Prefix("v P 0 1 2", "u U e / n l L m d o p f c r t"),
    "softlimit": Prefix("", "a c d f l m o p r s t"),
    "tini": Prefix("s v w g", "p e"),
    "dumb-init": Prefix("c v", "r"),
    "gosu": Prefix("", "", 1),
    "su-exec": Prefix("", "", 1),
    "torsocks": Prefix(),
    "proxychains": Prefix("q", "f"),
    "proxychains4": Prefix("q", "f"),
    "busybox": Prefix(),
    "toybox": Prefix(),
    "npx": Prefix("y yes no-install q", "p package"),
    "bunx": Prefix(),
    "uvx": Prefix("", "from with p python"),
    "coproc": Prefix(),
    "screen": Prefix("d m D R dm", "S c t dmS"),
    "ssh-agent": Prefix("c s D d k", "a E P t O"),
    "systemd-cat": Prefix("", "t p identifier priority stderr-priority level-prefix"),
    "logsave": Prefix("a s v", "", 1),
    "chronic": Prefix("e v"),
    "cronic": Prefix(),
    "xvfb-run": Prefix("a l auto-servernum listen-tcp", "e f n p s w error-file auth-file server-num server-args wait"),
    "numactl": Prefix("a l s H all localalloc", "i N m C P p interleave cpunodebind membind physcpubind preferred"),
    "runcon": Prefix("c compute", "t u r l type user role range"),
    "watchexec": Prefix("r c q v n p", "e w i f s d exts watch ignore filter signal debounce shell"),
    "sshpass": Prefix("e v", "p f d P"),
}

# Two words that together are a prefix.
PAIRS: dict[tuple[str, str], Prefix] = {
    ("uv", "run"): Prefix("q v frozen locked no-sync isolated no-project", "p python with extra group env-file"),
    ("poetry", "run"): Prefix(),
    ("pdm", "run"): Prefix(),
    ("hatch", "run"): Prefix(),
    ("rye", "run"): Prefix(),
    ("pipenv", "run"): Prefix(),
    ("pipx", "run"): Prefix("", "spec python"),
    ("conda", "run"): Prefix("no-capture-output live-stream", "n p name prefix cwd"),
    ("bundle", "exec"): Prefix(),
    ("npm", "exec"): Prefix("y yes", "p package"),
    ("pnpm", "exec"): Prefix("r"),
    ("pnpm", "dlx"): Prefix(),
    ("yarn", "dlx"): Prefix(),
    ("direnv", "exec"): Prefix("", "", 1),
    ("mise", "exec"): Prefix("", "", 0),
    ("bisect", "run"): Prefix(),
    ("jobs", "-x"): Prefix(),
    ("cmake", "-E"): Prefix(),
    ("perf", "stat"): Prefix("a d i n v B A", "e o p C r I x event output repeat"),
    ("perf", "record"): Prefix("a g i q v T", "e o p C c F event output freq call-graph"),
    ("perf", "trace"): Prefix("a s S T v", "e o p C event output"),
}

ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")


def strip(prefix: Prefix, rest: list[Word]) -> list[tuple[Word, ...]]:
    """The command inside; more than one reading when an option isn't known."""
    flags, values = prefix.flags.split(), prefix.values.split()
    readings: list[tuple[Word, ...]] = []
    skip, at = prefix.skip, 0
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
        elif prefix.assignments and ASSIGNMENT.match(text):
            at += 1
        elif skip:
            skip, at = skip - 1, at + 1
        else:
            break
    return [tuple(rest[at:]), *readings]
