"""Prepare Bash source for the parser: apply Bash's lexical rules where those of tree-sitter-bash differ.

A difference could hide commands. So these are replaced before the text is parsed: a backslash-newline inside a word
(`r\\⏎m`), here-documents (if the parser missed the end of one, the commands after it would count as text), `$"…"` and
`<>`. Characters that only one of the two takes for white space are reported. Positions are mapped back to the original.
"""

from __future__ import annotations

import bisect
import re

import msgspec

from ...lib.patterns import lazy_pattern
from ..facts import SURROGATE, position

MAX_SOURCE = 128 * 1024
"""Maximum number of characters of a script. Nobody would review a longer one, either."""
MAX_MARKS, MAX_PIPES = 5000, 1500
"""Maximum number of operators, brackets and keywords in a script, and of pipes among them. Recovering from errors takes
the parser quadratic time in the first number and quadratic memory in the second: 50,000 open pipes would crash the
process."""
MAX_NESTING = 500
"""Maximum number of quotes, braces and parentheses that are open at one time."""

HEREDOC_PATH = "/dev/heredoc/"
"""For the parser, a here-document is replaced by a redirection from this invented path plus the document's number."""


class Heredoc(msgspec.Struct, frozen=True):
    """A here-document."""

    body: str
    expands: bool
    """Whether `$` and backquotes in it are expanded, because its delimiter isn't quoted."""

    def as_string(self) -> str:
        """Return a script that only expands the document: a command with the body as a quoted string. Quotes in the
        body are escaped, except in substitutions."""
        out: list[str] = [': "']
        depth, tick, at = 0, False, 0
        for found in re.finditer(r"\\.|\$\(|\(|\)|`|\"", self.body, re.DOTALL):
            out.append(self.body[at : found.start()])
            at, mark = found.end(), found.group()
            if mark == "`":
                tick = not tick
            elif mark == "$(" or (mark == "(" and depth):
                depth += 1
            elif mark == ")" and depth:
                depth -= 1
            elif mark == '"' and not depth and not tick:
                mark = '\\"'
            out.append(mark)
        out += (self.body[at:], '"')
        return "".join(out)


class Source(msgspec.Struct, frozen=True):
    """Bash source, prepared for the parser."""

    text: str
    heredocs: tuple[Heredoc, ...]
    original: str
    starts: tuple[int, ...]
    """Offsets in `text` at which a part copied from the original begins."""
    origins: tuple[int, ...]
    """The offsets of these parts in the original."""
    problems: tuple[tuple[str, int], ...]
    """Names of traits that were found, each with its offset in the original."""

    def position(self, offset: int) -> tuple[int, int]:
        """Return the 1-based line and column in the original, given an offset in `text`."""
        stretch = bisect.bisect_right(self.starts, offset) - 1
        return position(self.original, self.origins[stretch] + offset - self.starts[stretch])


# Invisible characters. Some are white space for the grammar, but not for Bash, which accepts only space, tab and
# newline: after such a character, `#` begins a comment for the grammar, but continues a word for Bash.
_INVISIBLE = lazy_pattern(
    "[\x01-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00a0\u00ad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180e\u2000-\u200f"
    "\u2028-\u202f\u205f-\u206f\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]|\r(?!\n)"
)
_MARKS = lazy_pattern(r"[|(){}\[\]<>!`]|\$[\[{(]|\b(?:for|case|select|if|while|until|coproc)\b")


def prepare(original: str) -> Source:
    """Return the text to parse. Never raises: what can't be understood is listed in `problems`."""
    problems: list[tuple[str, int]] = []
    # Bash drops NUL bytes, and so do we. Offsets after one are slightly wrong.
    if "\0" in original:
        problems.append(("source.nul", original.index("\0")))
        original = original.replace("\0", "")
    if not original.isascii() and (found := SURROGATE.search(original)):
        problems.append(("source.bad-utf8", found.start()))
        original = SURROGATE.sub("\ufffd", original)
    if not _is_clean(original) and (found := _INVISIBLE.search(original)):
        problems.append(("source.invisible", found.start()))
    if len(original) > MAX_PIPES and _is_too_much(original):
        problems.append(("source.too-large", 0))
        original = ""
    if "\\\n" in original or "<<" in original or "<>" in original or '$"' in original:
        return _Scanner(original, problems).scan()
    return Source(original, (), original, (0,), (0,), tuple(problems))


def _is_clean(text: str) -> bool:
    """Return whether the text certainly has no invisible characters. The exact search takes ten times as long."""
    return text.isascii() and (text.isprintable() or text.replace("\n", "").replace("\t", "").isprintable())


