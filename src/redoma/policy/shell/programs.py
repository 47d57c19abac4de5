"""What is known of particular programs: which paths they write, which options make them run something else."""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Callable, Sequence

from ..facts import UNKNOWN


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


FETCHERS = _names(
    "curl wget fetch aria2c http https httpie lynx links w3m nc ncat netcat socat telnet ftp tftp scp sftp ssh "
    "base64 base32 basenc xxd openssl gunzip zcat bunzip2 bzcat unxz xzcat unzstd zstdcat uudecode gpg hexdump od "
    "dig nslookup host GET lwp-request"
)
"""Programs that bring text from outside, or make readable text out of what a reviewer can't read."""

# Redefining one of these makes a script do other than what it says. Names that projects like to give their own
# steps (test, install, help …) are not in it: such a function is judged by its body.
KNOWN_COMMANDS = _names(
    "alias awk bash break builtin cat cd chmod chown command cp curl cut date dd declare docker echo egrep env "
    "eval exec exit export false fgrep find git grep head id kill local ln ls make mkdir mktemp mv node npm perl "
    "pip pip3 popd printf ps pushd pwd python python3 read readonly return rm rmdir sed set sh shift sleep sort "
    "source ssh su sudo tail tar tee touch tr trap true type umask uname unalias unset wget which xargs"
)

_HOOKS = re.compile(
    r"(?:LD_(?:PRELOAD|AUDIT|LIBRARY_PATH)|DYLD_\w+|BASH_ENV|BASH_CMDS|BASH_ALIASES|BASH_FUNC_.*|PROMPT_COMMAND|PS[0-4]"
    r"|SHELLOPTS|BASHOPTS|PATH|IFS|ENV|GIT_(?:SSH|SSH_COMMAND|PAGER|EDITOR|SEQUENCE_EDITOR|EXTERNAL_DIFF|ASKPASS"
    r"|PROXY_COMMAND|EXEC_PATH|TEMPLATE_DIR|CONFIG.*)|PAGER|MANPAGER|SYSTEMD_PAGER|EDITOR|VISUAL|BROWSER|LESSOPEN"
    r"|LESSCLOSE|SSH_ASKPASS|SUDO_ASKPASS|PYTHON(?:STARTUP|HOME|INSPECT|BREAKPOINT)|PERL5(?:OPT|LIB|DB)|RUBY(?:OPT|LIB)"
    r"|NODE_OPTIONS|JAVA_TOOL_OPTIONS|_JAVA_OPTIONS|MAKEFILES|MAKEFLAGS|GCONV_PATH|HOSTALIASES|RSYNC_RSH|CVS_RSH"
    r"|TAR_OPTIONS|GREP_OPTIONS|FPATH|ZDOTDIR|CDPATH|PYTHON(?:USERBASE|PLATLIBDIR|EXECUTABLE|PYCACHEPREFIX)|PERLLIB"
    r"|NODE_PATH|LUA_(?:INIT|C?PATH)\w*|R_(?:PROFILE|ENVIRON)(?:_USER)?|PHPRC|PHP_INI_SCAN_DIR|RIPGREP_CONFIG_PATH|WGETRC"
    r"|LESSKEY\w*|LESSEDIT|VIMINIT|EXINIT|PSQLRC|PSQL_(?:EDITOR|PAGER)|SVN_(?:SSH|EDITOR)|HGRCPATH|HG(?:EDITOR|MERGE)"
    r"|JDK_JAVA_OPTIONS|RUSTC(?:_WORKSPACE)?_WRAPPER|OPENSSL_(?:CONF|ENGINES|MODULES)|BASH_LOADABLES_PATH|FCEDIT"
    r"|(?:SUDO|SYSTEMD|KUBE)_EDITOR|KUBECTL_EXTERNAL_DIFF|RSYNC_CONNECT_PROG|SSH_(?:SK_HELPER|PKCS11_HELPER))\Z"
)
SEARCHES = ("PATH", "PYTHONPATH")
"""Variables that say where programs and modules are looked for."""
_TAME_PROGRAMS = frozenset(
    {"", "cat", "less", "more", "true", ":", "vi", "vim", "nvim", "nano", "emacs", "code --wait"}
)
_TAME_PATH = re.compile(
    r"(?:/(?:usr|bin|sbin|opt|snap)(?:/[\w.+-]+)*"
    r"|~/(?:\.local/bin|bin|\.cargo/bin|go/bin|\.npm-global/bin|\.pyenv/(?:bin|shims)))/?\Z"
)


