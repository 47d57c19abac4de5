"""What is known about particular programs: which paths they write, and which options make them run something else."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Sequence

import msgspec

from ...lib.patterns import lazy_pattern
from ..facts import UNKNOWN, names
from ..options import AWKS, DECLARES, SEDS, TARS, given, grammar_of, operands, sed_scripts, tar_letters, values_of, walk
from .variables import SETTERS, TAME_PROGRAMS
from .words import Word, value_of

_Targets = Callable[[Sequence[str]], list[str]]

# A script that redefines one of these does something other than it seems to do. Names that projects often give to their
# own functions (test, install, help …) aren't listed: such a function is judged by its body.
KNOWN_COMMANDS = names(
    "alias awk bash break builtin cat cd chmod chown command cp curl cut date dd declare docker echo egrep env "
    "eval exec exit export false fgrep find git grep head id kill local ln ls make mkdir mktemp mv node npm perl "
    "pip pip3 popd printf ps pushd pwd python python3 read readonly return rm rmdir sed set sh shift sleep sort "
    "source ssh su sudo tail tar tee touch tr trap true type umask uname unalias unset wget which xargs"
)


def is_network_path(path: str) -> bool:
    """Return whether Bash opens a network connection for this path."""
    return path.startswith(("/dev/tcp/", "/dev/udp/"))


def _destination(args: Sequence[str]) -> list[str]:
    """cp, install, ln: the last operand or the value of -t, and the files in it if it is known to be a directory."""
    named, given = operands(args, grammar_of("cp")), values_of(args, "-t", "--target-directory")
    sources, places = (named, given) if given else (named[:-1], named[-1:])
    directories = [place.rstrip("/") for place in places if given or place.endswith("/")]
    return places + [f"{place}/{posixpath.basename(source)}" for place in directories for source in sources]


COPIERS = names("cp ln install mv")


def copied(args: Sequence[str]) -> tuple[str, str] | None:
    """Return the source and the destination of a copy, if there is exactly one of each."""
    named = operands(args, grammar_of("cp"))
    return (named[0], named[1]) if len(named) == 2 else None


def _moved(args: Sequence[str]) -> list[str]:
    """mv: the destination, and the sources, which it removes."""
    return list(dict.fromkeys([*operands(args, grammar_of("mv")), *_destination(args)]))


def _in_place(args: Sequence[str]) -> list[str]:
    """sed, perl, ruby: with -i, every operand. For sed that includes the script if there is no -e; taking it for a path
    does no harm."""
    if any(re.match(r"-[A-Za-z]*i|--in-place", arg) for arg in args):
        return operands(args, grammar_of("sed"))
    return []


_TAR_BUNDLE = lazy_pattern(r"[A-Za-z]*f\Z")


def _tar_targets(args: Sequence[str]) -> list[str]:
    """tar: the directory given by -C if it extracts, otherwise the archive."""
    if "x" in tar_letters(args):
        return values_of(args, "-C", "--directory", "--one-top-level")
    bundled = args[1:2] if args and _TAR_BUNDLE.match(args[0]) else []
    return [*bundled, *values_of(args, "-f", "--file")]


def _unpacks_anywhere(name: str, args: Sequence[str]) -> bool:
    """Return whether names in an archive are used unchanged, even `/etc/x` and `../x`."""
    if name == "unzip":
        return any(re.match(r"-[A-Za-z]*:", arg) for arg in args)
    if name not in TARS:
        return False
    letters = tar_letters(args)
    return "x" in letters and ("P" in letters or any(arg.startswith("--absolute-") for arg in args))


def _git_targets(args: Sequence[str]) -> list[str]:
    if args[:1] == ("clone",):
        return operands(args[1:], grammar_of("git clone"))[1:2]
    if args[:1] == ("init",) or args[:2] == ("worktree", "add"):
        return operands(args[1 if args[0] == "init" else 2 :], grammar_of("git init"))[:1]
    short = ("-o", "--output-directory") if {"archive", "format-patch"} & set(args) else ()
    return values_of(args, "--output", *short)


def _compressed(args: Sequence[str]) -> list[str]:
    """gzip and similar: the operands, which it replaces (f by f.gz), unless it only prints, tests or lists."""
    if any(re.match(r"-[A-Za-z0-9]*[ctl]|--(?:stdout|to-stdout|test|list)\Z", arg) for arg in args):
        return []
    return operands(args, grammar_of("gzip"))


def _all(program: str = "") -> _Targets:
    """Return a function for a program that writes all of its operands."""
    grammar = grammar_of(program)
    return lambda args: operands(args, grammar)


def _from(start: int, end: int | None = None, program: str = "") -> _Targets:
    """Return a function for a program that writes the operands from `start` to `end`."""
    grammar = grammar_of(program)
    return lambda args: operands(args, grammar)[start:end]


def _values(*options: str) -> _Targets:
    """Return a function for a program that writes the values of these options."""
    return lambda args: values_of(args, *options)


_SHOWS_KEY = lazy_pattern(r"-[vq]*[lyBLF]")
_SHOWS_OR_QUIET = lazy_pattern(r"-[lyBLFEvqf]+\Z")
# For each program, a function from its arguments to the paths that it writes, creates, changes or removes.
_TARGETS: dict[str, _Targets] = {
    **dict.fromkeys(names("tee sponge rmdir rm unlink srm ed ex"), _all()),
    **{name: _all(name) for name in names("truncate fallocate touch mkdir shred mkfifo setfacl")},
    **dict.fromkeys(names("cp install ln"), _destination),
    "mv": _moved,
    **dict.fromkeys(SEDS | {"perl", "ruby"}, _in_place),
    "rsync": _from(-1, program="rsync"),
    "scp": _from(-1, program="scp"),
    "dd": lambda args: [arg[3:] for arg in args if arg.startswith("of=")],
    "mknod": _from(0, 1, "mknod"),
    "chmod": lambda args: _from(1)(_without_mode(args)) or _from(1)(args),
    **dict.fromkeys(names("chown chgrp chattr"), _from(1)),
    "patch": lambda args: _from(0, 1, "patch")(args) + values_of(args, "-o", "--output", "-d", "--directory"),
    **dict.fromkeys(TARS, _tar_targets),
    "cpio": _values("-D", "--directory"),
    "mktemp": _values("-p", "--tmpdir"),
    "zip": _from(0, 1, "zip"),
    "xxd": _from(1, 2, "xxd"),
    "uniq": _from(1, 2, "uniq"),
    "split": _from(1, program="split"),
    "unzip": _values("-d"),
    "7z": _values("-o"),
    "curl": _values("-o", "--output", "--output-dir", "-D", "--dump-header", "-c", "--cookie-jar"),
    "wget": _values("-O", "--output-document", "-P", "--directory-prefix", "-o", "--output-file"),
    **dict.fromkeys(names("sort gpg shuf iconv strace time"), _values("-o", "--output")),
    **dict.fromkeys(names("gcc cc g++ clang go"), _values("-o")),
    "openssl": _values("-out"),
    "ssh-keygen": lambda args: [] if _only_shows_keys(args) else _values("-f")(args),
    "find": _values("-fprint", "-fprint0", "-fprintf", "-fls"),
    "git": _git_targets,
    **dict.fromkeys(names("gzip gunzip bzip2 bunzip2 xz unxz zstd unzstd lzma"), _compressed),
}


def _only_shows_keys(args: Sequence[str]) -> bool:
    """Return whether `ssh-keygen` only prints a key, its fingerprint, a certificate or a known host."""
    options = [arg for arg in args if arg.startswith("-")]
    return any(map(_SHOWS_KEY.match, options)) and all(map(_SHOWS_OR_QUIET.match, options))


def _without_mode(args: Sequence[str]) -> list[str]:
    """Return the arguments of `chmod` with a mode such as `-x`, which looks like an option, replaced by a number."""
    mode = next((at for at, arg in enumerate(args) if re.match(r"-[rwxXst]+\Z", arg)), None)
    return ["0" if at == mode else arg for at, arg in enumerate(args)]


WRITERS = frozenset(_TARGETS)


def targets(name: str, args: Sequence[str]) -> list[str]:
    """Return the paths that this program writes, creates, changes or removes."""
    return _TARGETS[name](args) if name in _TARGETS else []


_GIT_KEYS = lazy_pattern(
    r"(?i)(?:core\.(?:pager|editor|sshcommand|fsmonitor|hookspath|gitproxy|askpass|alternaterefscommand|worktree)|alias\..*"
    r"|pager\..*|diff\.(?:external|.*\.(?:command|textconv))|difftool\..*|mergetool\..*|merge\..*\.driver|filter\..*"
    r"|credential.*\.helper|gpg\..*program|gpg\.program|sequence\.editor|protocol\..*\.allow|uploadpack\.packobjectshook"
    r"|init\.templatedir|include.*\.path|remote\..*\.(?:uploadpack|receivepack|vcs|proxy)|submodule\..*\.update|web\.browser"
    r"|browser\..*|man\..*|interactive\.difffilter|trailer\..*|sendemail\..*|url\..*)\Z"
)


def _git_runs(args: Sequence[str]) -> bool:
    """Return whether an option or a setting makes Git run a program."""
    for at, arg in enumerate(args):
        after = args[at + 1] if at + 1 < len(args) else ""
        if arg in ("-c", "--config", "--config-env") or arg.startswith("--config="):
            key, _, value = (arg.partition("=")[2] if "=" in arg else after).partition("=")
            if (_GIT_KEYS.match(key) and value not in TAME_PROGRAMS) or UNKNOWN in key:
                return True
        if arg == "config" and not {"--get", "--get-all", "--list", "-l", "--unset", "get", "list"} & set(args):
            keys = [each for each in args[at + 1 :] if not each.startswith("-") and each != "set"]
            if len(keys) > 1 and _GIT_KEYS.match(keys[0]) and keys[1] not in TAME_PROGRAMS and not _is_store(keys):
                return True
        # Git accepts any unambiguous beginning of a long option.
        if re.match(r"--upl|--rece|--exec-p|--exec=|--open-f|--ext-d", arg) and "rebase" not in args:
            return True
        if arg.startswith("--template=") or "ext::" in arg or (arg.startswith("-O") and "grep" in args):
            return True
        if arg == "-u" and {"clone", "fetch", "ls-remote"} & set(args):
            return True
    return False


def _is_store(keys: Sequence[str]) -> bool:
    """Return whether the setting is a credential helper that comes with Git: `git config credential.helper store`."""
    return keys[0].startswith("credential") and keys[1] in ("cache", "store", "osxkeychain", "manager")


_SED_RUNS = lazy_pattern(
    r"(?:\A|[;{}\n])\s*(?:\d+|\$|/(?:[^/\\]|\\.)*/)?(?:,(?:\d+|\$|/(?:[^/\\]|\\.)*/))?\s*!?\s*(?:e(?:[\s;./]|\Z)|[wW]\s*(?:/|\.\./))"
    r"|(?:\A|[;{}\n/\d$,!\s])s([^\w\s\\])(?:(?!\1)[^\\]|\\.)*\1(?:(?!\1)[^\\]|\\.)*\1[gIiMmp\d]*e"
    r"|(?:\A|[;{}\n/\d$,!\s])s([^\w\s\\])(?:(?!\2)[^\\]|\\.)*\2(?:(?!\2)[^\\]|\\.)*\2[gIiMmp\d]*w\s*(?:/|\.\./)",
    re.DOTALL,
)
_AWK_RUNS = lazy_pattern(
    r"\bsystem\s*\(|\|&?\s*getline|\|&?\s*\"|\"\s*\|&?|>>?\s*\"?(?:/|\.\./)|@load|\binet\b|close\s*\("
)
_SHELL_OUT = lazy_pattern(r"!|\bsystem\b|\bshell\b|\bpython\b|\bpy3?\b|\blua\b|\bperl\b|\bcall\b|\bsource\b|\bterm")


def _any_begins(pattern: str) -> Callable[[Sequence[str]], bool]:
    """Return a function that says whether an argument begins with the pattern."""
    compiled = lazy_pattern(pattern)
    return lambda args: any(map(compiled.match, args))


def _editor_runs(args: Sequence[str]) -> bool:
    given = [*values_of(args, "-c", "--cmd", "-s", "-S"), *(arg for arg in args if arg.startswith("+"))]
    return any(_SHELL_OUT.search(each) or UNKNOWN in each for each in given)


def _sed_runs(args: Sequence[str]) -> bool:
    return "--sandbox" not in args and any(map(_SED_RUNS.search, sed_scripts(args)))


def _any_contains(pattern: str) -> Callable[[Sequence[str]], bool]:
    """Return a function that says whether an argument contains the pattern, in any case."""
    compiled = lazy_pattern(pattern, re.IGNORECASE)
    return lambda args: any(map(compiled.search, args))


_TAR_RUNS = lazy_pattern(r"--(?:checkpoint-action|to-command|rsh-command|info-script|new-volume-script|rmt-command)|-F")
_PLAIN_COMPRESSOR = lazy_pattern(
    r"(?:gzip|pigz|bzip2|pbzip2|xz|pixz|zstd|zstdmt|lz4|lzma|lzip|brotli)\b[\s\d-]*T?\d*\Z"
)


def _tar_runs(args: Sequence[str]) -> bool:
    programs = values_of(args, "--use-compress-program", "--use-compress-prog", "-I")
    return any(map(_TAR_RUNS.match, args)) or not all(map(_PLAIN_COMPRESSOR.match, programs))


def _rsync_runs(args: Sequence[str]) -> bool:
    shells = values_of(args, "-e", "--rsh")
    return any(arg.startswith("--rsync-path") for arg in args) or any(
        not re.match(r"ssh\b", shell) or "ProxyCommand" in shell for shell in shells
    )


def _make_runs(args: Sequence[str]) -> bool:
    files = values_of(args, "-f", "--file", "--makefile")
    return any(arg.startswith(("SHELL=", ".SHELLFLAGS=", "--eval")) for arg in args) or any(
        path == "-" or path.startswith("/dev/") for path in files
    )


_RUNS_ANOTHER_PROGRAM: dict[str, Callable[[Sequence[str]], bool]] = {
    "git": _git_runs,
    **dict.fromkeys(TARS, _tar_runs),
    "rsync": _rsync_runs,
    "ssh": _any_contains(r"(?:proxy|local|knownhosts|permitlocal)command|proxyusefdpass|\Aext::|pkcs11provider"),
    **dict.fromkeys(("scp", "sftp"), _any_contains(r"(?:proxy|local|knownhosts|permitlocal)command|\A-S")),
    "ssh-keygen": _any_begins(r"-D|-w"),
    "ssh-add": _any_begins(r"-s\Z"),
    "find": _any_begins(r"-(?:fprintf|fprint0?|fls)\Z"),
    **dict.fromkeys(names("vim vi nvim view ex"), _editor_runs),
    "emacs": _any_begins(r"--?(?:eval|execute|funcall|load)|-[fl]\Z"),
    "less": _any_begins(r"\+|--?(?:lesskey)"),
    "man": _any_begins(r"-[PH]|--(?:pager|html)"),
    **dict.fromkeys(SEDS, _sed_runs),
    "zip": _any_begins(r"-TT|--unzip-command"),
    "sort": _any_begins(r"--compress-prog"),
    **dict.fromkeys(("make", "gmake"), _make_runs),
    "dc": _any_contains(r"!"),
    "gcc": _any_begins(r"-wrapper|-fplugin|-B|-specs"),
    "go": _any_begins(r"-(?:-)?(?:exec|toolexec|vettool)"),
    "cargo": _any_contains(r"runner|rustc-wrapper|\bbuild\.rustc|linker"),
    "gdb": _any_begins(r"-ex|-x|--?(?:eval-command|command)"),
    "tcpdump": _any_begins(r"-z"),
    "rg": _any_begins(r"--(?:pre|hostname-bin)(?:=|\Z)"),
    "bat": _any_begins(r"--pager"),
    "fzf": _any_contains(r"execute|become|reload|--preview"),
    "sqlite3": _any_contains(r"\.(?:shell|system|load|import\s+[\"']?\|)|load_extension|\|"),
    "psql": _any_contains(r"\\!|\\copy.*program|\bprogram\s+'|\\o\s*\||\\g\s*\|"),
    "mysql": _any_contains(r"\\!|\bsystem\s|--pager"),
    "svn": _any_begins(r"--(?:editor|diff|diff3)-cmd|--config-option"),
    "hg": _any_begins(r"--config"),
    "apt": _any_contains(r"(?:pre|post)-invoke|dpkg::|apt::.*::"),
    "apt-get": _any_contains(r"(?:pre|post)-invoke|dpkg::.*pre|apt::.*::"),
    "rpm": _any_begins(r"--(?:eval|define|pipe)"),
    "php": _any_contains(r"auto_(?:prepend|append)_file"),
    "java": _any_begins(r"-(?:javaagent|agentpath|agentlib)|-XX:On"),
    "strace": _any_contains(r"\A[|!]"),
    "wget": _any_begins(r"--use-askpass|-e|--execute"),
    "curl": _any_begins(r"-K|--config"),
    "nmap": _any_begins(r"--(?:script|interactive)"),
    "openssl": _any_begins(r"-engine|-provider-path"),
    "enable": _any_begins(r"-f"),
    "hash": _any_begins(r"-p"),
    "bind": _any_begins(r"-x"),
    "ip": lambda args: list(args[:2]) == ["netns", "exec"],
    "npm": _any_contains(r"script-shell|node-options"),
}
"""For each program, a function that says whether its arguments make it run another program, or load code."""


_RUN_INPUT_LINES = names("ed ex vi vim dc ftp mail gdb")
"""Programs that run the rest of an input line that begins with `!`."""
SUBSCRIPT = lazy_pattern(r"\w\[[^\]]*(?:\$\(|`)")
"""A subscript that runs a command whenever the variable is evaluated."""
_EVALUATORS = DECLARES | SETTERS | {"test", "["}
"""Builtins that evaluate the name of a variable and run the commands in its subscript: `test -v 'a[$(rm x)]'`."""
PROGRAMS_WITH_TRAITS = TARS | {"unzip"} | _EVALUATORS | AWKS | _RUN_INPUT_LINES | frozenset(_RUNS_ANOTHER_PROGRAM)
"""Programs for which `program_traits` may yield something."""
INLINE_CODE = {"other": ("shell.inline-code", "shell.unread-code"), "plain": ("shell.inline-code",)}
"""Traits of code in a language other than Bash and Python. The keys are values of `Code.language`."""


def program_traits(name: str, args: Sequence[str], fed: str | None) -> Iterator[str]:
    """Yield the traits of a program with these arguments. `fed`: the text on its standard input; None without input."""
    if name in _RUNS_ANOTHER_PROGRAM and _RUNS_ANOTHER_PROGRAM[name](args):
        yield "shell.hidden-option"
    if (name in _RUN_INPUT_LINES and fed is not None and "!" in fed) or (name in AWKS and _awk_runs(args)):
        yield from INLINE_CODE["other"]
    if name in _EVALUATORS and any(map(SUBSCRIPT.search, args)):
        yield "shell.dynamic-code"
    if _unpacks_anywhere(name, args):
        yield "shell.unpacks-anywhere"


def _awk_runs(args: Sequence[str]) -> bool:
    """Return whether an awk program starts commands or writes files, or isn't known."""
    # All arguments are searched: which of them are programs depends on options that differ between awks.
    if any(map(_AWK_RUNS.search, args)):
        return True
    from_file = any(arg.startswith(("-f", "--file")) for arg in args)
    return not from_file and next(iter(operands(args, grammar_of("awk"))), "") == UNKNOWN


