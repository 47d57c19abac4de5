"""Expand the words of Bash and remove their quotes, as far as the result can be known before running.

Variables are replaced by their known values, substitutions such as `$(echo rm)` by their known output, and braces are
expanded. Any other expansion becomes UNKNOWN. `$HOME` and `~` both read as "~".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from math import prod
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from ...lib.patterns import lazy_pattern
from ..facts import UNKNOWN, names
from ..options import Given

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_COMBINATIONS = 64
"""Maximum number of combinations of values that are tried for one command."""
MAX_VALUE = 4096
"""Maximum length of a value in characters; longer ones count as unknown."""
MAX_ALTERNATIVES = 8
"""Maximum number of values remembered of one variable; with more, it counts as unknown."""
MAX_NAMED = 16 * 1024
"""Maximum number of characters that are searched for the names of the programs that produced a text."""
MAX_FIELDS = 256
"""Maximum number of words that one word may expand to."""
MAX_TEMPLATE = 4096
"""Maximum length of a word whose braces are expanded, in characters."""
MAX_EXPANSION_DEPTH = 8
"""Maximum nesting of expansions that are computed. Deeper ones are unknown, but the commands in them are still read."""


FETCHERS = names("""
    curl wget fetch aria2c http https httpie lynx links w3m nc ncat netcat socat telnet ftp tftp scp sftp ssh base64
    base32 basenc xxd openssl gunzip zcat bunzip2 bzcat unxz xzcat unzstd zstdcat uudecode gpg hexdump od dig nslookup
    host GET lwp-request
""")
"""Programs that fetch text from outside, or decode text that a reviewer can't read."""


class Word(msgspec.Struct, frozen=True, gc=False):
    """A word of a command after expansion, and what is known about where its text comes from."""

    text: str
    glob: bool = False
    """Whether it contains an unquoted `*`, `?` or `[`."""
    built: bool = False
    """Whether its letters were hidden, by escapes, braces, quotes in the middle or a substitution that only echoes."""
    loose: bool = False
    """Whether it contains an unquoted unknown part, which may expand to several words or none."""
    makers: frozenset[str] = frozenset()
    """Names of the commands whose output it contains."""
    content: str | None = None
    """For `<(echo …)`: the text to be read from it, if known."""
    found: bool = False
    """Whether it stands for the results of a search or for lines read in a loop, and so for any number of files."""
    argument: str = ""
    """Which argument of the script or the enclosing function it contains: its number, "@" for all, "?" if unknown."""


Value = tuple[Word, ...]
"""One value of a variable: a single word, or the elements of an array."""

UNSURE: Value = (Word(UNKNOWN),)
_EMPTY: Value = (Word(""),)
OWN_PROCESS: Value = (Word(UNKNOWN + "!"),)
"""The number of a process that the script has started, or its own: `$!`, `$$` and `$(jobs -p)`."""
_ARGUMENT = lazy_pattern(r"[1-9]\d*\Z|[@*]\Z")
"""The names of variables that hold arguments."""
_ANY_ARGUMENT = lazy_pattern(r"\$\{!?(?:[1-9@*#]|OPTARG)")


def unknown_argument(name: str = "?") -> Value:
    """Return the value of an unknown argument, given the name of its variable."""
    return (Word(UNKNOWN, argument="@" if name == "*" else name),)


def value_of(words: Sequence[Word], found: Given) -> Word:
    """Return the value of an option as a word."""
    word = words[found.at]
    return word if word.text == found.value else replace(word, text=found.value)


class Variables:
    """The possible values of each variable at one point of the script. A name that is missing may have any value."""

    __slots__ = ("values",)

    def __init__(self, values: dict[str, tuple[Value, ...]]) -> None:
        self.values = values

    def copy(self) -> Variables:
        return Variables(dict(self.values))

    def set(self, name: str, values: Sequence[Value]) -> None:
        distinct = tuple(dict.fromkeys(values))
        longest = max([sum([len(word.text) for word in value]) for value in distinct], default=0)
        if len(distinct) > MAX_ALTERNATIVES or longest > MAX_VALUE:
            self.values.pop(name, None)
        else:
            self.values[name] = distinct

    def forget(self, name: str) -> None:
        self.values.pop(name, None)

    def join(self, other: Variables) -> None:
        """Merge in the variables of another path through the script: after a branch, both paths are possible."""
        for name in list(self.values):
            theirs = other.values.get(name)
            if theirs is None:
                self.forget(name)
            elif theirs != self.values[name]:
                self.set(name, self.values[name] + theirs)


