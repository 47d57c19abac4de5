"""The options of programs: which of them take a value, and how a command line is read with that knowledge.

One table for all: `wrappers` uses it to find the command inside another one, `programs` to find the paths that are
written, `match` to find the words of a rule. The next word after an option that isn't listed may be its value or not;
code that looks for something dangerous has to follow both readings.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import msgspec

from ..lib.patterns import lazy_pattern
from .facts import MAX_NAME, names

AWKS = names("awk gawk mawk nawk")
SEDS = names("sed gsed")
TARS = names("tar gtar bsdtar")
DECLARES = names("export declare typeset local readonly")
"""Builtins of Bash that declare variables."""

_BUNDLE = lazy_pattern(r"-[A-Za-z]+\Z")
_TAR_FIRST, _TAR_NEXT = lazy_pattern(r"-?([A-Za-z0-9]+)"), lazy_pattern(r"-([A-Za-z0-9]+)")


class Grammar:
    """The options of a program, listed without dashes. Options of one letter may be bundled: `-xf`."""

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
        """Letters whose value is the rest of the word, if any; never the next word."""
        self.operands = operands
        """For a program that runs another one: the number of its own operands before that command."""
        self.assignments = assignments
        """For a program that runs another one: whether `NAME=value` may come before that command."""
        self.only_flags = only_flags
        """Whether options that are not listed never take the next word."""


class Option(msgspec.Struct, frozen=True):
    """One word that begins with a dash, parsed."""

    name: str
    """`--output` or `-o`. In a bundle: the letter that takes a value, or else the last one."""
    letters: str
    """All letters up to that one; empty for a long option."""
    value: str | None
    """The attached value; None if there is none."""
    takes_next: bool
    """Whether the next word is its value."""
    listed: bool
    """Whether the grammar lists it, with all letters before it. If not, `takes_next` is a guess: the next word
    may be its value or not."""


class Item(msgspec.Struct, frozen=True):
    """An option or operand of a command line."""

    at: int
    option: Option | None
    """None for an operand."""
    value: str | None
    """The value of the option, attached or in the next word; None if it has none."""
    after: int
    """The index of the next item."""


def read_option(word: str, grammar: Grammar) -> Option:
    """Parse a word that begins with a dash."""
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
    """Yield every option and operand in order. `--` counts as an option; after it there are only operands."""
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
    """Return the arguments that are neither options nor their values.

    An option that isn't listed counts as a flag: at worst its value is returned as one path too many.
    """
    return [args[item.at] for item in walk(args, grammar) if item.option is None]


class Given(msgspec.Struct, frozen=True):
    """A value of an option that was searched for."""

    at: int
    """The index of the word that contains the value."""
    value: str
    option: str
    """The option as written: `-o`, `-xo`, `--output`."""


def given(args: Sequence[str], *names: str) -> Iterator[Given]:
    """Yield every value of these options, written as `-o x`, `-ox`, `-xo x`, `--output x`, `--output=x` or `--outp x`.

    They are found in any position, even after `--` or where they may be the value of another option.
    """
    for at, arg in enumerate(args):
        if not arg.startswith("-"):
            continue
        head, equals, value = arg.partition("=")
        for name in names:
            short = len(name) == 2
            # Not `-oxo`: there the first `o` already takes `xo` as its value.
            if arg == name or (short and arg[-1] == name[1] and _BUNDLE.match(arg) and arg[1] != name[1]):
                if at + 1 < len(args):
                    yield Given(at + 1, args[at + 1], arg)
            elif short and arg.startswith(name):
                yield Given(at, arg[2:], name)
            elif not short and abbreviates(head, name):
                if equals:
                    yield Given(at, value, name)
                elif at + 1 < len(args):
                    yield Given(at + 1, args[at + 1], name)


_WHOLE = frozenset({"--cookie", "--checkpoint", "--config", "--exec"})
"""Options that are not abbreviations, although a longer option begins with them."""


def abbreviates(word: str, option: str) -> bool:
    """Return whether a word is this long option or an abbreviation, which GNU programs accept if it is unambiguous."""
    return word == option or (len(word) > 2 and option.startswith(word) and word not in _WHOLE)


def values_of(args: Sequence[str], *names: str) -> list[str]:
    """Return the values of these options, found by `given`."""
    return [each.value for each in given(args, *names)]


def sed_scripts(args: Sequence[str]) -> list[str]:
    """Return the scripts on the command line of `sed`: the values of -e, or else the first operand."""
    return values_of(args, "-e", "--expression") or operands(args, grammar_of("sed"))[:1]


def tar_letters(args: Sequence[str]) -> str:
    """Return the one-letter options of `tar`, with `x` for a long option to extract. The first word needs no dash."""
    found = [(_TAR_NEXT if at else _TAR_FIRST).match(arg) for at, arg in enumerate(args)]
    extracts = "x" if {"--extract", "--get"} & set(args) else ""
    return "".join([each[1] for each in found if each]) + extracts


def grammar_of(program: str) -> Grammar:
    """Return the grammar of a program, given its base name; `python3.11` has that of `python`."""
    options = GRAMMARS.get(program)
    return _grammar(GRAMMARS.get(program[:MAX_NAME].rstrip("0123456789."), "") if options is None else options)


@functools.cache
def _grammar(options: str) -> Grammar:
    """Return the grammar that an entry of the table describes. Most requests need none, or a few of them."""
    flags, values, more, *_ = (*options.split("|"), "", "")
    return Grammar(
        flags,
        values,
        optional=more.partition("optional ")[2],
        operands=int(more.partition("operands ")[2] or 0),
        assignments="assignments" in more,
        only_flags="only flags" in more,
    )


def _table(text: str) -> dict[str, str]:
    """Return what a table says of each program. An entry is `programs: options without a value | options with a value |
    other properties`, and goes on in lines that are indented."""
    found: dict[str, str] = {}
    for entry in text.replace("\n    ", " ").splitlines():
        if not entry.startswith("#"):
            programs, _, options = entry.partition(":")
            found |= dict.fromkeys(programs.split(", "), options)
    return found


PREFIXES = _table("""\
!, {, then, do, else, builtin, coproc, nohup, catchsegv, capsh, torsocks, busybox, toybox, bunx, cronic, torify,
    tsocks, eatmydata, ccache, sccache, distcc:
time: p v a portability verbose append quiet q | f o format output
exec: c l | a
nice: | n adjustment
ionice: t ignore | c n class classdata
chrt: a b d f i o r R v | T P D | operands 1
# Its -c says how the mask, an operand, is written.
taskset: a c p all-tasks cpu-list pid | | operands 1
uclampset: a s R v all-tasks system reset-on-fork | m M p pid
choom: | n p adjust pid
schedtool: 0 1 2 3 4 5 B D E F I N R v e | M a n p
cgexec: sticky | g
aa-exec: d i v debug immediate verbose | p n profile namespace
daemonize: a v | c e E l o p u
trickle: h v V s | d u w t l n p P
multitime: q s | I i n o r s
retry: v | d m t a delay min max times until while
dtach: z E R | a A c n N r e
setsid: c f w ctty fork wait
stdbuf: | i o e input output error
unbuffer: p
timeout, gtimeout: v f p foreground preserve-status verbose | s k signal kill-after | operands 1
env: i 0 v ignore-environment null debug | u C unset chdir a argv0 | assignments
sudo: A b E e H i K k l n P S s v B askpass background preserve-env login non-interactive stdin shell | u g h p C D
    R T U r t c user group host prompt chdir chroot close-from command-timeout role type | assignments
doas: L n s | u C a
pkexec: keep-cwd disable-internal-agent | user
runuser: l f p | u g G
chroot: skip-chdir | userspec groups | operands 1
# `setarch x86_64 make` is `x86_64 make`, and both names may be left out.
setarch, linux32, linux64, uname26, x86_64, i386, i686: R v B F I L S T X Z 3
strace: f ff q qq c C t tt r T v y yy i k x xx | o e p s u E a b I O P S X trace
ltrace: f c C t r S T | o e p s u n a l x
valgrind: q v
fakeroot: u | l s i b
proot: 0 | r b w q
firejail: quiet noprofile
rlwrap: a c i n r | f H l
dbus-run-session: | config-file
dbus-launch: exit-with-session sh-syntax
systemd-run: t P G S q user scope wait pty pipe collect quiet | p u M H E unit property slice uid gid
systemd-inhibit: | what who why mode
faketime: f m p | | operands 1
cpulimit: b f v z | l p e
prlimit: | p o
flock: s x e u n o F v nonblock shared exclusive close | w E timeout | operands 1
nsenter: a m u i n p U C T r w F e all mount uts ipc net pid user cgroup | t S G target setuid setgid
unshare: m u i n p U C T f r c mount uts ipc net pid user cgroup fork map-root-user | R w S G root wd
setpriv: no-new-privs clear-groups | reuid regid groups
watch: b c d e g p t x beep color differences errexit exec | n q interval
entr: a c d n p r s z
chpst: v P 0 1 2 | u U e / n l L m d o p f c r t
softlimit: | a c d f l m o p r s t
tini: s v w g | p e
dumb-init: c v | r
gosu, su-exec, setuidgid, envuidgid, envdir, s6-setuidgid, s6-envuidgid, s6-envdir, lckdo: | | operands 1
setlock: n N x X | | operands 1
with-lock-ex: w q f | | operands 1
proxychains, proxychains4: q | f
npx: y yes no-install q | p package
uvx: | from with p python
screen: d m D R dm | S c t dmS
ssh-agent: c s D d k | a E P t O
systemd-cat: | t p identifier priority stderr-priority level-prefix
logsave: a s v | | operands 1
chronic: e v
xvfb-run: a l auto-servernum listen-tcp | e f n p s w error-file auth-file server-num server-args wait
numactl: a l s H all localalloc | i N m C P p interleave cpunodebind membind physcpubind preferred
runcon: c compute | t u r l type user role range
watchexec: r c q v n p | e w i f s d exts watch ignore filter signal debounce shell
sshpass: e v | p f d P
poetry run, pdm run, hatch run, rye run, pipenv run, bundle exec, pnpm dlx, yarn dlx, mise exec, bisect run, jobs
    -x, cmake -E, yarn exec, asdf exec, rbenv exec, pyenv exec, nodenv exec, goenv exec:
dotenv run: | f e
dotenvx run: q overload | f e fk
doppler run: | c p t config project token
infisical run: | e env path projectId token
op run: no-masking | env-file account
aws-vault exec: n no-session ecs-server | d t duration mfa-token region | operands 1
chamber exec: pristine strict | b | operands 1
uv run: q v frozen locked no-sync isolated no-project | p python with extra group env-file
pipx run: | spec python
conda run: no-capture-output live-stream | n p name prefix cwd
npm exec: y yes | p package
pnpm exec: r
direnv exec: | | operands 1
perf stat: a d i n v B A | e o p C r I x event output repeat
perf record: a g i q v T | e o p C c F event output freq call-graph
perf trace: a s S T v | e o p C event output
""")
"""Programs and keywords of Bash that run the command after their own options (`nice -n 5 make`, `timeout 10 ls`), and
pairs of words that together do (`npm exec tsc`)."""

GRAMMARS = {
    **PREFIXES,
    **_table("""\
ld.so: list verify | library-path preload audit argv0
xargs, gxargs: 0 r t p x o null no-run-if-empty verbose interactive exit | a d E I L n P s arg-file delimiter
    max-args max-procs max-chars max-lines | optional i
ssh, autossh: | b c D E e F I i J L l m O o p Q R S W w
parallel: 0 k q u t v X bar eta progress dry-run keep-order line-buffer null | j jobs a arg-file S I n N joblog d P
    delay timeout
# Options before the word that says what to do: `git -C dir push` is still `git push`.
git: p P bare paginate no-pager no-replace-objects literal-pathspecs glob-pathspecs noglob-pathspecs icase-pathspecs
    no-optional-locks no-lazy-fetch | C c git-dir work-tree namespace exec-path super-prefix config-env attr-source
hg: | R cwd
docker: | H host c context config l log-level tlscacert tlscert tlskey
docker run: d i t P rm init privileged detach interactive tty | a c e h l m p u v w name network net volume mount
    env env-file user workdir publish memory cpus platform entrypoint label hostname add-host cap-add cap-drop
    security-opt device tmpfs ulimit gpus shm-size restart | operands 1
podman: | root url connection log-level config
npm: | prefix registry userconfig workspace w C
pnpm: | C dir filter F
yarn: | cwd
pip: | python proxy log cache-dir index-url i
uv: | directory project config-file cache-dir color
cargo: | color config C Z
go: | C
systemctl: | H host M machine t type n lines o output
kubectl: | n namespace context kubeconfig s server cluster user
conda: | n name p prefix
apt-get, apt: | o c t
cp, ln, install: | m o g S t
mv: | S t
rsync: | e f B M T
scp: | c F i J l o P S X
sed, gsed: | e f | optional i
truncate: | s r
fallocate: | l o
touch: | d r t
mkdir, mkfifo, mknod: | m
shred: | n s
chmod: | | only flags
setfacl: | m x M X
patch: | p i d D o
zip: | b n P t x i
xxd: | l c g o s
split: | a b C l n t
uniq: | f s w
gzip, gunzip, bzip2, bunzip2, xz, unxz, zstd, unzstd, lzma: | S o
git clone: | b o c j u
git init: | b B
awk, gawk, mawk, nawk: | F v i
psql: A t q X x w 1 no-align tuples-only quiet no-psqlrc expanded no-password csv | c command h p U d host port
    username dbname
mysql, mariadb: N B s t v E batch silent table skip-column-names | e execute h P u D S host port user database
    socket
sqlite3: header noheader csv json line list column box table markdown batch bail readonly
redis-cli: raw no-raw | h p n
read: | a d i n N p t u
mapfile, readarray: | C c d n O s u
wait: | p
printf: | v
python: b B d E i I O P q s S u v x | W X
python -m cProfile, python -m profile, python -m trace: m t T l g count trace | o s f C outfile sort file coverdir
perl: | e E I | optional i
ruby: | e I r C E F K | optional i
node: | e p eval print r require import loader C conditions
nodejs: | e p eval print r require
bun: | e p eval print r preload
php: | r B R E d c f z S t
lua, osascript: | e l
luajit: | e l j
expect: | c f
Rscript, ghc, groovy, scala, ghci, gnuplot: | e
R: | e f
julia: | e E eval print L load
pwsh, powershell: | c Command EncodedCommand f File
elixir: | e eval r
erl: | eval s
guile: | c l s
sbcl: | eval load
emacs: | eval l f load
csh, tcsh: | c
tsx: | e p eval print r require import
ts-node: | e p eval print r require P project
ipython: | c m profile
irb: | r I
pry: | e r I
iex: | e eval S r
octave: | eval p path
ocaml: | e I
swipl: | g t s f
"""),
}