def may_be_hook(name: str) -> bool:
    """Whether some value of this variable makes innocent commands run something else."""
    return _HOOKS.match(name) is not None


def is_hook(name: str, value: str, raw: str, reader: str = "") -> bool:
    """Whether setting this variable makes later, innocent commands run something else.

    `raw` is the value as written, to see that `$PATH` itself comes first; `reader` is the command it is set for.
    """
    if not may_be_hook(name):
        return False
    if name == "IFS":
        # White space only splits in fewer places than we assume, and `IFS= read` is how lines are read.
        return bool(value.strip(" \t\n")) and reader not in ("read", "mapfile", "readarray")
    if name == "PATH":
        parts = re.sub(r"\$\{?PATH\}?", "/usr", raw.strip("\"'")).split(":")
        own = raw.strip("\"'").startswith(("$PATH:", "${PATH}:"))
        return not own and not all(_TAME_PATH.match(re.sub(r"\A\$\{?HOME\}?", "~", part)) for part in parts)
    if name == "ENV":
        return "/" in value or "$(" in value or "`" in value
    if name == "NODE_OPTIONS":
        return re.search(r"-r\b|--require|--import|-loader|--inspect|--env-file|--openssl|\0", value) is not None
    if name == "MAKEFLAGS":
        return re.fullmatch(r"-j ?\S*", value) is None
    if name == "PS4" or name.startswith("PS"):
        return "$(" in value or "`" in value or UNKNOWN in value
    if name.endswith(("PAGER", "EDITOR")) or name in ("VISUAL", "BROWSER"):
        return value not in _TAME_PROGRAMS
    return name != "GREP_OPTIONS" or "-f" in value


_SYSTEM = tuple(sorted(_names("bin boot dev etc home lib lib64 opt proc root run sbin srv sys usr var")))


def spelled_out(path: str) -> list[str]:
    """The system paths that a glob may stand for: `/e?c/passwd` is /etc/passwd."""
    if not path.startswith("/"):
        return []
    head, slash, tail = path[1:].partition("/")
    if not re.search(r"[*?\[]", head):
        return []
    return [f"/{name}{slash}{tail}" for name in _SYSTEM if fnmatch.fnmatchcase(name, head)]


def is_network_path(path: str) -> bool:
    return path.startswith(("/dev/tcp/", "/dev/udp/"))


def _operands(args: Sequence[str], values: str = "") -> list[str]:
    """Arguments that are not options; `values` lists the single-letter options that take the next one."""
    out: list[str] = []
    skip = plain = False
    for arg in args:
        if skip:
            skip = False
        elif plain or not arg.startswith("-") or arg == "-":
            out.append(arg)
        elif arg == "--":
            plain = True
        elif not arg.startswith("--") and len(arg) > 1 and arg[-1] in values:
            skip = True
    return out


_BUNDLE = re.compile(r"-[A-Za-z]+\Z")


def _option(args: Sequence[str], *names: str) -> list[str]:
    """Values of an option, in the forms `-o x`, `-ox`, `--output x` and `--output=x`."""
    out: list[str] = []
    for at, arg in enumerate(args):
        if not arg.startswith("-"):
            continue
        for name in names:
            if arg == name and at + 1 < len(args):
                out.append(args[at + 1])
            elif name.startswith("--") and arg.startswith(name + "="):
                out.append(arg[len(name) + 1 :])
            elif not name.startswith("--") and arg != name and not arg.startswith("--"):
                if arg.startswith(name):
                    out.append(arg[2:])
                elif arg.endswith(name[1]) and at + 1 < len(args) and _BUNDLE.match(arg):
                    out.append(args[at + 1])
    return out


def _destination(args: Sequence[str]) -> list[str]:
    """cp, install, ln: the last operand, or the value of -t; and what is made in it if that is a directory."""
    operands, given = _operands(args, "mogSt"), _option(args, "-t", "--target-directory")
    sources, places = (operands, given) if given else (operands[:-1], operands[-1:])
    directories = [place.rstrip("/") for place in places if given or place.endswith("/")]
    return places + [f"{place}/{posixpath.basename(source)}" for place in directories for source in sources]