def base(word: Word) -> str:
    """Return the base name of the program at a path."""
    return word.text.rpartition("/")[2]


class _Atom(msgspec.Struct, frozen=True):
    """A part of a word whose text is final: braces in it aren't expanded."""

    words: tuple[Word, ...]
    """More than one: the elements of `"${array[@]}"`, or an unquoted value that was split."""
    joins: tuple[bool, bool] = (True, True)
    """Whether the first and the last of them are joined with their neighbours in the word."""


class Expander:
    """Expands the words of one command for one choice among the possible values of its variables."""

    def __init__(self, variables: Variables, picks: dict[object, int] | None = None) -> None:
        self.variables = variables
        self.picks = picks or {}
        self.seen: dict[object, int] = {}
        """Each choice that was needed, with the number of possible values."""
        self.prompts: list[Node] = []
        """Expansions that run the value of the variable: `${x@P}`."""

    @property
    def open(self) -> bool:
        """Return whether there are too many combinations to try, so that no value should be treated as known."""
        return prod(self.seen.values()) > MAX_COMBINATIONS

    def pick(self, key: object, options: Sequence[Value]) -> Value:
        """Return the chosen one of several possible values, and record the choice under `key`."""
        if len(options) > 1:
            self.seen[key] = len(options)
        return options[self.picks.get(key, 0)] if options else UNSURE

    def words(self, node: Node, depth: int = 0) -> list[Word]:
        """Return the words that one word of the source expands to: usually one, and usually unchanged."""
        raw, kind = _text(node), node.type
        if kind in _PLAIN_TYPES:
            if _PLAIN.match(raw):
                return [_plain(raw)]
        elif kind == "raw_string":
            return [Word(raw[1:-1])]
        elif kind == "string":
            if simple := self.simple(raw[1:-1]):
                return [simple]
        elif kind == "command_substitution" and depth <= MAX_EXPANSION_DEPTH and not _FOLDED.search(raw):
            return [Word(UNKNOWN, loose=True, makers=command_names(raw))]
        return _Builder(self, depth).build(node)

    def line(self, text: str) -> tuple[Word, ...]:
        """Return the words of a command that matches `LINE`."""
        if '"' not in text and "'" not in text:
            return tuple(map(_plain, text.split()))
        return tuple(
            [
                self.referring(raw[1:-1]) if raw[0] == '"' else Word(raw[1:-1]) if raw[0] == "'" else _plain(raw)
                for raw in _LINE_WORD.findall(text)
            ]
        )

    def simple(self, quoted: str) -> Word | None:
        """Return the word for quoted text in which only plain references (`$x`, `${x}`) are expanded; None for other
        text. This doesn't need the tree."""
        return self.referring(quoted) if _SIMPLE.match(quoted) else None

    def referring(self, quoted: str) -> Word:
        """Return the word for quoted text that is known to be simple (see `simple`)."""
        if "$" not in quoted:
            return Word(quoted)
        parts = _REFERENCE.split(quoted)
        values = [(self.lookup(name.strip("{}")) or _EMPTY)[0] for name in parts[1::2]]
        parts[1::2] = [word.text for word in values]
        return _made_of(values, "".join(parts))

    def text(self, node: Node, depth: int = 0) -> Word:
        """Return the word that a node expands to in an assignment, where it isn't split."""
        words = self.words(node, depth)
        return words[0] if len(words) == 1 else merge(words)

    def lookup(self, name: str) -> Value:
        """Return the chosen value of a variable; an unknown word if it isn't known."""
        if (known := self.variables.values.get(name)) is not None:
            return self.pick(name, known)
        if name == "HOME":
            return (Word("~"),)
        if name == "IFS":
            return (Word(" \t\n"),)
        if name in ("!", "$"):
            return OWN_PROCESS
        if _ARGUMENT.match(name):
            return unknown_argument(name)
        return unknown_argument() if name == "OPTARG" else UNSURE


