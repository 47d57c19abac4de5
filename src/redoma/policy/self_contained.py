"""Programs and Python modules that are known to run nothing but themselves, and commands that the reader reports as
facts of their own.

Anything else may run more: tests, hooks, statements, whatever its directory configures. An approval can't be bound to
that, so a request with a program or module that is missing here can't be pinned; but no change is ever hidden. For a
program that reads settings or writes files, see also `_SETTINGS` and `_WRITE_ANYTHING` in `executed`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ..lib.patterns import lazy_pattern
from .facts import UNKNOWN, names
from .levels import READ_ONLY
from .options import AWKS, SEDS, TARS, sed_scripts, values_of

SELF_CONTAINED_MODULES = names("""
    __future__ __main__ _thread abc argparse array ast asyncio atexit base64 binascii bisect builtins bz2 calendar cmath
    codecs collections colorsys concurrent configparser contextlib contextvars copy copyreg crypt csv ctypes curses
    dataclasses datetime dbm decimal difflib dis email encodings enum errno faulthandler fcntl filecmp fileinput fnmatch
    fractions ftplib functools gc getopt getpass gettext glob graphlib grp gzip hashlib heapq hmac html http imaplib
    importlib inspect io ipaddress itertools json keyword linecache locale logging lzma mailbox marshal math mimetypes
    mmap multiprocessing netrc numbers opcode operator optparse os pathlib pickle pickletools platform plistlib poplib
    posix posixpath pprint pty pwd queue quopri random re reprlib resource sched secrets select selectors shlex shutil
    signal smtplib socket socketserver sqlite3 ssl stat statistics string stringprep struct subprocess symtable sys
    sysconfig syslog tarfile telnetlib tempfile termios textwrap threading time token tokenize tomllib traceback
    tracemalloc tty types typing unicodedata urllib uuid warnings wave weakref xml xmlrpc zipfile zlib zoneinfo

    attr attrs bs4 certifi chardet charset_normalizer click cryptography dateutil httpx idna jsonschema lxml markupsafe
    matplotlib msgspec numpy openpyxl packaging pandas PIL psutil psycopg psycopg2 pymysql pytz redis requests rich
    scipy simplejson six tabulate toml tqdm typing_extensions urllib3 yaml
""")
"""Python modules that run no other files when they are imported, except through the names in `executed._LOADERS`."""
SELF_CONTAINED_TOOLS = names("json.tool base64 calendar gzip http.server platform sysconfig tarfile this uuid zipfile")
"""Python modules that run no other files when they are started with `python -m`."""

_Check = Callable[[Sequence[str]], bool]
"""Says whether a program with these arguments is self-contained."""
_PACKAGE_OR_OPTION = lazy_pattern(r"[\w.+:=~@-]+\Z")
_FIND_VALUES = names("""
    -name -iname -path -ipath -wholename -regex -iregex -lname -ilname -newer -anewer -cnewer -mtime -mmin -atime -amin
    -ctime -cmin -size -type -perm -user -group -uid -gid -links -maxdepth -mindepth -fstype -samefile -printf
