"""Programs that run nothing but themselves, or the command that stands after them.

Whatever else a program may run (tests, hooks, statements, what its directory configures), an approval can't be bound to
it. So this lists what is known to run nothing, and what is not here is not: a longer list permits more pins, a shorter
one never fewer alarms. Options that make one of these run something are traits of the reader's ("shell.hidden-option").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ..facts import UNKNOWN, names

_PLAIN = names("""
    ls dir vdir cat tac head tail wc nl cut tr rev fold fmt paste join comm cmp diff stat du df pwd echo printf true
    false test [ : whoami id groups logname users who w uptime uname arch nproc free ps pgrep pidof lscpu lsblk lsmod
    lsof ss netstat ip ifconfig ping dig nslookup host hostname dmesg basename dirname realpath readlink seq expr factor
    md5sum sha1sum sha224sum sha256sum sha384sum sha512sum b2sum cksum sum od xxd hexdump strings column expand unexpand
    pr which whereis printenv locale tty cal date grep egrep fgrep zgrep rg zcat bzcat xzcat zstdcat jq base64 base32
    uniq sort shuf sleep numfmt tsort iconv tree file getconf getent yes sync csplit split envsubst mktemp logger

    mkdir rmdir touch rm unlink shred tee sponge truncate fallocate cp mv ln install dd chmod chown chgrp chattr setfacl
    mkfifo mknod gzip gunzip bzip2 bunzip2 xz unxz zstd unzstd lz4 pigz zip unzip tar gtar bsdtar cpio 7z kill killall
    pkill curl wget rsync scp openssl ssh-keygen pg_dump pg_dumpall mysqldump mongodump

    sed gsed find gfind fd fdfind xargs gxargs
    time timeout gtimeout nice ionice chrt taskset nohup setsid stdbuf env sudo doas su flock watch busybox toybox
    setpriv prlimit
""")
_SUBSCRIBED = re.compile(r"[\w.+:=~@-]+\Z")  # a package of an index, or an option: neither a path nor a file


def _installs_by_name(args: Sequence[str]) -> bool:
    """`apt-get install ./x.deb` runs what that file holds."""
    files, settings = (".deb", ".rpm", ".apk"), ("-o", "-c", "--option", "--config", "--setopt")
    return all(_SUBSCRIBED.match(arg) and not arg.endswith(files) and not arg.startswith(settings) for arg in args)


def _without(pattern: str) -> Callable[[Sequence[str]], bool]:
    found = re.compile(pattern)
    return lambda args: not any(map(found.search, args))


_PLAIN_WITH: dict[str, Callable[[Sequence[str]], bool]] = {
    **dict.fromkeys(names("apt apt-get apk dnf yum"), _installs_by_name),
    **dict.fromkeys(names("awk gawk mawk nawk"), _without(r"\A-[ilED]|\A--(?:inc|loa|exe|lib|deb)|@include|@load")),
    "gpg": _without(r"--(?:exec-path|photo-viewer|agent-program|dirmngr-program|options|homedir|keyserver)"),
    "command": lambda args: True,
}

PLAIN_MODULES = names("json.tool base64 calendar gzip http.server platform sysconfig tarfile this uuid zipfile")
"""Of the modules that `python -m` runs."""


def is_plain(name: str, args: Sequence[str]) -> bool:
    """Whether this program, found where the system's programs are, runs nothing that isn't reported beside it."""
    return name in _PLAIN or (name in _PLAIN_WITH and UNKNOWN not in "".join(args) and _PLAIN_WITH[name](args))