_PLAIN_TYPES = frozenset({"word", "number", "variable_name", "command_name"})
_LETTERS = r"[A-Za-z0-9_./:=@%+,*?-]"
_PLAIN = lazy_pattern(rf"{_LETTERS}+\Z")
# `$1x` is left to the tree, because the parser decides where that name ends.
_A_REFERENCE = r"\$[A-Za-z_]\w*|\$\d(?!\w)|\$\{[A-Za-z_]\w*\}"
_SIMPLE = lazy_pattern(rf"(?:[^$`\\]|{_A_REFERENCE})*\Z")
_REFERENCE = lazy_pattern(r"\$(\{\w+\}|[A-Za-z_]\w*|\d)")
# The groups are not possessive: before Python 3.11.5, `re` would take the unclosed `"open` for a whole string.
LINE = lazy_pattern(
    r"[A-Za-z0-9_./+-]++"
    rf"""(?:[ \t]++(?:{_LETTERS}++|'[^']*+'|"(?:[^$`\\"]|{_A_REFERENCE})*")(?=[ \t]|\Z))*\Z"""
)
"""A command in which every word is plain, or in quotes in which only plain references are expanded. Most commands are
like this, and their words can be read from the text alone, which is much faster than from the tree."""
_LINE_WORD = lazy_pattern(r"""'[^']*+'|"[^"]*+"|[^ \t]++""")