COPIERS = _names("cp ln install mv")


def copied(args: Sequence[str]) -> tuple[str, str] | None:
    """The source and the new path, where a copier has one of each."""
    operands = _operands(args, "mogSt")
    return (operands[0], operands[1]) if len(operands) == 2 else None


def _moved(args: Sequence[str]) -> list[str]:
    """mv: where to, and what is no longer there."""
    return list(dict.fromkeys([*_operands(args, "St"), *_destination(args)]))


def _in_place(args: Sequence[str]) -> list[str]:
    """`sed -i`: every operand, the script included when it wasn't given with -e (a script is no path, so harmless)."""
    if any(re.match(r"-[A-Za-z]*i|--in-place", arg) for arg in args):
        return _operands(args, "ef")
    return []


_TAR_LETTERS, _TAR_BUNDLE = re.compile(r"-?[A-Za-z]+\Z"), re.compile(r"[A-Za-z]*f\Z")


def _tar_targets(args: Sequence[str]) -> list[str]:
    """Extracting writes where -C says, creating writes the archive."""
    letters = "".join([arg for arg in args[:2] if _TAR_LETTERS.match(arg)])
    if "x" in letters or any(re.match(r"-[A-Za-z]*x|--(?:extract|get)\Z", arg) for arg in args):
        return _option(args, "-C", "--directory", "--one-top-level")
    bundled = args[1:2] if args and _TAR_BUNDLE.match(args[0]) else []
    return [*bundled, *_option(args, "-f", "--file")]


def _git_targets(args: Sequence[str]) -> list[str]:
    if args[:1] == ("clone",):
        return _operands(args[1:], "bocjun")[1:2]
    if args[:1] == ("init",) or args[:2] == ("worktree", "add"):
        return _operands(args[1 if args[0] == "init" else 2 :], "bB")[:1]
    short = ("-o", "--output-directory") if {"archive", "format-patch"} & set(args) else ()
    return _option(args, "--output", *short)


def _compressed(args: Sequence[str]) -> list[str]:
    """`gzip f` puts f.gz in the place of f, unless it only prints, tests or lists."""
    if any(re.match(r"-[A-Za-z0-9]*[ctl]|--(?:stdout|to-stdout|test|list)\Z", arg) for arg in args):
        return []
    return _operands(args, "So")


_TARGETS: dict[str, Callable[[Sequence[str]], list[str]]] = {
    "tee": _operands,
    "sponge": _operands,
    "cp": _destination,
    "install": _destination,
    "ln": _destination,
    "mv": _moved,
    "rsync": lambda args: _operands(args, "efBMT")[-1:],
    "scp": lambda args: _operands(args, "cFiJloPSX")[-1:],
    "dd": lambda args: [arg[3:] for arg in args if arg.startswith("of=")],
    "sed": _in_place,
    "gsed": _in_place,
    "perl": _in_place,
    "ruby": _in_place,
    "truncate": lambda args: _operands(args, "srIo"),
    "fallocate": lambda args: _operands(args, "lo"),
    "touch": lambda args: _operands(args, "drt"),
    "mkdir": lambda args: _operands(args, "m"),
    "rmdir": _operands,
    "rm": _operands,
    "unlink": _operands,
    "shred": lambda args: _operands(args, "ns"),
    "srm": _operands,
    "mkfifo": lambda args: _operands(args, "m"),
    "mknod": lambda args: _operands(args, "m")[:1],
    "chmod": lambda args: _operands(_without_mode(args))[1:] or _operands(args)[1:],
    "chown": lambda args: _operands(args)[1:],
    "chgrp": lambda args: _operands(args)[1:],
    "chattr": lambda args: _operands(args)[1:],
    "setfacl": lambda args: _operands(args, "mxMXb"),
    "patch": lambda args: _operands(args, "pidDo")[:1] + _option(args, "-o", "--output", "-d", "--directory"),
    **dict.fromkeys(("tar", "gtar", "bsdtar"), _tar_targets),
    "cpio": lambda args: _option(args, "-D", "--directory"),
    "mktemp": lambda args: _option(args, "-p", "--tmpdir"),
    "unzip": lambda args: _option(args, "-d"),
    "zip": lambda args: _operands(args, "bnPtxi")[:1],
    "7z": lambda args: _option(args, "-o"),
    "curl": lambda args: _option(args, "-o", "--output", "--output-dir", "-D", "--dump-header", "-c", "--cookie-jar"),
    "wget": lambda args: _option(args, "-O", "--output-document", "-P", "--directory-prefix", "-o", "--output-file"),
    "sort": lambda args: _option(args, "-o", "--output"),
    "gcc": lambda args: _option(args, "-o"),
    "cc": lambda args: _option(args, "-o"),
    "g++": lambda args: _option(args, "-o"),
    "clang": lambda args: _option(args, "-o"),
    "go": lambda args: _option(args, "-o"),
    "gpg": lambda args: _option(args, "-o", "--output"),
    "openssl": lambda args: _option(args, "-out"),
    "ssh-keygen": lambda args: _option(args, "-f"),
    "find": lambda args: [
        args[at + 1] for at in range(len(args) - 1) if args[at] in ("-fprint", "-fprint0", "-fprintf", "-fls")
    ],
    "ed": _operands,
    "ex": _operands,
    "xxd": lambda args: _operands(args, "lcgos")[1:2],
    "split": lambda args: _operands(args, "abClnt")[1:],
    "git": _git_targets,
    "shuf": lambda args: _option(args, "-o", "--output"),
    "iconv": lambda args: _option(args, "-o", "--output"),
    "strace": lambda args: _option(args, "-o", "--output"),
    "time": lambda args: _option(args, "-o", "--output"),
    "uniq": lambda args: _operands(args, "fsw")[1:2],
    **dict.fromkeys(("gzip", "gunzip", "bzip2", "bunzip2", "xz", "unxz", "zstd", "unzstd", "lzma"), _compressed),
}