# Database clients

DATABASES = names("""
    psql mysql mariadb sqlite3 sqlite mongosh mongo redis-cli valkey-cli sqlcmd sqlplus clickhouse clickhouse-client
    cqlsh duckdb influx pgcli mycli usql bq
""")
"""Clients that execute statements from standard input as well as from an option."""
_STATEMENT_OPTIONS = {
    "psql": ("-c", "--command"),
    **dict.fromkeys(("mysql", "mariadb"), ("-e", "--execute")),
    **dict.fromkeys(("sqlite3", "redis-cli"), ()),
}
"""The options of a client whose values are statements."""
_OPERANDS_BEFORE_STATEMENTS = {"sqlite3": 1, "redis-cli": 0}
"""The number of a client's operands that aren't statements; for other clients, none of them is one."""
_FROM_ELSEWHERE = lazy_pattern(r"(?i)\\|\bsource\b")
"""A statement that executes a file: `\\i -`, `source /dev/stdin`."""


def takes_statements(name: str, args: Sequence[str]) -> bool:
    """Return whether a client executes statements from its input. It doesn't if they are all on its command line.

    Also True with an option that isn't listed, because what looks like a statement may be the value of that option.
    """
    if name not in DATABASES:
        return False
    if name not in _STATEMENT_OPTIONS or UNKNOWN in "".join(args):
        return True
    if args[:1] in (("--version",), ("--help",)):
        return False
    stated, others = False, 0
    for item in walk(args, grammar_of(name)):
        if item.option is None:
            others += 1
        elif not item.option.listed:
            return True
        elif item.option.name in _STATEMENT_OPTIONS[name]:
            stated = True
            if _FROM_ELSEWHERE.search(item.value or ""):
                return True
        elif (item.value or "").startswith("-"):
            return True
    return not stated and others <= _OPERANDS_BEFORE_STATEMENTS.get(name, others)