def _text(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


def _plain(raw: str) -> Word:
    """Return a word that consists of `_LETTERS`."""
    return Word(raw, "*" in raw or "?" in raw)


def merge(words: Sequence[Word], separator: str = " ") -> Word:
    """Return several words joined to one, as `"$*"` and `eval` do."""
    if len(words) == 1:
        return words[0]
    return _made_of(words, separator.join([word.text for word in words]))


def _made_of(words: Sequence[Word], text: str) -> Word:
    """Return a word with this text and the combined properties of the words it was made of."""
    if UNKNOWN in text:
        text = _UNKNOWNS.sub(UNKNOWN, text)
    glob = built = loose = found = False
    makers: frozenset[str] = frozenset()
    argument = ""
    for word in words:
        glob, built, loose = glob or word.glob, built or word.built, loose or word.loose
        found = found or word.found
        makers = makers | word.makers if word.makers else makers
        if word.argument:
            argument = word.argument if argument in ("", word.argument) else "?"
    return Word(text, glob, built, loose, makers, found=found, argument=argument)


_UNKNOWNS = lazy_pattern(f"{UNKNOWN}+")


def combinations(seen: dict[object, int]) -> Iterator[dict[object, int]]:
    """Yield every combination of the possible values except the first one (all zero); none if there are too many."""
    if prod(seen.values()) <= MAX_COMBINATIONS:
        for indexes in product(*(range(count) for count in seen.values())):
            if any(indexes):
                yield dict(zip(seen, indexes, strict=True))


# In the template of a word, an atom is written as a character of Unicode's first private-use plane. Such a character in
# the source becomes an atom, too, so the two can't be confused.
_FIRST_ATOM, _LAST_ATOM = 0xF0000, 0xFFFFF
_LITERAL = lazy_pattern(r"\\(.)|([\U000f0000-\U000fffff])", re.DOTALL)
_GLOB = lazy_pattern(r"[*?]|\[.*\]", re.DOTALL)
_QUOTED_ESCAPE = lazy_pattern(r'\\([$`"\\])')
_TILDE = lazy_pattern(r"~(?:[+-]\d*(?=/|\Z)|(?=/|:|\Z|[A-Za-z_+-]))")


class _Builder:
    """Expands one word: makes a template of literal characters and atoms, expands its braces, and splits it into
    fields."""

    def __init__(self, expander: Expander, depth: int) -> None:
        self.expander, self.depth = expander, depth
        self.atoms: list[_Atom] = []
        self.template: list[str] = []
        self.hidden = False

    def build(self, node: Node) -> list[Word]:
        parts = node.children if node.type in ("concatenation", "command_name") else [node]
        if len(parts) == 1 and parts[0].type == "concatenation":
            parts = parts[0].children
        for part in parts:
            self.part(part)
        self.hidden |= self._quotes_inside(parts)
        template = "".join(self.template)
        templates = expand_braces(template) if "{" in template else [template]
        if not templates:
            return [Word(UNKNOWN, built=True, loose=True)]
        built = self.hidden or templates != [template]
        return [word for each in templates for word in self.fields(each, built)]

    @staticmethod
    def _quotes_inside(parts: Sequence[Node]) -> bool:
        """Return whether quotes only serve to hide a name: they are next to plain letters, and nothing is expanded, as
        in `r''m` and `"r"m`."""
        kinds = {part.type for part in parts}
        return bool(kinds & {"raw_string", "string", "ansi_c_string"}) and "word" in kinds and not kinds & _EXPANSIONS

    def part(self, node: Node) -> None:
        kind = node.type
        if kind == "raw_string":
            self.atom(Word(_text(node)[1:-1]))
        elif kind == "ansi_c_string":
            raw = _text(node)[2:-1]
            self.hidden |= "\\" in raw
            self.atom(Word(ansi_c(raw)))
        elif kind == "string":
            self.string(node)
        elif kind in _EXPANSIONS:
            self.expansion(node)
        elif kind == "``":
            self.hidden = True
        else:
            self.literal(_text(node))

    def atom(self, *words: Word, joins: tuple[bool, bool] = (True, True)) -> None:
        self.template.append(chr(_FIRST_ATOM + len(self.atoms)))
        self.atoms.append(_Atom(words, joins))
        if len(self.atoms) > MAX_FIELDS * 16:
            # Nobody writes such a word. It counts as unknown, so that the characters for atoms can't run out.
            self.template.clear()
            self.atoms = [_Atom((Word(UNKNOWN, loose=True),))]
            self.template.append(chr(_FIRST_ATOM))

    def literal(self, raw: str) -> None:
        """Add unquoted text, in which a backslash quotes the next character."""
        at = 0
        for found in _LITERAL.finditer(raw):
            self.template.append(raw[at : found.start()])
            at = found.end()
            if found[1] != "\n":
                self.hidden |= bool(found[1]) and found[1].isalnum() and bool(self.template[0] or self.atoms)
                self.atom(Word(found[1] or found[2]))
        self.template.append(raw[at:])

    def string(self, node: Node) -> None:
        """Add a double-quoted string. Only its expansions are nodes; the rest is taken from the source."""
        raw, base = node.text or b"", node.start_byte
        at = 1
        words: list[Word] = []
        for child in node.named_children:
            if child.type in _EXPANSIONS:
                words.append(Word(_unquote(raw[at : child.start_byte - base])))
                at = child.end_byte - base
                fields = self.value(child)
                if _splits_quoted(child):
                    self.atom(merge(words, ""))
                    words.clear()
                    self.atom(*fields)
                else:
                    words.append(merge(fields))
        words.append(Word(_unquote(raw[at:-1])))
        self.atom(merge(words, ""))

    def expansion(self, node: Node) -> None:
        words = self.value(node)
        if node.type in ("process_substitution", "arithmetic_expansion"):
            self.atom(*words)
            return
        fields: list[Word] = []
        joins = (True, True)
        for index, word in enumerate(words):
            pieces = word.text.split()
            if index == 0 and pieces and word.text[:1].isspace():
                joins = (False, joins[1])
            if index == len(words) - 1 and pieces and word.text[-1:].isspace():
                joins = (joins[0], False)
            loose = UNKNOWN in word.text or word.loose
            for piece in pieces:
                glob = word.glob or bool(_GLOB.search(piece))
                fields.append(replace(word, text=piece, glob=glob, loose=loose))
        if not fields:
            # An empty value disappears. One that is only white space (`$IFS`) still separates its neighbours.
            self.atom(*([Word(""), Word("")] if any(word.text for word in words) else [Word("", loose=True)]))
        else:
            self.atom(*fields, joins=joins)

    def value(self, node: Node) -> Value:
        """Return the value of an expansion, before it is split."""
        if self.depth > MAX_EXPANSION_DEPTH:
            return UNSURE
        if node.type == "simple_expansion":
            return self.expander.lookup(_text(node)[1:])
        if node.type == "expansion":
            return self.parameter(node)
        if node.type in ("command_substitution", "process_substitution"):
            raw = _text(node)
            output = folded_output(node, self.expander, self.depth + 1) if _FOLDED.search(raw) else None
            makers = command_names(raw)
            if node.type == "process_substitution":
                return (Word(UNKNOWN, makers=makers, content=output),)
            if output is None:
                own = None if self.expander.variables.values.keys() & OWN_PATH else own_directory(raw)
                if own is not None:
                    return (Word(own),)
                if _JOBS.match(raw):
                    return OWN_PROCESS
                return (Word(UNKNOWN, makers=makers) if _MKTEMP.match(raw) is None else _FRESH,)
            self.hidden = True
            return (Word(output.rstrip("\n")),)
        if found := _SUM.match(_text(node)):
            return (Word(str(sum(int(term.replace(" ", "")) for term in re.findall(r"[+-]?\s*\d+", found[1])))),)
        return UNSURE

    def parameter(self, node: Node) -> Value:
        """Return the value of `${name…}`: plain, of an array, or with a default. Other forms aren't computed."""
        text = _text(node)
        found = _PARAMETER.match(text)
        if not found:
            return unknown_argument() if _ANY_ARGUMENT.match(text) else UNSURE
        name, index, operator = found["name"], found["index"], found["operator"]
        value = self.expander.lookup(name)
        unsure = unknown_argument() if any(word.argument for word in value) or _ANY_ARGUMENT.match(text) else UNSURE
        if name not in "@*" and (index is None or index == "0"):
            value = value[:1]
        elif index not in (None, "@", "*"):
            return unsure
        if not operator:
            return value if found["end"] else unsure
        if operator.startswith("@"):
            if operator == "@P":
                self.expander.prompts.append(node)
            return unsure
        if operator.endswith("?"):
            return value  # or the script stops here
        default = self._default(node)
        if operator in ("+", ":+"):
            return self.expander.pick(node.id, (default, ()))
        known = any(UNKNOWN not in word.text for word in value) and value != UNSURE
        if known and any(word.text for word in value):
            return value
        return self.expander.pick(node.id, (unsure, default))

    def _default(self, node: Node) -> Value:
        operands = node.named_children[1:]
        if not operands:
            return (Word(""),)
        return tuple(word for operand in operands for word in self.expander.words(operand, self.depth + 1))

    def fields(self, template: str, built: bool) -> list[Word]:
        """Return the words of a template whose braces are already expanded."""
        out: list[Word] = []
        current: Word | None = None
        if found := _TILDE.match(template):
            prefix = found.group()
            # `~+` is $PWD. `~-` and `~2` are on the directory stack, which isn't tracked.
            current = Word("~") if prefix == "~" else (self.expander.lookup("PWD") if prefix == "~+" else UNSURE)[0]
            template = template[found.end() :]
        for chunk in _CHUNKS.findall(template):
            if not _FIRST_ATOM <= ord(chunk[0]) <= _LAST_ATOM:
                current = _stick(current, Word(chunk, glob=bool(_GLOB.search(chunk))))
                continue
            atom = self.atoms[ord(chunk) - _FIRST_ATOM]
            words, joins = atom.words, atom.joins
            if not words:
                continue
            if not joins[0] and current is not None:
                out.append(current)
                current = None
            current = _stick(current, words[0])
            for word in words[1:]:
                out.append(current)
                current = word
            if not joins[1]:
                out.append(current)
                current = None
        if current is not None:
            out.append(current)
        lone = len(self.atoms) == 1 and len(template) == 1
        kept = [word for word in out if word.text or not (word.loose or (lone and len(out) > 1))]
        return [replace(word, built=True) if built and not word.built else word for word in kept[:MAX_FIELDS]]


_EXPANSIONS = frozenset(
    {"simple_expansion", "expansion", "command_substitution", "process_substitution", "arithmetic_expansion"}
)
_CHUNKS = lazy_pattern(r"[\U000f0000-\U000fffff]|[^\U000f0000-\U000fffff]+")
_FOLDED = lazy_pattern(r"echo|printf|mktemp|dirname|jobs")
"""Every substitution about whose output something is known contains one of these."""
_MKTEMP = lazy_pattern(
    r"\$\(\s*mktemp(?:\s+(?:-[dqut]+|--directory|--suffix=[\w.-]+|\"?(?:/tmp/|\$\{TMPDIR:-/tmp\}/)?[\w.-]*X{3}[\w.-]*\"?))*\s*\)\Z"
)
_FRESH = Word(f"/tmp/tmp.{UNKNOWN}_", makers=frozenset({"mktemp"}))  # noqa: S108
"""A fresh temporary path: its name isn't known, but its directory is."""
_JOBS = lazy_pattern(r"\$\(\s*jobs -p\s*\)\Z")
_SUM = lazy_pattern(r"\$\(\(\s*(\d{1,9}(?:\s*[+-]\s*\d{1,9})*)\s*\)\)\Z")
_PARAMETER = lazy_pattern(
    r"\$\{(?P<name>[A-Za-z_]\w*|[0-9]+|[@*#?$!-])(?:\[(?P<index>[@*]|\d+)\])?"
    r"(?:(?P<end>\})\Z|(?P<operator>:?[-=+?]|@[A-Za-z]))?"
)


def _stick(left: Word | None, right: Word) -> Word:
    return right if left is None else merge((left, right), "")


def _unquote(raw: bytes) -> str:
    return _QUOTED_ESCAPE.sub(r"\1", raw.decode("utf-8", "replace"))


def _splits_quoted(node: Node) -> bool:
    """Return whether an expansion results in several words even in quotes: `"$@"`, `"${array[@]}"`."""
    return node.type != "command_substitution" and _text(node).endswith(("$@", "${@}", "[@]}"))


def folded_output(node: Node, expander: Expander, depth: int) -> str | None:
    """Return the output of a substitution that only echoes known words; None for any other."""
    body = [child for child in node.named_children if child.type != "comment"]
    return echoed(body[0], expander, depth) if len(body) == 1 and body[0].type == "command" else None


def echoed(command: Node, expander: Expander, depth: int = 0) -> str | None:
    """Return the output of `echo` or `printf` with known words; None for other commands or unknown words."""
    parts = command.named_children
    if depth > MAX_EXPANSION_DEPTH or not parts or any(child.type.endswith("_redirect") for child in parts):
        return None
    name = _text(parts[0])
    if parts[0].type != "command_name" or name.strip("\\\"'") not in ("echo", "printf"):
        return None
    words = [word for child in parts for word in expander.words(child, depth + 1)]
    return echoed_words([word.text for word in words])


_TOKEN = lazy_pattern(r"[\w.+-]+")
_ANY_OTHER = frozenset({""})


def command_names(source: str) -> frozenset[str]:
    """Return the programs named in a piece of source that fetch or decode text, and always "", which stands for any
    other program."""
    unquoted = source[:MAX_NAMED].replace('"', "").replace("'", "").replace("\\", "")
    tokens = _TOKEN.findall(unquoted)
    return _ANY_OTHER if FETCHERS.isdisjoint(tokens) else FETCHERS.intersection(tokens) | _ANY_OTHER


# Plain string work: escapes, braces, and what `echo` and `printf` make of constants

_ESCAPES = {"a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPE = lazy_pattern(
    r"\\(?:x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|0?([0-7]{1,3})|c(.)|(.))", re.DOTALL
)


def ansi_c(raw: str) -> str:
    """Decode the escapes in `$'…'`; `echo -e` and `printf` decode theirs in the same way."""

    def one(found: re.Match[str]) -> str:
        if digits := found[1] or found[2] or found[3]:
            code = int(digits, 16)
        elif found[4]:
            code = int(found[4], 8) & 0xFF
        elif found[5]:
            code = ord(found[5]) & 0x1F
        else:
            return _ESCAPES.get(found[6], found[6])
        # A NUL would be taken for UNKNOWN, and Bash ends the string there in any case.
        return chr(code) if 0 < code < 0x110000 and not 0xD800 <= code < 0xE000 else ""

    return _ESCAPE.sub(one, raw)


_SEQUENCE = lazy_pattern(r"(-?\d{1,4}|[A-Za-z])\.\.(-?\d{1,4}|[A-Za-z])(?:\.\.-?\d+)?\Z")


def expand_braces(template: str) -> list[str]:
    """Return the expansions of `{a,b}` and `{1..3}`, outermost first; an empty list if the template is too long or
    there would be too many."""
    done: list[str] = []
    todo = [template]
    while todo:
        if len(todo) + len(done) > MAX_FIELDS or len(template) > MAX_TEMPLATE:
            return []
        each = todo.pop()
        if group := _first_group(each):
            start, end, options = group
            todo += [each[:start] + option + each[end:] for option in reversed(options)]
        else:
            done.append(each)
    return done


def _first_group(template: str) -> tuple[int, int, list[str]] | None:
    """Return the start and end of the first braces to expand, and their alternatives."""
    groups: dict[int, tuple[int, list[int]]] = {}
    open_groups: list[tuple[int, list[int]]] = []
    for found in re.finditer(r"[{},]", template):
        if found[0] == "{":
            open_groups.append((found.start(), []))
        elif open_groups and found[0] == ",":
            open_groups[-1][1].append(found.start())
        elif open_groups:
            start, commas = open_groups.pop()
            groups[start] = (found.start(), commas)
    for start, (end, commas) in sorted(groups.items()):
        edges = [start, *commas, end]
        inside = [template[left + 1 : right] for left, right in pairwise(edges)]
        if options := inside if commas else _sequence(inside[0]):
            return start, end + 1, options
    return None


def _sequence(inside: str) -> list[str]:
    if not (found := _SEQUENCE.match(inside)):
        return []
    first, last = found[1], found[2]
    if first.lstrip("-").isdigit() and last.lstrip("-").isdigit():
        low, high = sorted((int(first), int(last)))
        return [str(number) for number in range(low, min(high, low + MAX_FIELDS) + 1)]
    if first.isalpha() and last.isalpha():
        low, high = sorted((ord(first), ord(last)))
        return [chr(code) for code in range(low, high + 1)]
    return []


def echoed_words(words: Sequence[str]) -> str | None:
    """Return the output of an `echo` or `printf` command; None if it isn't one, or the output isn't known."""
    if not words or words[0] not in ("echo", "printf") or any(UNKNOWN in word for word in words):
        return None
    args = list(words[1:])
    if words[0] == "echo":
        flags = ""
        while args and re.fullmatch(r"-[neE]+", args[0]):
            flags += args.pop(0)
        text = " ".join(args) + ("" if "n" in flags else "\n")
        return ansi_c(text) if "e" in flags else text
    if args[:1] == ["--"]:
        del args[0]
    if not args or args[0].startswith("-"):
        return None
    form, rest = ansi_c(args[0]), args[1:]
    if re.fullmatch(r"(?:[^%]|%[sb]|%%)*", form, re.DOTALL) is None:
        return None
    count = len(re.findall(r"%[sb]", form))
    out = ""
    for _ in range(min(-(-len(rest) // count), MAX_FIELDS) if count and rest else 1):
        values = iter(rest[:count] + [""] * count)
        out += re.sub(r"%[sb]", lambda found, v=values: next(v) if found[0] == "%s" else ansi_c(next(v)), form)  # type: ignore[misc]
        rest = rest[count:]
    return out.replace("%%", "%")


def own_or_unknown(word: Word) -> str:
    """Return the text of a word. If it looks like a path made by `mktemp` but isn't one, its last part is replaced by
    UNKNOWN."""
    looks = word.text.startswith(_FRESH.text)
    return word.text if not looks or word.makers == _FRESH.makers else f"/tmp/{UNKNOWN}"  # noqa: S108


OWN_PATH = frozenset({"0", "BASH_SOURCE", "BASH_ARGV0"})
"""Variables that hold a script's own path, unless they are set."""
_OWN = r'"?\$(?:0|\{0\}|BASH_SOURCE|\{BASH_SOURCE(?:\[0\])?(?::-\$0)?\})"?'
_OWN_DIRECTORY = rf"\$\(\s*dirname\s+(?:--\s+)?{_OWN}\s*\)"
_QUIETLY = r"(?:\s*(?:&>|1?>)\s*/dev/null(?:\s+2>&1)?)?"
_OWN_DIRECTORIES = lazy_pattern(
    rf"{_OWN_DIRECTORY}\Z"
    rf'|\$\(\s*cd\s+(?:-P\s+)?(?:--\s+)?"?{_OWN_DIRECTORY}(?P<below>(?:/[\w.-]+)*)/?"?{_QUIETLY}\s*&&\s*pwd(?:\s+-P)?\s*\)\Z'
)


def own_directory(substitution: str) -> str | None:
    """Return the path that `$(dirname "$0")` or `$(cd "$(dirname "$0")/.." && pwd)` prints, relative to the script's
    directory (`.`); None for any other substitution."""
    found = _OWN_DIRECTORIES.match(substitution)
    return "." + (found["below"] or "") if found else None