def _is_too_much(text: str) -> bool:
    return len(text) > MAX_SOURCE or text.count("|") > MAX_PIPES or len(_MARKS.findall(text)) > MAX_MARKS


# Kinds of open constructs on the scanner's stack.
_CODE, _QUOTED, _BRACE, _ARITHMETIC = range(4)

_STOP = lazy_pattern(
    r"""\\ | ' | " | ` | \$\(\( | \$\( | \$\{ | \$' | \$" | \(\( | [<>]\( | <<< | <<-? | <> | [(){}\#\n]
    | \bcase\b | \besac\b""",
    re.VERBOSE,
)
_ANSI_C = lazy_pattern(r"(?:[^'\\]|\\.)*'", re.DOTALL)
_DELIMITER = lazy_pattern(r"""[ \t]*((?:\$?'[^']*'|\$?"(?:[^"\\]|\\.)*"|\\.|[^\s;&|<>()'"\\`])+)""", re.DOTALL)


class _Frame:
    __slots__ = ("cases", "closer", "depth", "kind", "quoted")

    def __init__(self, kind: int, closer: str = "", *, quoted: bool = False) -> None:
        self.kind, self.closer, self.quoted = kind, closer, quoted
        self.cases = 0  # open `case` words: their patterns end in a `)` that closes nothing
        self.depth = 2 if kind == _ARITHMETIC else 0  # open parentheses, in arithmetic