def _without_mode(args: Sequence[str]) -> list[str]:
    """`chmod -x file`: the mode looks like an option, so there seems to be one operand less."""
    mode = next((at for at, arg in enumerate(args) if re.match(r"-[rwxXst]+\Z", arg)), None)
    return ["0" if at == mode else arg for at, arg in enumerate(args)]


WRITERS = frozenset(_TARGETS)


def targets(name: str, args: Sequence[str]) -> list[str]:
    """Paths that this program writes, creates, changes or removes."""
    return _TARGETS[name](args) if name in _TARGETS else []


_GIT_KEYS = re.compile(
    r"(?i)(?:core\.(?:pager|editor|sshcommand|fsmonitor|hookspath|gitproxy|askpass|alternaterefscommand|worktree)|alias\..*"
    r"|pager\..*|diff\.(?:external|.*\.(?:command|textconv))|difftool\..*|mergetool\..*|merge\..*\.driver|filter\..*"
    r"|credential.*\.helper|gpg\..*program|gpg\.program|sequence\.editor|protocol\..*\.allow|uploadpack\.packobjectshook"
    r"|init\.templatedir|include.*\.path|remote\..*\.(?:uploadpack|receivepack|vcs|proxy)|submodule\..*\.update|web\.browser"
    r"|browser\..*|man\..*|interactive\.difffilter|trailer\..*|sendemail\..*|url\..*)\Z"
)


def _git_hides(args: Sequence[str]) -> bool:
    for at, arg in enumerate(args):
        after = args[at + 1] if at + 1 < len(args) else ""
        if arg in ("-c", "--config", "--config-env") or arg.startswith("--config="):
            key, _, value = (arg.partition("=")[2] if "=" in arg else after).partition("=")
            if (_GIT_KEYS.match(key) and value not in _TAME_PROGRAMS) or UNKNOWN in key:
                return True
        if arg == "config" and not {"--get", "--get-all", "--list", "-l", "--unset", "get", "list"} & set(args):
            keys = [each for each in args[at + 1 :] if not each.startswith("-") and each != "set"]
            if len(keys) > 1 and _GIT_KEYS.match(keys[0]) and keys[1] not in _TAME_PROGRAMS and not _is_store(keys):
                return True
        # Git takes any prefix of a long option that is unique.
        if re.match(r"--upl|--rece|--exec-p|--exec=|--open-f|--ext-d", arg) and "rebase" not in args:
            return True
        if arg.startswith("--template=") or "ext::" in arg or (arg.startswith("-O") and "grep" in args):
            return True
        if arg == "-u" and {"clone", "fetch", "ls-remote"} & set(args):
            return True
    return False


