"""The options of programs: which of them take a value, and how a command line is read with that knowledge.

One table for everybody: `wrappers` looks for the command inside, `programs` for the paths that are written, `match` for
the words of a rule. An option that a program's entry doesn't list may take the next word or not, and whoever looks for
something dangerous has to follow both readings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .facts import MAX_NAME

_BUNDLE = re.compile(r"-[A-Za-z]+\Z")


class Grammar:
    """How a program's options are written. Names stand without dashes; single letters may be run together."""

    def __init__(
        self,
        flags: str = "",
        values: str = "",
        *,
        optional: str = "",
        operands: int = 0,
        assignments: bool = False,
        only_flags: bool = False,
    ) -> None:
        self.flags = frozenset(flags.split())
        """Options without a value."""
        self.values = frozenset(values.split())
        """Options with a value: attached, or the next word."""
        self.optional = frozenset(optional.split())
        """Letters that take the rest of their word if there is any, and never the next word."""
        self.operands = operands
        """Of a program that runs another one: how many operands of its own come before that command."""
        self.assignments = assignments
        """Of a program that runs another one: whether `NAME=value` may come before that command."""
        self.only_flags = only_flags
        """Whether options that are not listed never take the next word."""


class Option(NamedTuple):
    """One option as it is written, by itself."""

    name: str
    """`--output` or `-o`; of letters run together, the one that takes a value, or else the last."""
    letters: str
    """All letters up to that one; empty for a long option."""
    value: str | None
    """What is attached to it."""
    takes_next: bool
    """Whether the next word is its value."""
    listed: bool
    """Whether the grammar lists it, with all letters before it. If not, `takes_next` is a guess: the next word
    may be its value or not."""


class Item(NamedTuple):
    """An option or operand of a command line."""

    at: int
    option: Option | None
    """None for an operand."""
    value: str | None
    """Of the option, attached or not; None if it has none."""
    after: int
    """Where the next item begins."""


def read_option(word: str, grammar: Grammar) -> Option:
    """What a word that begins with a dash says."""
    head, equals, value = word.lstrip("-").partition("=")
    long = word.startswith("--")
    if long or len(head) > 1:
        name = word.partition("=")[0]
        if head in grammar.values:
            return Option(name, "", value if equals else None, not equals, True)
        if long or head in grammar.flags:
            listed = grammar.only_flags or head in grammar.flags
            return Option(name, "", value if equals else None, False, listed)
    letters = word[1:]
    listed = letters != ""
    for at, letter in enumerate(letters, 1):
        if letter in grammar.values or letter in grammar.optional:
            rest = letters[at:] or None
            return Option(f"-{letter}", letters[:at], rest, not rest and letter in grammar.values, listed)
        listed = listed and (grammar.only_flags or letter in grammar.flags)
    return Option(f"-{letters[-1:]}", letters, None, False, listed)


def walk(args: Sequence[str], grammar: Grammar) -> Iterator[Item]:
    """Every option and operand in turn. `--` is an option, after which there are operands only."""
    at, options = 0, True
    while at < len(args):
        word, after, option, value = args[at], at + 1, None, None
        if options and len(word) > 1 and word[0] == "-":
            option = read_option(word, grammar)
            options, value = word != "--", option.value
            if option.takes_next:
                value, after = args[after] if after < len(args) else None, after + 1
        yield Item(at, option, value, after)
        at = after


def operands(args: Sequence[str], grammar: Grammar) -> list[str]:
    """The arguments that are neither options nor their values.

    An option that is not listed counts as a flag: at worst its value is reported as one path too many.
    """
    return [args[item.at] for item in walk(args, grammar) if item.option is None]


class Given(NamedTuple):
    """An option that somebody looks for, and its value."""

    at: int
    """The word that holds the value ..."""
    value: str
    option: str
    """... and the option as it is written: `-o`, `-xo`, `--output`."""