class _Scanner:
    """Goes once over the text, from one special character to the next, with a stack of open constructs."""

    def __init__(self, original: str, problems: list[tuple[str, int]]) -> None:
        self.original, self.problems = original, problems
        self.pieces: list[str] = []
        self.length = 0
        self.copied = 0  # everything before this offset of the original is done
        self.starts, self.origins = [0], [0]
        self.heredocs: list[Heredoc] = []
        self.pending: list[tuple[int, str, bool, bool]] = []
        self.frames = [_Frame(_CODE)]

    def scan(self) -> Source:
        """Return the prepared source."""
        at = 0
        while found := _STOP.search(self.original, at):
            at = self.mark(found.group(), found.start(), found.end())
            if len(self.frames) > MAX_NESTING:
                self.problems.append(("source.too-deep", found.start()))
                break
        if self.pending:
            self.problems.append(("shell.parse-error", len(self.original)))
            self.heredocs += [Heredoc("", True)] * len(self.pending)
        self.replace(len(self.original), len(self.original), "")
        return Source(
            "".join(self.pieces),
            tuple(self.heredocs),
            self.original,
            tuple(self.starts),
            tuple(self.origins),
            tuple(self.problems),
        )

    def replace(self, start: int, end: int, text: str) -> None:
        """Copy the original up to `start`, then write `text` in place of the part up to `end`."""
        kept = self.original[self.copied : start]
        self.pieces += (kept, text)
        self.length += len(kept) + len(text)
        self.copied = end
        self.starts.append(self.length)
        self.origins.append(end)

    def mark(self, mark: str, start: int, end: int) -> int:
        """Handle a special character or word; return the offset at which to continue."""
        frame = self.frames[-1]
        if mark == '$"':
            # `$"` begins a translated string. Inside quotes it is a dollar sign and the closing quote.
            if frame.kind != _QUOTED and not frame.quoted:
                self.replace(start, start + 1, "")
            mark, start = '"', start + 1
        if mark == "\\":
            if self.original.startswith("\n", end):
                self.replace(start, end + 1, "")
            return end + 1
        if mark in ("$((", "$(", "${", "`") and not (mark == "`" and frame.closer == "`"):
            inside = frame.kind == _QUOTED or (frame.kind == _BRACE and frame.quoted)
            self.frames.append(
                _Frame(_ARITHMETIC)
                if mark == "$(("
                else _Frame(_BRACE, "}", quoted=inside)
                if mark == "${"
                else _Frame(_CODE, "`" if mark == "`" else ")")
            )
            return end
        if frame.kind == _CODE:
            return self.code(frame, mark, start, end)
        if frame.kind == _ARITHMETIC:
            frame.depth += mark.count("(") - mark.count(")")
            if frame.depth <= 0:
                self.frames.pop()
            return end if mark != "'" else start + 1
        if mark == '"':
            if frame.kind == _QUOTED:
                self.frames.pop()
            else:
                self.frames.append(_Frame(_QUOTED))
        elif frame.kind == _BRACE:
            if mark == "}":
                self.frames.pop()
            elif mark == "'" and not frame.quoted:
                return self.after_quote(end)
            elif mark == "$'" and not frame.quoted:
                return self.ansi_c(end)
        return end if len(mark) == 1 else start + 1

    def code(self, frame: _Frame, mark: str, start: int, end: int) -> int:
        """Handle a special character or word outside quotes; return the offset at which to continue."""
        if mark == "'":
            return self.after_quote(end)
        if mark == "$'":
            return self.ansi_c(end)
        if mark == '"':
            self.frames.append(_Frame(_QUOTED))
        elif mark == "((":
            self.frames.append(_Frame(_ARITHMETIC))
        elif mark in ("(", "<(", ">("):
            self.frames.append(_Frame(_CODE, ")"))
        elif mark == ")":
            if frame.closer == ")" and not frame.cases:
                self.frames.pop()
        elif mark == "`":
            self.frames.pop()
        elif mark == "case":
            frame.cases += 1
        elif mark == "esac":
            frame.cases = max(0, frame.cases - 1)
        elif mark == "#":
            if start == 0 or (self.original[start - 1] in " \t\n;&|()" and not self.joined(start)):
                newline = self.original.find("\n", start)
                return len(self.original) if newline < 0 else newline
        elif mark in ("<<", "<<-"):
            return self.heredoc(mark, start, end)
        elif mark == "<>":
            self.replace(start, end, "> ")
        elif mark == "\n" and self.pending:
            return self.bodies(end)
        return end

    def joined(self, start: int) -> bool:
        """Return whether this `#` is in the middle of a word, after a backslash-newline that was removed."""
        if self.copied != start or not self.pieces:
            return False
        before = next((piece for piece in reversed(self.pieces) if piece), "\n")
        return before[-1] not in " \t\n;&|()"

    def after_quote(self, at: int) -> int:
        """Return the offset after the next single quote."""
        end = self.original.find("'", at)
        if end < 0:
            self.problems.append(("shell.parse-error", at - 1))
            return len(self.original)
        return end + 1

    def ansi_c(self, at: int) -> int:
        found = _ANSI_C.match(self.original, at)
        return found.end() if found else self.after_quote(at)

    def heredoc(self, mark: str, start: int, end: int) -> int:
        """Replace `<<DELIMITER` by a redirection from an invented path; return the offset after it."""
        found = _DELIMITER.match(self.original, end)
        if not found:
            self.problems.append(("shell.parse-error", start))
            return end
        word = found.group(1)
        plain = re.sub(r"""\$?'([^']*)'|\$?"((?:[^"\\]|\\.)*)"|\\(.)""", lambda m: m[1] or m[2] or m[3] or "", word)
        number = len(self.heredocs) + len(self.pending)
        self.pending.append((start, plain, plain == word, mark == "<<-"))
        self.replace(start, found.end(), f"<{HEREDOC_PATH}{number} ")
        return found.end()

    def bodies(self, at: int) -> int:
        """Remove the here-documents that begin after this newline from the text."""
        begin = at
        for start, delimiter, expands, tabs in self.pending:
            lines: list[str] = []
            while at < len(self.original):
                line, at = self.line(at, expands)
                line = line.lstrip("\t") if tabs else line
                if line == delimiter:
                    break
                lines.append(line + "\n")
            else:
                self.problems.append(("shell.parse-error", start))
            self.heredocs.append(Heredoc("".join(lines), expands))
        self.pending.clear()
        self.replace(begin, at, "")
        return at

    def line(self, at: int, expands: bool) -> tuple[str, int]:
        """Return one line, and the offset after it. In a document that is expanded, a backslash at the end of a line
        joins it with the next: `EO\\⏎F` is the delimiter EOF."""
        text = ""
        while True:
            newline = self.original.find("\n", at)
            stop = len(self.original) if newline < 0 else newline
            text += self.original[at:stop]
            at = min(stop + 1, len(self.original))
            backslashes = len(text) - len(text.rstrip("\\"))
            if not expands or backslashes % 2 == 0 or newline < 0:
                return text, at
            text = text[:-1]


_BEYOND = lazy_pattern(r"[\U00010000-\U0010ffff]")


def parseable(text: str) -> bytes:
    """Return the text as bytes for the parser, with the same number of characters.

    Characters beyond U+FFFF are replaced, because the scanner of tree-sitter-bash crashes on them in some places, such
    as U+10FFFD after `x{`. They have no meaning for Bash or for any rule.
    """
    return (text if text.isascii() else _BEYOND.sub("\ufffd", text)).encode("utf-8", "replace")