def _is_store(keys: Sequence[str]) -> bool:
    """`git config credential.helper store` names a helper that comes with Git."""
    return keys[0].startswith("credential") and keys[1] in ("cache", "store", "osxkeychain", "manager")


_SED_RUNS = re.compile(
    r"(?:\A|[;{}\n])\s*(?:\d+|\$|/(?:[^/\\]|\\.)*/)?(?:,(?:\d+|\$|/(?:[^/\\]|\\.)*/))?\s*!?\s*(?:e(?:\s|\Z|;)|[wW]\s*(?:/|\.\./))"
    r"|(?:\A|[;{}\n/\d$,!\s])s([^\w\s\\])(?:(?!\1)[^\\]|\\.)*\1(?:(?!\1)[^\\]|\\.)*\1[gIiMmp\d]*e"
    r"|(?:\A|[;{}\n/\d$,!\s])s([^\w\s\\])(?:(?!\2)[^\\]|\\.)*\2(?:(?!\2)[^\\]|\\.)*\2[gIiMmp\d]*w\s*(?:/|\.\./)",
    re.DOTALL,
)
_AWK_RUNS = re.compile(
    r"\bsystem\s*\(|\|&?\s*getline|\|&?\s*\"|\"\s*\|&?|>>?\s*\"?(?:/|\.\./)|@load|\binet\b|close\s*\("
)
_SHELL_OUT = re.compile(r"!|\bsystem\b|\bshell\b|\bpython\b|\bpy3?\b|\blua\b|\bperl\b|\bcall\b|\bsource\b|\bterm")


def _any(pattern: str) -> Callable[[Sequence[str]], bool]:
    compiled = re.compile(pattern)
    return lambda args: any(map(compiled.match, args))


def _editor(args: Sequence[str]) -> bool:
    given = [*_option(args, "-c", "--cmd", "-s", "-S"), *(arg for arg in args if arg.startswith("+"))]
    return any(_SHELL_OUT.search(each) or UNKNOWN in each for each in given)


def _sed(args: Sequence[str]) -> bool:
    scripts = _option(args, "-e", "--expression") or _operands(args, "f")[:1]
    return "--sandbox" not in args and any(_SED_RUNS.search(script) for script in scripts)


def _statements(pattern: str) -> Callable[[Sequence[str]], bool]:
    compiled = re.compile(pattern, re.IGNORECASE)
    return lambda args: any(map(compiled.search, args))


_tar_runs = _any(r"--(?:checkpoint-action|to-command|rsh-command|info-script|new-volume-script|rmt-command)|-F")
_TAME_COMPRESSORS = r"(?:gzip|pigz|bzip2|pbzip2|xz|pixz|zstd|zstdmt|lz4|lzma|lzip|brotli)\b[\s\d-]*T?\d*\Z"


def _tar(args: Sequence[str]) -> bool:
    programs = _option(args, "--use-compress-program", "--use-compress-prog", "-I")
    return _tar_runs(args) or any(not re.match(_TAME_COMPRESSORS, program) for program in programs)


def _rsync(args: Sequence[str]) -> bool:
    shells = _option(args, "-e", "--rsh")
    return _any(r"--rsync-path")(args) or any(not re.match(r"ssh\b", s) or "ProxyCommand" in s for s in shells)


def _make(args: Sequence[str]) -> bool:
    given = _option(args, "-f", "--file", "--makefile")
    return _any(r"SHELL=|\.SHELLFLAGS=|--eval")(args) or any(path == "-" or path.startswith("/dev/") for path in given)