def given(args: Sequence[str], *names: str) -> Iterator[Given]:
    """Every value of these options, as `-o x`, `-ox`, `-xo x`, `--output x` or `--output=x`.

    Wherever they stand: also after `--`, or where they may be the value of another option.
    """
    for at, arg in enumerate(args):
        if not arg.startswith("-"):
            continue
        for name in names:
            short = len(name) == 2
            # Not `-oxo`: there the first `o` already takes `xo` as its value.
            if arg == name or (short and arg[-1] == name[1] and _BUNDLE.match(arg) and arg[1] != name[1]):
                if at + 1 < len(args):
                    yield Given(at + 1, args[at + 1], arg)
            elif short and arg.startswith(name):
                yield Given(at, arg[2:], name)
            elif not short and arg.startswith(f"{name}="):
                yield Given(at, arg[len(name) + 1 :], name)


def values_of(args: Sequence[str], *names: str) -> list[str]:
    """Only the values that `given` finds."""
    return [each.value for each in given(args, *names)]


def grammar_of(program: str) -> Grammar:
    """The entry of a program, by its base name; `python3.11` has that of `python`."""
    return GRAMMARS.get(program) or GRAMMARS.get(program[:MAX_NAME].rstrip("0123456789."), NOTHING_KNOWN)


NOTHING_KNOWN = Grammar()
_ARCHITECTURE = "R v B F I L S T X Z 3"
_TIMEOUT = Grammar("v f p foreground preserve-status verbose", "s k signal kill-after", operands=1)
_PROXYCHAINS = Grammar("q", "f")

