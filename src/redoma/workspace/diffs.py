"""Unified diffs of what hostile code wrote: bounded in time and in size for any input.

`difflib` alone is quadratic, or worse on repeated lines. So lines that occur exactly once on both sides are matched
first, in linear time; `difflib` only compares the gaps between them, while they are small.
"""

from __future__ import annotations

import bisect
import difflib
from collections import Counter
from collections.abc import Sequence

MAX_BYTES = 256 * 1024
"""Maximum number of bytes of one side. Larger contents are not shown line by line."""
MAX_LINES = 5000
MAX_TOTAL_BYTES = 8 * 1024 * 1024
"""Maximum number of bytes of both sides of all diffs of one effect."""
_MAX_GAP = 40_000  # lines of one side times lines of the other
_MAX_GAPS = 400_000  # the same, for all gaps of one diff together

_NO_NEWLINE = "\\ No newline at end of file\n"


def text_of(data: bytes) -> str | None:
    """Return the content as text; None if it is not UTF-8 or contains NUL."""
    try:
        return None if b"\0" in data else data.decode()
    except UnicodeDecodeError:
        return None


def shown(path: str) -> str:
    """Return a path for printing: like git, quoted and escaped if it has unprintable characters."""
    if path.isprintable() and '"' not in path and "\\" not in path:
        return path
    escaped = []
    for character in path:
        if character in '"\\':
            escaped.append(f"\\{character}")
        elif character.isprintable():
            escaped.append(character)
        else:
            escaped += [f"\\{byte:03o}" for byte in character.encode("utf-8", "surrogateescape")]
    return f'"{"".join(escaped)}"'


def diff_of(path: str, before: str | None, after: str | None) -> str:
    """Return a unified diff between two texts; None stands for a missing file. Empty if they are the same."""
    if (before or "") == (after or ""):
        return ""
    old, new = _lines(before or ""), _lines(after or "")
    if max(len(old), len(new)) > MAX_LINES:
        return too_long(path, f"{max(len(old), len(new))} lines", is_new=before is None, is_gone=after is None)
    out = [_head(path, is_new=before is None, is_gone=after is None)]
    for group in _Matched(old, new).get_grouped_opcodes(3):
        (_, a, _, b, _), (_, _, a_end, _, b_end) = group[0], group[-1]
        out.append(f"@@ -{_range(a, a_end)} +{_range(b, b_end)} @@\n")
        for tag, i, i_end, j, j_end in group:
            if tag == "equal":
                out += [_line(" ", line) for line in old[i:i_end]]
                continue
            out += [_line("-", line) for line in old[i:i_end]]
            out += [_line("+", line) for line in new[j:j_end]]
    return "".join(out)


def too_long(path: str, size: str, *, is_new: bool, is_gone: bool) -> str:
    """Return what is shown in place of a diff that would be too long."""
    return _head(path, is_new=is_new, is_gone=is_gone) + f"\\ Too long to show: {size}\n"


def _head(path: str, *, is_new: bool, is_gone: bool) -> str:
    old = "/dev/null" if is_new else shown(f"a/{path}")
    new = "/dev/null" if is_gone else shown(f"b/{path}")
    return f"--- {old}\n+++ {new}\n"


def _lines(text: str) -> list[str]:
    """Split into lines at newlines only: `splitlines` also splits at characters that other programs don't."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _line(mark: str, line: str) -> str:
    return mark + line if line.endswith("\n") else f"{mark}{line}\n{_NO_NEWLINE}"


def _range(start: int, end: int) -> str:
    length = end - start
    first = start + 1 if length else start  # an empty range is named by the line before it
    return f"{first}" if length == 1 else f"{first},{length}"


class _Matched(difflib.SequenceMatcher[str]):
    """`difflib`'s matcher with another algorithm for finding matches."""

    def __init__(self, old: Sequence[str], new: Sequence[str]) -> None:
        super().__init__(None, (), ())
        self.a, self.b = old, new
        self._room = _MAX_GAPS

    def get_matching_blocks(self) -> list[difflib.Match]:
        blocks: list[tuple[int, int, int]] = []
        a = b = 0
        for i, j in [*_anchors(self.a, self.b), (len(self.a), len(self.b))]:
            blocks += self._gap(a, i, b, j)
            if i < len(self.a):
                blocks.append((i, j, 1))
            a, b = i + 1, j + 1
        joined: list[tuple[int, int, int]] = []
        for i, j, length in blocks:
            if joined and (joined[-1][0] + joined[-1][2], joined[-1][1] + joined[-1][2]) == (i, j):
                joined[-1] = (*joined[-1][:2], joined[-1][2] + length)
            else:
                joined.append((i, j, length))
        return [difflib.Match(*block) for block in [*joined, (len(self.a), len(self.b), 0)]]

    def _gap(self, a: int, a_end: int, b: int, b_end: int) -> list[tuple[int, int, int]]:
        """Match the lines between two anchors. Compare both ends first: that is cheap, and usually enough."""
        head = 0
        while a + head < a_end and b + head < b_end and self.a[a + head] == self.b[b + head]:
            head += 1
        tail = 0
        while (
            a + head < a_end - tail and b + head < b_end - tail and self.a[a_end - tail - 1] == self.b[b_end - tail - 1]
        ):
            tail += 1
        blocks = [(a, b, head)] if head else []
        size = (a_end - a - head - tail) * (b_end - b - head - tail)
        if 0 < size <= min(_MAX_GAP, self._room):
            self._room -= size
            old, new = self.a[a + head : a_end - tail], self.b[b + head : b_end - tail]
            inside = difflib.SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
            blocks += [(a + head + i, b + head + j, length) for i, j, length in inside if length]
        return blocks + ([(a_end - tail, b_end - tail, tail)] if tail else [])


def _anchors(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]]:
    """Return pairs of lines that occur exactly once on both sides: the longest sequence in the same order on both."""
    olds, news = Counter(old), Counter(new)
    places = {line: j for j, line in enumerate(new) if news[line] == 1 and olds[line] == 1}
    pairs = [(i, places[line]) for i, line in enumerate(old) if line in places]
    ends: list[int] = []  # for the best sequence of each length: where it ends in `new` ...
    last: list[int] = []  # ... and with which pair
    before = [-1] * len(pairs)
    for number, (_, j) in enumerate(pairs):
        length = bisect.bisect_left(ends, j)
        before[number] = last[length - 1] if length else -1
        ends[length : length + 1], last[length : length + 1] = [j], [number]
    run = []
    number = last[-1] if last else -1
    while number >= 0:
        run.append(pairs[number])
        number = before[number]
    return run[::-1]