_HIDING: dict[str, Callable[[Sequence[str]], bool]] = {
    "git": _git_hides,
    "tar": _tar,
    "bsdtar": _tar,
    "gtar": _tar,
    "rsync": _rsync,
    "ssh": _statements(r"(?:proxy|local|knownhosts|permitlocal)command|proxyusefdpass|\Aext::|pkcs11provider"),
    "scp": _statements(r"(?:proxy|local|knownhosts|permitlocal)command|\A-S"),
    "sftp": _statements(r"(?:proxy|local|knownhosts|permitlocal)command|\A-S"),
    "ssh-keygen": _any(r"-D|-w"),
    "ssh-add": _any(r"-s\Z"),
    "find": _any(r"-(?:fprintf|fprint0?|fls)\Z"),
    "vim": _editor,
    "vi": _editor,
    "nvim": _editor,
    "view": _editor,
    "ex": _editor,
    "emacs": _any(r"--?(?:eval|execute|funcall|load)|-[fl]\Z"),
    "less": _any(r"\+|--?(?:lesskey)"),
    "man": _any(r"-[PH]|--(?:pager|html)"),
    "sed": _sed,
    "gsed": _sed,
    "zip": _any(r"-TT|--unzip-command"),
    "sort": _any(r"--compress-prog"),
    "make": _make,
    "gmake": _make,
    "dc": _statements(r"!"),
    "gcc": _any(r"-wrapper|-fplugin|-B|-specs"),
    "go": _any(r"-(?:-)?(?:exec|toolexec|vettool)"),
    "cargo": _statements(r"runner|rustc-wrapper|\bbuild\.rustc|linker"),
    "gdb": _any(r"-ex|-x|--?(?:eval-command|command)"),
    "tcpdump": _any(r"-z"),
    "rg": _any(r"--(?:pre|hostname-bin)(?:=|\Z)"),
    "bat": _any(r"--pager"),
    "fzf": _statements(r"execute|become|reload|--preview"),
    "sqlite3": _statements(r"\.(?:shell|system|load|import\s+[\"']?\|)|load_extension|\|"),
    "psql": _statements(r"\\!|\\copy.*program|\bprogram\s+'|\\o\s*\||\\g\s*\|"),
    "mysql": _statements(r"\\!|\bsystem\s|--pager"),
    "svn": _any(r"--(?:editor|diff|diff3)-cmd|--config-option"),
    "hg": _any(r"--config"),
    "apt": _statements(r"(?:pre|post)-invoke|dpkg::|apt::.*::"),
    "apt-get": _statements(r"(?:pre|post)-invoke|dpkg::.*pre|apt::.*::"),
    "rpm": _any(r"--(?:eval|define|pipe)"),
    "php": _statements(r"auto_(?:prepend|append)_file"),
    "java": _any(r"-(?:javaagent|agentpath|agentlib)|-XX:On"),
    "strace": _statements(r"\A[|!]"),
    "wget": _any(r"--use-askpass|-e|--execute"),
    "curl": _any(r"-K|--config"),
    "nmap": _any(r"--(?:script|interactive)"),
    "openssl": _any(r"-engine|-provider-path"),
    "enable": _any(r"-f"),
    "hash": _any(r"-p"),
    "bind": _any(r"-x"),
    "ip": lambda args: list(args[:2]) == ["netns", "exec"],
    "npm": _statements(r"script-shell|node-options"),
}


def hides_a_command(name: str, args: Sequence[str]) -> bool:
    """Whether an option makes this program run another one."""
    return name in _HIDING and _HIDING[name](args)


_ESCAPING = _names("ed ex vi vim dc ftp mail gdb")
_AWKS = _names("awk gawk mawk nawk")


def takes_escapes(name: str) -> bool:
    """Programs that run the rest of an input line that begins with `!`."""
    return name in _ESCAPING


def runs_from_awk(name: str, args: Sequence[str]) -> bool:
    """Whether an awk program starts commands or writes files, or is not known at all."""
    if name not in _AWKS:
        return False
    # Every argument is looked at: which of them are programs depends on options that differ from one awk to another.
    if any(map(_AWK_RUNS.search, args)):
        return True
    from_file = any(arg.startswith(("-f", "--file")) for arg in args)
    return not from_file and next(iter(_operands(args, "Fvi")), "") == UNKNOWN


SUBSCRIPT = re.compile(r"\w\[[^\]]*(?:\$\(|`)")
"""A subscript that runs something, wherever the name it belongs to is evaluated."""
_EVALUATORS = _names("test [ let declare typeset local export readonly read printf unset mapfile readarray wait")


def evaluates_subscript(name: str, args: Sequence[str]) -> bool:
    """`test -v 'a[$(rm x)]'`: builtins that take a variable's name run what is in its subscript."""
    return name in _EVALUATORS and any(SUBSCRIPT.search(arg) for arg in args)


PARTICULAR = _EVALUATORS | _AWKS | _ESCAPING | frozenset(_HIDING)
"""Every name that one of the questions above may answer yes for."""