PREFIXES: dict[str, Grammar] = {
    # Words that Bash itself takes off ...
    **dict.fromkeys(("!", "{", "then", "do", "else", "builtin", "coproc"), NOTHING_KNOWN),
    "time": Grammar("p v a portability verbose append quiet q", "f o format output"),
    "exec": Grammar("c l", "a"),
    # ... and programs.
    **dict.fromkeys(("nohup", "catchsegv", "capsh", "torsocks", "busybox", "toybox", "bunx", "cronic"), NOTHING_KNOWN),
    **dict.fromkeys(("torify", "tsocks", "eatmydata", "ccache", "sccache", "distcc"), NOTHING_KNOWN),
    "nice": Grammar("", "n adjustment"),
    "ionice": Grammar("t ignore", "c n class classdata"),
    "chrt": Grammar("a b d f i o r R v", "T P D", operands=1),
    "taskset": Grammar("a c p all-tasks cpu-list pid", operands=1),  # -c says how the mask, an operand, is written
    "uclampset": Grammar("a s R v all-tasks system reset-on-fork", "m M p pid"),
    "choom": Grammar("", "n p adjust pid"),
    "schedtool": Grammar("0 1 2 3 4 5 B D E F I N R v e", "M a n p"),
    "cgexec": Grammar("sticky", "g"),
    "aa-exec": Grammar("d i v debug immediate verbose", "p n profile namespace"),
    "daemonize": Grammar("a v", "c e E l o p u"),
    "trickle": Grammar("h v V s", "d u w t l n p P"),
    "multitime": Grammar("q s", "I i n o r s"),
    "retry": Grammar("v", "d m t a delay min max times until while"),
    "dtach": Grammar("z E R", "a A c n N r e"),
    "setsid": Grammar("c f w ctty fork wait"),
    "stdbuf": Grammar("", "i o e input output error"),
    "unbuffer": Grammar("p"),
    "timeout": _TIMEOUT,
    "gtimeout": _TIMEOUT,
    "env": Grammar("i 0 v ignore-environment null debug", "u C unset chdir a argv0", assignments=True),
    "sudo": Grammar(
        "A b E e H i K k l n P S s v B askpass background preserve-env login non-interactive stdin shell",
        "u g h p C D R T U r t c user group host prompt chdir chroot close-from command-timeout role type",
        assignments=True,
    ),
    "doas": Grammar("L n s", "u C a"),
    "pkexec": Grammar("keep-cwd disable-internal-agent", "user"),
    "runuser": Grammar("l f p", "u g G"),
    "chroot": Grammar("skip-chdir", "userspec groups", operands=1),
    # `setarch x86_64 make` is `x86_64 make`, and both names may be left out.
    **dict.fromkeys(("setarch", "linux32", "linux64", "uname26", "x86_64", "i386", "i686"), Grammar(_ARCHITECTURE)),
    "strace": Grammar("f ff q qq c C t tt r T v y yy i k x xx", "o e p s u E a b I O P S X trace"),
    "ltrace": Grammar("f c C t r S T", "o e p s u n a l x"),
    "valgrind": Grammar("q v"),
    "fakeroot": Grammar("u", "l s i b"),
    "proot": Grammar("0", "r b w q"),
    "firejail": Grammar("quiet noprofile"),
    "rlwrap": Grammar("a c i n r", "f H l"),
    "dbus-run-session": Grammar("", "config-file"),
    "dbus-launch": Grammar("exit-with-session sh-syntax"),
    "systemd-run": Grammar("t P G S q user scope wait pty pipe collect quiet", "p u M H E unit property slice uid gid"),
    "systemd-inhibit": Grammar("", "what who why mode"),
    "faketime": Grammar("f m p", operands=1),
    "cpulimit": Grammar("b f v z", "l p e"),
    "prlimit": Grammar("", "p o"),
    "flock": Grammar("s x e u n o F v nonblock shared exclusive close", "w E timeout", operands=1),
    "nsenter": Grammar("a m u i n p U C T r w F e all mount uts ipc net pid user cgroup", "t S G target setuid setgid"),
    "unshare": Grammar("m u i n p U C T f r c mount uts ipc net pid user cgroup fork map-root-user", "R w S G root wd"),
    "setpriv": Grammar("no-new-privs clear-groups", "reuid regid groups"),
    "watch": Grammar("b c d e g p t x beep color differences errexit exec", "n q interval"),
    "entr": Grammar("a c d n p r s z"),
    "chpst": Grammar("v P 0 1 2", "u U e / n l L m d o p f c r t"),
    "softlimit": Grammar("", "a c d f l m o p r s t"),
    "tini": Grammar("s v w g", "p e"),
    "dumb-init": Grammar("c v", "r"),
    **dict.fromkeys(("gosu", "su-exec", "setuidgid", "envuidgid", "envdir"), Grammar(operands=1)),
    **dict.fromkeys(("s6-setuidgid", "s6-envuidgid", "s6-envdir", "lckdo"), Grammar(operands=1)),
    "setlock": Grammar("n N x X", operands=1),
    "with-lock-ex": Grammar("w q f", operands=1),
    "proxychains": _PROXYCHAINS,
    "proxychains4": _PROXYCHAINS,
    "npx": Grammar("y yes no-install q", "p package"),
    "uvx": Grammar("", "from with p python"),
    "screen": Grammar("d m D R dm", "S c t dmS"),
    "ssh-agent": Grammar("c s D d k", "a E P t O"),
    "systemd-cat": Grammar("", "t p identifier priority stderr-priority level-prefix"),
    "logsave": Grammar("a s v", operands=1),
    "chronic": Grammar("e v"),
    "xvfb-run": Grammar(
        "a l auto-servernum listen-tcp", "e f n p s w error-file auth-file server-num server-args wait"
    ),
    "numactl": Grammar("a l s H all localalloc", "i N m C P p interleave cpunodebind membind physcpubind preferred"),
    "runcon": Grammar("c compute", "t u r l type user role range"),
    "watchexec": Grammar("r c q v n p", "e w i f s d exts watch ignore filter signal debounce shell"),
    "sshpass": Grammar("e v", "p f d P"),
    # Two words that together run the command after them.
    **dict.fromkeys(("poetry run", "pdm run", "hatch run", "rye run", "pipenv run", "bundle exec"), NOTHING_KNOWN),
    **dict.fromkeys(("pnpm dlx", "yarn dlx", "mise exec", "bisect run", "jobs -x", "cmake -E"), NOTHING_KNOWN),
    **dict.fromkeys(("yarn exec", "asdf exec", "rbenv exec", "pyenv exec", "nodenv exec", "goenv exec"), NOTHING_KNOWN),
    "dotenv run": Grammar("", "f e"),
    "dotenvx run": Grammar("q overload", "f e fk"),
    "doppler run": Grammar("", "c p t config project token"),
    "infisical run": Grammar("", "e env path projectId token"),
    "op run": Grammar("no-masking", "env-file account"),
    "aws-vault exec": Grammar("n no-session ecs-server", "d t duration mfa-token region", operands=1),
    "chamber exec": Grammar("pristine strict", "b", operands=1),
    "uv run": Grammar("q v frozen locked no-sync isolated no-project", "p python with extra group env-file"),
    "pipx run": Grammar("", "spec python"),
    "conda run": Grammar("no-capture-output live-stream", "n p name prefix cwd"),
    "npm exec": Grammar("y yes", "p package"),
    "pnpm exec": Grammar("r"),
    "direnv exec": Grammar(operands=1),
    "perf stat": Grammar("a d i n v B A", "e o p C r I x event output repeat"),
    "perf record": Grammar("a g i q v T", "e o p C c F event output freq call-graph"),
    "perf trace": Grammar("a s S T v", "e o p C event output"),
}
"""Programs that run the command after their own options: `nice -n 5 make`, `timeout 10 ls`, `npm exec tsc`."""

