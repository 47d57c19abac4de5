"""Writes runs as CSV or JSON, one by one."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from typing import Literal, TextIO

import msgspec

from ..lib.sanitise import visible
from .search import RunSummary

Format = Literal["csv", "json", "jsonl"]

# A spreadsheet takes text that begins like this for a formula. For some, a new cell begins after a line end or a
# separator (`;` where the comma is the decimal point) even inside quotes.
_FORMULA = re.compile(r"""(\A|[,;|\t\r\n])([\s"']*)(?=[=+\-@\uff1d\uff0b\uff0d\uff20])""")
_LEADING = ("\t", "\r", "\n", "'")


def write(runs: Iterable[RunSummary], file: TextIO, form: Format) -> int:
    """Write runs to a file, and return how many. `json` is one array, `jsonl` one object per line, both with texts as
    recorded. In `csv`, texts are made harmless for spreadsheets and terminals.
    """
    count = 0
    if form == "csv":
        table = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
        table.writerow(RunSummary.__struct_fields__)
        for run in runs:
            table.writerow([cell(value) for value in msgspec.structs.astuple(run)])
            count += 1
        return count
    before, between, after = ("[\n", ",\n", "\n]\n") if form == "json" else ("", "\n", "")
    file.write(before)
    for count, run in enumerate(runs, 1):
        if count > 1:
            file.write(between)
        file.write(msgspec.json.encode(run).decode())
    file.write(after if form == "json" or not count else "\n")
    return count


def cell(value: object) -> object:
    """Return a value as a CSV cell. Text is made harmless, because it may contain anything."""
    if isinstance(value, tuple):
        value = " ".join(value)
    if not isinstance(value, str):
        return "" if value is None else value
    text = visible(value)  # some spreadsheets drop invisible characters: then the cell begins with what follows them
    harmless = _FORMULA.sub(r"\1\2'", text)
    return f"'{harmless}" if text.startswith(_LEADING) else harmless