""")
_SSH_SETTING = (
    r"(?i:StrictHostKeyChecking|UserKnownHostsFile|GlobalKnownHostsFile|ConnectTimeout|ConnectionAttempts|BatchMode|Port"
    r"|User|IdentityFile|IdentitiesOnly|Compression|ServerAlive\w+|LogLevel|Ciphers|MACs|KexAlgorithms|\w+Authentication"
    r"|\w+Authentications|HostKeyAlgorithms|PubkeyAccepted\w+|AddressFamily|BindAddress|HostName|HostKeyAlias)[ =]"
)
"""Settings of ssh that name neither a program nor another configuration file."""
_PLAIN_SSH = lazy_pattern(rf"ssh(?:\s+-(?:[46aCkqTxv]+|[pil]\s*[\w./~@-]+|o\s*{_SSH_SETTING}\S*))*\s*\Z")
_PLAIN_SSH_SETTING = lazy_pattern(_SSH_SETTING)


def _may_be_option(arg: str) -> bool:
    """Return whether an argument may turn out to be an option: it begins with an unknown part or with a glob, which may
    match any name."""
    return arg[:1] in (UNKNOWN, "*", "?", "[")


def _without_options(options: str) -> _Check:
    """Return a check that none of these options is given, nor may be given."""
    spellings = names(options)

    def check(args: Sequence[str]) -> bool:
        from .match import has_flag, options_end

        return not has_flag(args, spellings) and not any(map(_may_be_option, args[: options_end(args)]))

    return check


def _without(pattern: str) -> _Check:
    """Return a check that no argument contains the pattern."""
    found = lazy_pattern(pattern)
    return lambda args: not any(map(found.search, args))


def _all_known(args: Sequence[str]) -> bool:
    return UNKNOWN not in "".join(args)


def _only_package_names(args: Sequence[str]) -> bool:
    """Return whether all arguments are package names or plain options: `apt-get install ./x.deb` runs that file's
    scripts."""
    files, settings = (".deb", ".rpm", ".apk"), ("-o", "-c", "--option", "--config", "--setopt")
    return all(
        _PACKAGE_OR_OPTION.match(arg) and not arg.endswith(files) and not arg.startswith(settings) for arg in args
    )


def _no_compressor_named(args: Sequence[str]) -> bool:
    """Return whether the options that `tar` takes without a dash name no program, as they do in `tar cIf program …`."""
    return not re.match(r"[A-Za-z]*[IF][A-Za-z]*\Z", "".join(args[:1]))


def _ssh_command_is_plain(args: Sequence[str]) -> bool:
    return all(map(_PLAIN_SSH.match, values_of(args, "-e", "--rsh")))


def _ssh_settings_are_plain(args: Sequence[str]) -> bool:
    return all(map(_PLAIN_SSH_SETTING.match, values_of(args, "-o")))


def _all_tests_known(args: Sequence[str]) -> bool:
    tests = zip(("", *args), args, strict=False)
    return not any(_may_be_option(arg) for before, arg in tests if before not in _FIND_VALUES)


def _all_scripts_known(args: Sequence[str]) -> bool:
    return _all_known(sed_scripts(args))


_SELF_CONTAINED: dict[str, tuple[_Check, ...]] = {
    **dict.fromkeys(READ_ONLY, ()),
    **dict.fromkeys(
        names("""
            lsof ss netstat ifconfig ping dig nslookup host hostname dmesg xxd date zgrep zstdcat shuf iconv tree file
            getconf getent yes sync csplit envsubst mktemp logger

            mkdir rmdir touch rm unlink shred tee sponge truncate fallocate cp mv ln dd chmod chown chgrp chattr setfacl
            mkfifo mknod gzip gunzip bzip2 bunzip2 xz unxz zstd unzstd lz4 pigz unzip 7z kill killall pkill pg_dump
            pg_dumpall mongodump

            xargs gxargs time timeout gtimeout nice ionice chrt taskset nohup setsid stdbuf env sudo doas flock watch
            busybox toybox setpriv prlimit
        """),
        (),
    ),
    "command": (_all_known,),
    "cpio": (_without_options("-F --file --rsh-command"),),
    "curl": (_without_options("-K --config --engine"),),
    "gpg": (
        _all_known,
        _without_options("""
            --exec-path --photo-viewer --agent-program --dirmngr-program --keyboxd-program --options --homedir
            --keyserver
        """),
    ),
    "install": (_without_options("--strip-program"),),
    "ip": (_without(r"\A-(?:b|a)|\A(?:exec|vrf)\Z"),),
    "mysqldump": (
        _without_options("""
            --defaults-file --defaults-extra-file --defaults-group-suffix --plugin-dir --default-auth --login-path
        """),
    ),
    "openssl": (_without(r"\A-+(?:config|engine|provider|ssl_config)|\Aengine\Z"),),
    "rg": (_without_options("--pre --hostname-bin"),),
    "rsync": (_without_options("--rsync-path"), _ssh_command_is_plain),
    "scp": (_without_options("-F -D -S"), _ssh_settings_are_plain),
    "sort": (_without_options("--compress-program"),),
    "split": (_without_options("--filter"),),
    "ssh-keygen": (_without_options("-D -w"),),
    "su": (_without_options("-s --shell"),),
    "wget": (_without_options("-e --execute --config --use-askpass"),),
    "zip": (_without_options("-TT --unzip-command"),),
    **dict.fromkeys(names("apt apt-get apk dnf yum"), (_all_known, _only_package_names)),
    **dict.fromkeys(AWKS, (_all_known, _without(r"\A-[ilEDW]|\A--(?:inc|loa|exe|lib|deb)|@include|@load"))),
    **dict.fromkeys(names("fd fdfind"), (_without_options("-x -X --exec --exec-batch"),)),
    **dict.fromkeys(names("find gfind"), (_all_tests_known,)),
    **dict.fromkeys(SEDS, (_all_scripts_known,)),
    **dict.fromkeys(
        TARS,
        (
            _without_options("""
                -I -F --use-compress-program --to-command --checkpoint-action --rsh-command --info-script
                --new-volume-script --rmt-command
            """),
            _no_compressor_named,
        ),
    ),
}
"""Programs that run only themselves, or the command in their arguments, if all these checks pass. (If an option makes
one run another program, the shell reader may also report that, as "shell.hidden-option".)"""


def is_self_contained(name: str, args: Sequence[str]) -> bool:
    """Return whether the system's program of this name runs only itself and what is reported as separate facts."""
    checks = _SELF_CONTAINED.get(name)
    return checks is not None and all(check(args) for check in checks)