# Programs that run commands from a file of the project


class Runner(msgspec.Struct, frozen=True):
    """How a program finds the files that define what it runs ("plans")."""

    plans: tuple[str, ...] = ()
    """The files that it reads if the command line names none."""
    named_by: tuple[str, ...] = ()
    """The options that name such a file."""
    enters: tuple[str, ...] = ()
    """The options that name the directory to start in."""
    operands: bool = False
    """Whether its operands are such files."""


_MAKE = Runner(("GNUmakefile", "makefile", "Makefile"), ("-f", "--file", "--makefile"), ("-C", "--directory"))
_NODE = Runner(("package.json",), (), ("-C", "--prefix", "--cwd", "--dir"))
_GRADLE = Runner(("build.gradle", "build.gradle.kts", "settings.gradle"), ("-b", "--build-file"), ("-p",))
_COMPOSE = Runner(
    ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml"),
    ("-f", "--file"),
    ("--project-directory",),
)

RUNNERS: dict[str, Runner] = {
    **dict.fromkeys(("make", "gmake", "bmake", "remake"), _MAKE),
    **dict.fromkeys(("npm", "npx", "yarn", "pnpm", "bun", "bunx"), _NODE),
    "ninja": Runner(("build.ninja",), ("-f",), ("-C",)),
    "just": Runner(("justfile", "Justfile", ".justfile"), ("-f", "--justfile"), ("-d", "--working-directory")),
    "task": Runner(("Taskfile.yml", "Taskfile.yaml"), ("-t", "--taskfile"), ("-d", "--dir")),
    "rake": Runner(("rakefile", "Rakefile", "Rakefile.rb"), ("-f", "--rakefile"), ("-C",)),
    "invoke": Runner(("tasks.py",), (), ("-r", "--search-root")),
    "fab": Runner(("fabfile.py",), (), ("-r", "--search-root")),
    "nox": Runner(("noxfile.py",), ("-f", "--noxfile")),
    "tox": Runner(("tox.ini", "tox.toml", "pyproject.toml", "setup.cfg"), ("-c", "--conf")),
    "cargo": Runner(("Cargo.toml", "build.rs"), ("--manifest-path",), ("-C",)),
    "mvn": Runner(("pom.xml",), ("-f", "--file")),
    "gradle": _GRADLE,
    "composer": Runner(("composer.json",), (), ("-d", "--working-dir")),
    "docker-compose": _COMPOSE,
    "ansible-playbook": Runner(operands=True),
    "snakemake": Runner(("Snakefile", "workflow/Snakefile"), ("-s", "--snakefile"), ("-d", "--directory")),
    "ant": Runner(("build.xml",), ("-f", "-file", "-buildfile")),
    "cmake": Runner(("CMakeLists.txt",), ("-P",)),
    "java": Runner((), ("-jar",)),
    "bats": Runner(operands=True),
    # These run files that no argument names: hooks, tests and modules of the project.
    **dict.fromkeys(
        ("run-parts", "git", "go", "uv", "pytest", "pre-commit", "gunicorn", "uvicorn", "flask", "celery", "alembic"),
        Runner(),
    ),
}


def plans(name: str, args: Sequence[Word]) -> Iterator[tuple[Word, str]]:
    """Yield the files that define what `make`, `npm` and similar programs run, each with its directory."""
    runner = RUNNERS.get(name)
    if runner is None:
        return
    texts = [word.text for word in args]
    named = [value_of(args, each) for each in given(texts, *runner.named_by)]
    if runner.operands:
        named += [word for word in args if not word.text.startswith("-")]
    place = "/".join(values_of(texts, *runner.enters)) or "."
    for word in named or map(Word, runner.plans):
        yield word, place