_COMPRESS = Grammar(values="S o")
_SED = Grammar(values="e f", optional="i")
_AWK = Grammar(values="F v i")
_CONTAINER = Grammar(
    "d i t P rm init privileged detach interactive tty",
    "a c e h l m p u v w name network net volume mount env env-file user workdir publish memory cpus platform "
    "entrypoint label hostname add-host cap-add cap-drop security-opt device tmpfs ulimit gpus shm-size restart",
    operands=1,
)
_XARGS = Grammar(
    "0 r t p x o null no-run-if-empty verbose interactive exit",
    "a d E I L n P s arg-file delimiter max-args max-procs max-chars max-lines",
    optional="i",
)
_MYSQL = Grammar(
    "N B s t v E batch silent table skip-column-names", "e execute h P u D S host port user database socket"
)
_APT = Grammar(values="o c t")
_POWERSHELL = Grammar(values="c Command EncodedCommand f File")
_SSH = Grammar(values="b c D E e F I i J L l m O o p Q R S W w")
_MAPFILE = Grammar(values="C c d n O s u")
_PROFILER = Grammar("m t T l g count trace", "o s f C outfile sort file coverdir")

GRAMMARS: dict[str, Grammar] = {
    **PREFIXES,
    "ld.so": Grammar("list verify", "library-path preload audit argv0"),
    "xargs": _XARGS,
    "gxargs": _XARGS,
    "ssh": _SSH,
    "autossh": _SSH,
    "parallel": Grammar(
        "0 k q u t v X bar eta progress dry-run keep-order line-buffer null",
        "j jobs a arg-file S I n N joblog d P delay timeout",
    ),
    # Options before the word that says what to do: `git -C dir push` is still `git push`.
    "git": Grammar(
        "p P bare paginate no-pager no-replace-objects literal-pathspecs glob-pathspecs noglob-pathspecs "
        "icase-pathspecs no-optional-locks no-lazy-fetch",
        "C c git-dir work-tree namespace exec-path super-prefix config-env attr-source",
    ),
    "hg": Grammar(values="R cwd"),
    "docker": Grammar(values="H host c context config l log-level tlscacert tlscert tlskey"),
    "docker run": _CONTAINER,
    "podman": Grammar(values="root url connection log-level config"),
    "npm": Grammar(values="prefix registry userconfig workspace w C"),
    "pnpm": Grammar(values="C dir filter F"),
    "yarn": Grammar(values="cwd"),
    "pip": Grammar(values="python proxy log cache-dir index-url i"),
    "uv": Grammar(values="directory project config-file cache-dir color"),
    "cargo": Grammar(values="color config C Z"),
    "go": Grammar(values="C"),
    "systemctl": Grammar(values="H host M machine t type n lines o output"),
    "kubectl": Grammar(values="n namespace context kubeconfig s server cluster user"),
    "conda": Grammar(values="n name p prefix"),
    "apt-get": _APT,
    "apt": _APT,
    # Programs that write what their operands name.
    **dict.fromkeys(("cp", "ln", "install"), Grammar(values="m o g S t")),
    "mv": Grammar(values="S t"),
    "rsync": Grammar(values="e f B M T"),
    "scp": Grammar(values="c F i J l o P S X"),
    "sed": _SED,
    "gsed": _SED,
    "truncate": Grammar(values="s r"),
    "fallocate": Grammar(values="l o"),
    "touch": Grammar(values="d r t"),
    **dict.fromkeys(("mkdir", "mkfifo", "mknod"), Grammar(values="m")),
    "shred": Grammar(values="n s"),
    "chmod": Grammar(only_flags=True),
    "setfacl": Grammar(values="m x M X"),
    "patch": Grammar(values="p i d D o"),
    "zip": Grammar(values="b n P t x i"),
    "xxd": Grammar(values="l c g o s"),
    "split": Grammar(values="a b C l n t"),
    "uniq": Grammar(values="f s w"),
    **dict.fromkeys(("gzip", "gunzip", "bzip2", "bunzip2", "xz", "unxz", "zstd", "unzstd", "lzma"), _COMPRESS),
    "git clone": Grammar(values="b o c j u"),
    "git init": Grammar(values="b B"),
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), _AWK),
    # Database clients.
    "psql": Grammar(
        "A t q X x w 1 no-align tuples-only quiet no-psqlrc expanded no-password csv",
        "c command h p U d host port username dbname",
    ),
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
    "sqlite3": Grammar("header noheader csv json line list column box table markdown batch bail readonly"),
    "redis-cli": Grammar("raw no-raw", "h p n"),
    # Builtins that set variables.
    "read": Grammar(values="a d i n N p t u"),
    "mapfile": _MAPFILE,
    "readarray": _MAPFILE,
    "wait": Grammar(values="p"),
    "printf": Grammar(values="v"),
    # Interpreters.
    "python": Grammar("b B d E i I O P q s S u v x", "W X"),
    **dict.fromkeys(("python -m cProfile", "python -m profile", "python -m trace"), _PROFILER),
    "perl": Grammar(values="e E I", optional="i"),
    "ruby": Grammar(values="e I r C E F K", optional="i"),
    "node": Grammar(values="e p eval print r require import loader C conditions"),
    "nodejs": Grammar(values="e p eval print r require"),
    "bun": Grammar(values="e p eval print r preload"),
    "php": Grammar(values="r B R E d c f z S t"),
    "lua": Grammar(values="e l"),
    "luajit": Grammar(values="e l j"),
    "expect": Grammar(values="c f"),
    "Rscript": Grammar(values="e"),
    "R": Grammar(values="e f"),
    "julia": Grammar(values="e E eval print L load"),
    "osascript": Grammar(values="e l"),
    "pwsh": _POWERSHELL,
    "powershell": _POWERSHELL,
    "elixir": Grammar(values="e eval r"),
    "erl": Grammar(values="eval s"),
    **dict.fromkeys(("ghc", "groovy", "scala", "ghci", "gnuplot"), Grammar(values="e")),
    "guile": Grammar(values="c l s"),
    "sbcl": Grammar(values="eval load"),
    "emacs": Grammar(values="eval l f load"),
    **dict.fromkeys(("csh", "tcsh"), Grammar(values="c")),
    "tsx": Grammar(values="e p eval print r require import"),
    "ts-node": Grammar(values="e p eval print r require P project"),
    "ipython": Grammar(values="c m profile"),
    "irb": Grammar(values="r I"),
    "pry": Grammar(values="e r I"),
    "iex": Grammar(values="e eval S r"),
    "octave": Grammar(values="eval p path"),
    "ocaml": Grammar(values="e I"),
    "swipl": Grammar(values="g t s f"),
}
