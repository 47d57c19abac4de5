"""Database clients: what they take for statements, their input among it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ..facts import UNKNOWN

_NAMES = (
    "psql mysql mariadb sqlite3 sqlite mongosh mongo redis-cli valkey-cli sqlcmd sqlplus clickhouse clickhouse-client "
    "cqlsh duckdb influx pgcli mycli usql bq"
)
DATABASES = frozenset(_NAMES.split())
"""Clients that take statements on standard input as well as in an option."""


class _Options(NamedTuple):
    """The usual options of a client: enough to know where its statements are."""

    statements: str = ""
    """Those whose value is one."""
    values: str = ""
    """Those that take some other value."""
    flags: str = ""
    """Those without a value; single letters may stand together."""
    operands: int | None = None
    """How many operands come before those that are statements; None where none is."""


_MYSQL = _Options(
    "-e --execute",
    "-h -P -u -D -S --host --port --user --database --socket",
    "N B s t v E --batch --silent --table --skip-column-names",
)
_KNOWN = {
    "psql": _Options(
        "-c --command",
        "-h -p -U -d --host --port --username --dbname",
        "A t q X x w 1 --no-align --tuples-only --quiet --no-psqlrc --expanded --no-password --csv",
    ),
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
    "sqlite3": _Options(
        flags="-header -noheader -csv -json -line -list -column -box -table -markdown -batch -bail -readonly",
        operands=1,
    ),
    "redis-cli": _Options(values="-h -p -n", flags="--raw --no-raw", operands=0),
}
_FROM_ELSEWHERE = re.compile(r"(?i)\\|\bsource\b")
"""A statement that reads others: `\\i -`, `source /dev/stdin`."""


def takes_statements(name: str, args: Sequence[str]) -> bool:
    """Whether a client obeys its input: not where everything it is to do stands on its command line.

    An option that isn't known here may take the next word, whatever that looks like, so then nothing is sure.
    """
    if name not in DATABASES:
        return False
    if name not in _KNOWN or UNKNOWN in "".join(args):
        return True
    if args[:1] in (("--version",), ("--help",)):
        return False
    known = _KNOWN[name]
    statements, values, flags = known.statements.split(), known.values.split(), known.flags.split()
    given, operands, at = False, 0, 0
    while at < len(args):
        arg, at = args[at], at + 1
        option, equals, value = arg.partition("=")
        if re.match(r"-\w\w+\Z", arg) and set(arg[1:-1]) <= set(flags):
            option = f"-{arg[-1]}"  # `-Atc 'select 1'`
        if not arg.startswith("-"):
            operands += 1
        elif option in statements or option in values:
            if not equals:
                value, at = args[at] if at < len(args) else "", at + 1
            given |= option in statements
            if (_FROM_ELSEWHERE.search(value) is not None) if option in statements else value.startswith("-"):
                return True
        elif option not in flags and option[1:] not in flags:
            return True
    return not given and (known.operands is None or operands <= known.operands)
