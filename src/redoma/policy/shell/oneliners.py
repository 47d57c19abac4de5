"""Recognise short programs in other languages, given on a command line, that certainly only compute, read and print.

Nothing is parsed. Text known to only read or print (`harmless`) is removed. If nothing remains that could write, run or
connect (`unsafe`), the program is harmless. A word counts wherever it occurs, even in a string: at worst a person is
asked without need.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from ...lib.patterns import lazy_pattern
from ..facts import UNKNOWN

_RUN_NAME = lazy_pattern(r"\A\s*[|<>+*?]|[|*?]\s*\Z")
"""File names that make Perl run a command or write a file instead of reading, and globs that may match such a name."""


class _Language(msgspec.Struct, frozen=True):
    code: re.Pattern[str]
    """The options that are followed by code."""
    options: re.Pattern[str]
    """Other options that are allowed; those not listed may load more code."""
    harmless: re.Pattern[str]
    unsafe: re.Pattern[str]
    names_run: bool = False
    """Whether a file name that matches `_RUN_NAME` does more than name a file to read."""


def _words(text: str, *more: str) -> re.Pattern[str]:
    """Return a pattern for any of the words in the text, or any of the expressions in `more`."""
    return lazy_pattern("|".join([rf"\b(?:{'|'.join(text.split())})\b", *more]))


_NODE_READS = r"(?:readFileSync|readdirSync|existsSync|statSync)"
_NODE_FS = r"""require\(\s*['"](?:node:)?fs['"]\s*\)"""

_PERL = _Language(
    lazy_pattern(r"-[0-7lanpwW]*[eE]"),
    lazy_pattern(
        r"-[0-7lanpiwW]+(?:\.\w+)?|-F.+|-C\w*"
        r"|-M(?:strict|warnings|utf8|feature|List::Util|Scalar::Util|Data::Dumper|JSON::PP|MIME::Base64)(?:=[\w,]+)?"
    ),
    lazy_pattern(r"\bdo\s*\{"),
    _words(
        """system exec qx readpipe fork open sysopen dbmopen unlink rename rmdir mkdir link symlink chmod chown chroot
        utime truncate kill eval evalbytes do require use no tie socket socketpair connect bind listen accept send pipe
        syscall ioctl fcntl dump umask setpgrp setpriority shmget shmwrite msgsnd semop ARGV CORE INC SIG""",
        # Other ways to reach a function: references by name, the symbol table, `s///ee`, `s xaxbxee`.
        r"`|->|::|(?<!&)&(?!&)|\$\^|\$\$[\w{]|\$\{\W|@\s*[{$]|(?:\A|[=;,({|!~?:])\s*\*\s*[\w{$]|\bsort\s*\$",
        r"[^\w\s$@%][msixpodualngcr]*e[msixpodualngcr]*e|\bs\s+\w",
    ),
    names_run=True,
)
_NODE = _Language(
    lazy_pattern(r"-e|-p|-pe|--eval|--print"),
    lazy_pattern(r"--no-warnings"),
    lazy_pattern(
        rf"\{{\s*{_NODE_READS}(?:\s*,\s*{_NODE_READS})*\s*\}}\s*=\s*{_NODE_FS}"
        rf"|\bfs\s*=\s*{_NODE_FS}|(?:\bfs|{_NODE_FS})\.{_NODE_READS}"
        r"""|\brequire\(\s*['"](?:\./[\w./-]+\.json|(?:node:)?(?:path|util|url|os|assert|querystring))['"]\s*\)"""
        r"|\bprocess\.(?:argv|versions?|platform|arch|cwd\(\)|env\.\w+|stdout\.write|stdin|exit)\b"
    ),
    _words(
        """require import process module fs global globalThis this self eval Function constructor prototype __proto__
        fetch WebSocket EventSource Worker Reflect Proxy call apply bind with arguments""",
        # A member whose name is computed or contains an escape could be any member.
        r"getOwnProperty|defineProperty|PrototypeOf|\._|\\[ux]|\]\s*:",
        r"[\w$)\]}\"'`]\s*\[(?!\s*(?:\d+|\"[^\"\\]*\"|'[^'\\]*')\s*\])",
    ),
)
_RUBY = _Language(
    lazy_pattern(r"-[nplaw]*e"),
    lazy_pattern(r"-[nplaw]+|-F.+|-r(?:json|set|date|time|csv|pp|digest|bigdecimal)"),
    lazy_pattern(
        r"\bFile\.(?:read|readlines|foreach|exist\?|basename|dirname|extname|join|size|file\?|directory\?)(?=\W)"
        r"|\bDir(?:\.glob|\.children|\.exist\?|\[)"
    ),
    _words(
        r"""system exec spawn fork open popen popen3 File FileUtils Dir IO Kernel Process Pathname Net Socket TCPSocket
        URI OpenURI Open3 PTY send public_send __send__ eval instance_eval class_eval module_eval instance_exec binding
        TOPLEVEL_BINDING RubyVM Gem ARGF reopen create_additions const_get require require_relative load autoload
        syscall trap at_exit to_proc Object ObjectSpace Marshal YAML write unlink delete rename""",
        r"`|%x|method|\$-|[\"']\s*\|",
    ),
)
_PHP_CALLS = """echo print printf sprintf print_r var_dump json_encode json_decode phpversion strlen date time implode
    explode count array_keys array_values array_sum str_repeat strtoupper strtolower trim round max min range sort if
    for foreach while isset empty array in_array substr str_replace number_format strtotime md5 sha1 base64_encode
    ini_get php_uname sys_get_temp_dir extension_loaded"""
_PHP = _Language(
    lazy_pattern(r"-r"),
    lazy_pattern(r"-n"),
    lazy_pattern(rf"\b(?:{'|'.join(_PHP_CALLS.split())})\s*(?=\()"),
    _words("include include_once require require_once new eval use", r"`|->|::|[\w\]})'\"$]\s*\(|\$\$|\$\{"),
)
_LUA = _Language(
    lazy_pattern(r"-e"),
    lazy_pattern(r"-W"),
    lazy_pattern(r"\bio\.(?:write|read|lines)\b|\bos\.(?:date|time|clock|getenv)\b"),
    _words(
        "io os load loadstring loadfile dofile require package debug _G _ENV getfenv setfenv string.dump", r"\\[xu\d]"
    ),
)

_LANGUAGES = {
    "perl": _PERL,
    **dict.fromkeys(("node", "nodejs"), _NODE),
    "ruby": _RUBY,
    "php": _PHP,
    **dict.fromkeys(("lua", "luajit"), _LUA),
}


def only_prints(name: str, args: Sequence[str]) -> bool:
    """Return whether the programs on the command line of `name` only compute, read files and print.

    `perl -i` also writes its operands: those are reported as targets of the command.
    """
    language = _LANGUAGES.get(name)
    if language is None or UNKNOWN in "".join(args):
        return False
    texts: list[str] = []
    at = 0
    while at < len(args) and len(args[at]) > 1 and args[at][0] == "-" and args[at] != "--":
        if language.code.fullmatch(args[at]):
            at += 1
            texts += args[at : at + 1]
            if args[at : at + 1] == [] or args[at].startswith("-"):
                return False
        elif language.options.fullmatch(args[at]) is None:
            return False
        elif args[at].startswith("-F"):
            texts.append(args[at])  # a pattern, which may contain code
        at += 1
    if language.names_run and any(_RUN_NAME.search(operand) for operand in args[at:]):
        return False
    return bool(texts) and not any(language.unsafe.search(language.harmless.sub(";", text)) for text in texts)
