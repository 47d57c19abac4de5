"""Matching rules with facts.

Everything that can be prepared is prepared once per policy: rules are indexed by what they are about, and the
globs of a field become one expression. No expression here can take more than linear time on hostile input:
globs are made without backtracking, and what users write is RE2.
"""

from __future__ import annotations

import functools
import itertools
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from ..lib.patterns import pattern as compiled_later
from ..lib.text import compile_re2
from ..models import MIN_SECRET, Finding
from .facts import MAX_NAME, UNKNOWN, Attribute, Call, Command, Fact, Import, Span, Trait
from .rules import Rule

MAX_TEXT = 80
_MAX_REMEMBERED = 2000
_MAX_ROOT_GLOB = 100
MAX_PATTERN_HITS = 20
"""Places of one `pattern` that are reported; more say nothing new."""
_MAX_SECRETS = 1000

_HIDDEN = "(?P<secret>"
"""In a pattern: what is in this group is shown to nobody. What is in a group `name` is, in its place."""

_Fits = Callable[[str], object]

_ROOT_DIRECTORIES = (
    "bin boot dev etc home lib lib32 lib64 media mnt opt proc root run sbin srv sys usr var".split()  # noqa: SIM905
)
_PROC_ROOT = compiled_later(r"/proc/[^/]+(?:/task/[^/]+)?/root(?=/|\Z)")

_PLAIN_OPTION = compiled_later(r"--no-.*|--(?:verbose|quiet|silent|yes|debug)|-[vqy]+", re.DOTALL)
"""Options that never take the next word, of whatever program: `git --no-pager stash push` is not `git push`."""


def glob_expression(glob: str) -> str:
    """A shell glob as an expression for a whole string, with `$` for a part that can't be known.

    Each `*` is followed by an atomic group, so a failed match is given up at once instead of being retried at
    every earlier place: `*a*a*a*b` on a long word costs the same as reading it a few times.
    """
    pieces = [""]
    for part in re.findall(r"\[!?\]?[^\]]*\]|.", glob, re.DOTALL):
        if part == "*":
            pieces.append("")
        elif part == "?":
            pieces[-1] += "."
        elif part == "$":
            pieces[-1] += r"[\0$]"
        elif len(part) > 1:
            inside = part[1:-1].replace("\\", r"\\").replace("[", r"\[").replace("$", r"\0$")
            pieces[-1] += "[" + ("^" + inside[1:] if inside.startswith("!") else inside.replace("^", r"\^", 1)) + "]"
        else:
            pieces[-1] += re.escape(part)
    first, *rest = pieces
    if not rest:
        return first
    *middle, last = rest
    return first + "".join(f"(?>.*?{piece})" for piece in middle if piece) + ".*" + last


def check_glob(glob: str) -> None:
    """Raise ValueError for what looks like a glob and is none, such as `[z-a]`."""
    try:
        re.compile(glob_expression(glob))
    except re.error as error:
        raise ValueError(str(error)) from None


def any_glob(globs: Iterable[str], *, ignore_case: bool = True) -> _Fits:
    """Whether one of the globs fits a whole text, as `glob_expression` says. Prepared when first asked: a pack has
    hundreds of globs, and one request needs a few of them. Most are plain words, which need no expression, and most
    others don't begin as the text does: to compile one takes longer than all else of a request."""
    wanted = tuple(globs)
    plain: set[str] | None = None
    longest = 0  # of the plain words
    beginnings: tuple[str, ...] = ()  # of the others
    fits: _Fits | None = None

    def asked(text: str) -> object:
        nonlocal plain, longest, beginnings, fits
        if plain is None:
            plain = {glob.lower() if ignore_case else glob for glob in wanted if glob.isascii() and not _is_glob(glob)}
            longest = max(map(len, plain), default=-1)
            others = [glob for glob in wanted if _is_glob(glob) or not glob.isascii()]
            beginnings = tuple({_beginning(glob.lower() if ignore_case else glob) for glob in others})
        if text.isascii():  # of other letters an expression has its own idea which are the same but for their case
            same = text.lower() if ignore_case else text
            if len(text) <= longest and same in plain:
                return True
            if not same.startswith(beginnings):
                return False
        if fits is None:
            expressions = [glob_expression(glob) for glob in wanted]
            flags = re.DOTALL | (re.IGNORECASE if ignore_case else 0)
            fits = re.compile(f"(?:{'|'.join(expressions)})" if expressions else r"(?!)", flags).fullmatch
        return fits(text)

    return asked


_SPECIAL = frozenset("*?[$")


def _is_glob(text: str) -> bool:
    return not _SPECIAL.isdisjoint(text)


def _lowered(name: str) -> str:
    """A name of ASCII in lower case; for others, empty: an expression has its own idea of their case."""
    return name.lower() if name.isascii() else ""


def _beginning(glob: str) -> str:
    """What every text of ASCII begins with that a glob fits."""
    if not glob.isascii():
        return ""
    return glob[: next((place for place, character in enumerate(glob) if character in _SPECIAL), len(glob))]


def _fitting_root(glob: str) -> list[str]:
    """The directories a glob may stand for; one of a length that nobody writes, or a broken one, for all of them."""
    try:
        fits = any_glob([glob]) if len(glob) <= _MAX_ROOT_GLOB else bool
        return [directory for directory in _ROOT_DIRECTORIES if fits(directory)]
    except re.error:
        return list(_ROOT_DIRECTORIES)


def _path_forms(words: Iterable[str]) -> list[str]:
    """What paths can mean: as written, tidied, and with a glob at the root resolved to the usual directories."""
    forms = list(words)
    for word in [word for word in forms if "/" in word]:
        tidy = posixpath.normpath(word)
        if tidy.startswith("//"):  # POSIX lets exactly two slashes mean something else; Linux doesn't
            tidy = tidy[1:]
        tidy = _PROC_ROOT.sub("", tidy) or "/"
        if tidy != word:
            forms.append(tidy)
        root, slash, rest = tidy[1:].partition("/")
        if tidy.startswith("/") and _is_glob(root):
            forms += [f"/{directory}{slash}{rest}" for directory in _fitting_root(root)]
    return forms


def _argument_forms(args: Sequence[str]) -> list[str]:
    return _path_forms([*args, *[arg.partition("=")[2] for arg in args if "=" in arg and arg.startswith("-")]])


def has_flag(args: Sequence[str], spellings: frozenset[str]) -> bool:
    """Whether one of the options is there: by itself, in a bundle, abbreviated, or where it can't be known."""
    for arg in args[: options_end(args)]:
        if arg in spellings or arg.partition("=")[0] in spellings:
            return True
        if not arg.startswith("-"):
            continue
        if UNKNOWN in arg:  # `rm -"$x"`: it could be any option
            return True
        if arg.startswith("--"):
            # GNU programs take any unambiguous beginning: --recur is --recursive.
            name = arg.partition("=")[0]
            if len(name) > 2 and any(spelling.startswith(name) for spelling in spellings):
                return True
        elif any(len(spelling) == 2 and spelling[1] in arg for spelling in spellings):
            return True
    return False


def options_end(args: Sequence[str]) -> int:
    """Where the `--` stands that ends the options. After an option it may be its value: `sort -T -- -o x` writes."""
    before = ""
    for at, arg in enumerate(args):
        takes_none = before == "--" or (before.startswith("--") and "=" in before)
        if arg == "--" and (takes_none or not before.startswith(("-", UNKNOWN))):
            return at
        before = arg
    return len(args)


def _has_operand(args: Sequence[str]) -> bool:
    return any(not arg.startswith("-") for arg in args) or "--" in args[:-1]


class _Words:
    """One entry of `command`: a name, then words that must follow with nothing but options in between."""

    def __init__(self, entry: str) -> None:
        name, *self._words = entry.split()
        self._fits_name = any_glob([name])
        self._plain = name.lower() if name.isascii() and not _is_glob(name) else ""

    def fits_name(self, name: str, lowered: str) -> object:
        """Whether the name fits. `lowered` is what `_lowered` makes of it, once for all entries."""
        return lowered == self._plain if lowered and self._plain else self._fits_name(name)

    @functools.cached_property
    def fits_word(self) -> list[_Fits]:
        """What each of the words that follow must be: prepared when first asked, as in `any_glob`."""
        return [any_glob([word]) for word in self._words]

    @functools.cached_property
    def literals(self) -> frozenset[str]:
        """Those of the words that are no globs."""
        return frozenset(word.lower() for word in self._words if word.isascii() and not _is_glob(word))

    def match(self, command: Command) -> bool:
        """Whether the words follow; that the name fits is known already.

        An option that isn't known may take the next word as its value: both readings are followed, or one option
        with a value would hide every rule of more than one word.
        """
        program = command.name[:MAX_NAME].rstrip("0123456789.")
        from .options import grammar_of, read_option  # large, and of no use for Python

        grammar = grammar_of(program)
        wanted, reached = self.fits_word, {0}  # how many of the words wanted may have been seen
        is_value = may_be_value = False
        for word in command.args:
            if is_value:
                is_value = may_be_value = False
                continue
            further = {seen + 1 for seen in reached if wanted[seen](word)}
            if len(wanted) in further:
                return True
            is_option = word.startswith("-") or (word.startswith("+") and program == "cargo")  # cargo +nightly install
            reached = reached | further if is_option or may_be_value else further
            if not reached:
                return False
            if is_option and word[0] == "-" and "=" not in word:
                option = read_option(word, grammar)
                is_value = option.listed and option.takes_next
                may_be_value = not option.listed and not _PLAIN_OPTION.fullmatch(word)
            else:
                is_value = may_be_value = False
        return False


class _CommandRule:
    """The command fields of one rule, prepared."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.words = [_Words(entry) for entry in rule.command or ("*",)]
        self.flags = [frozenset(entry.split("|")) for entry in rule.flags]
        self.bare = "" in rule.args
        self.fits_arg = any_glob(glob for glob in rule.args if glob)
        self.fits_write = any_glob(rule.writes)
        self.needs_slash = bool(rule.args) and all("/" in glob and "[" not in glob for glob in rule.args)

    def concerns(self, *, writes: bool, slashes: bool) -> bool:
        """Whether it can match a command that writes nothing, or has no slash in its arguments."""
        return (writes or not self.rule.writes) and (slashes or not self.needs_slash)

    def miss(self, command: Command, entries: Sequence[_Words], arguments: list[str], writes: list[str]) -> str:
        """The field that doesn't hold; empty where the rule matches. `entries` are those of which one must fit the
        command's words; `arguments` and `writes` are path forms."""
        if entries:
            # Most entries are about words that aren't there. Beyond ASCII, lower case is not how `re` ignores case.
            text = " ".join(command.args)
            there = frozenset(map(str.lower, command.args)) if text.isascii() else None
            possible = (words for words in entries if there is None or words.literals <= there)
            if not any(words.match(command) for words in possible):
                return "command"
        for spellings in self.flags:
            if not has_flag(command.args, spellings):
                return "flags"
        if self.rule.args and not (
            (self.bare and not _has_operand(command.args)) or any(map(self.fits_arg, arguments))
        ):
            return "args"
        if self.rule.writes and not any(map(self.fits_write, writes)):
            return "writes"
        return "unless" if _excused(self.rule, " ".join(command.args)) else ""


def _excused(rule: Rule, text: str) -> bool:
    return bool(rule.unless) and compile_re2(rule.unless).fullmatch(_encodable(text)) is not None


def _encodable(text: str) -> str:
    """RE2 reads UTF-8, which has no lone surrogates; one character stays one character."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


class _NameIndex:
    """Rules by dotted Python name."""

    def __init__(self, entries: Iterable[tuple[str, Rule]]) -> None:
        self.exact: dict[str, list[Rule]] = {}
        self.globs: list[tuple[_Fits, Rule]] = []
        wild: dict[str, tuple[Rule, list[str]]] = {}
        for entry, rule in entries:
            if _is_glob(entry):
                wild.setdefault(rule.id, (rule, []))[1].append(entry)
            else:
                self.exact.setdefault(entry, []).append(rule)
        for rule, globs in wild.values():
            self.globs.append((any_glob(globs, ignore_case=False), rule))

    def matching(self, name: str) -> Iterator[Rule]:
        yield from self.exact.get(name, ())
        for fits, rule in self.globs:
            if fits(name):
                yield rule


class Matcher:
    """A policy's rules, indexed by the kind of fact they are about."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.traits: dict[str, list[Rule]] = {}
        for rule in rules:
            for trait in rule.traits:
                self.traits.setdefault(trait, []).append(rule)
        self._rules = rules
        self._about: dict[tuple[str, bool, bool], list[tuple[_CommandRule, list[_Words]]]] = {}
        self._imports = _NameIndex(
            (entry, rule) for rule in rules for name in rule.imports for entry in (name, f"{name}.*")
        )
        self._calls = _NameIndex((name, rule) for rule in rules for name in rule.calls)
        self._attributes = _NameIndex((name, rule) for rule in rules for name in rule.attributes)
        self._of_time = [rule for rule in rules if rule.time_over > 0]
        self._of_text = [rule for rule in rules if rule.pattern or rule.longer_than > 0]

    @functools.cached_property
    def _commands(self) -> list[_CommandRule]:
        """The rules about commands: prepared with the first command, since Python code mostly has none."""
        return [_CommandRule(rule) for rule in self._rules if rule.of_command]

    def _about_command(self, command: Command) -> list[tuple[_CommandRule, list[_Words]]]:
        """The rules that can be about a command, with the entries its words must fit; none where its name is enough.

        Remembered, since scripts repeat themselves. Most commands write nothing and name no path, and for these the
        rules with the most globs, which are about paths whatever the command, are left out beforehand.
        """
        name, writes, slashes = key = command.name, bool(command.writes), "/" in "".join(command.args)
        about = self._about.get(key)
        if about is None:
            about = []
            lowered = _lowered(name)
            for prepared in self._commands:
                if prepared.concerns(writes=writes, slashes=slashes):
                    entries = [words for words in prepared.words if words.fits_name(name, lowered)]
                    if entries:
                        about.append((prepared, entries if all(words.fits_word for words in entries) else []))
            if len(self._about) >= _MAX_REMEMBERED:  # names come from the source, which may hold any number of them
                self._about.clear()
            if len(name) <= MAX_NAME:
                self._about[key] = about
        return about

    def findings(self, facts: Iterable[Fact], text: str, language: str) -> list[Finding]:
        """Every rule that matches a fact or the text, in the order of the source."""
        found = dict.fromkeys(finding for fact in facts for finding in self.of_fact(fact, language))
        found.update(dict.fromkeys(self.of_text(text, language)))
        return sorted(found, key=lambda finding: (finding.line, finding.column))

    def of_fact(self, fact: Fact, language: str) -> Iterator[Finding]:
        """What the rules find in one fact."""
        for rule in self._matching(fact):
            if rule.language in (None, language):
                yield _finding(rule, fact)

    def of_text(self, text: str, language: str) -> Iterator[Finding]:
        """What the rules find in the text as such."""
        for rule in self._of_text:
            if rule.language in (None, language):
                yield from _findings_in_text(rule, text)

    def silent(self, fact: Fact, language: str) -> Iterator[tuple[Rule, str]]:
        """The rules that name this very command, call or import and yet find nothing, with the field that says so."""
        match fact:
            case Command():
                arguments, writes = _argument_forms(fact.args), _path_forms(fact.writes)
                for prepared in self._commands:
                    entries = [words for words in prepared.words if words.fits_name(fact.name, _lowered(fact.name))]
                    if prepared.rule.command and entries and prepared.rule.language in (None, language):
                        entries = entries if all(words.fits_word for words in entries) else []
                        if missed := prepared.miss(fact, entries, arguments, writes):
                            yield prepared.rule, missed
            case Import() | Call() | Attribute():
                index = {Import: self._imports, Call: self._calls, Attribute: self._attributes}[type(fact)]
                matching = list(self._matching(fact))
                for rule in index.matching(fact.name):
                    if rule not in matching and rule.language in (None, language) and _is_about(rule, fact):
                        yield rule, "unless" if _excused(rule, fact.name) else "literal"

    def secrets(self, text: str, language: str) -> list[str]:
        """What the group `secret` of a pattern holds; if that is too short to be found again, all that was matched."""
        found: list[str] = []
        for rule in self._of_text:
            if rule.language in (None, language) and _HIDDEN in rule.pattern:
                expression = compile_re2(rule.pattern)
                for hit in itertools.islice(expression.finditer(_encodable(text)), _MAX_SECRETS):
                    secret = hit.group(expression.groupindex["secret"]) or ""
                    found.append(secret if len(secret) >= MIN_SECRET else hit.group())
        return found

    def _matching(self, fact: Fact) -> Iterator[Rule]:
        match fact:
            case Command():
                if about := self._about_command(fact):
                    arguments, writes = _argument_forms(fact.args), _path_forms(fact.writes) if fact.writes else []
                    for prepared, entries in about:
                        if not prepared.miss(fact, entries, arguments, writes):
                            yield prepared.rule
            case Trait():
                yield from self.traits.get(fact.name, ())
            case Span():
                yield from (rule for rule in self._of_time if fact.seconds > rule.time_over)
            case Import():
                yield from _unexcused(self._imports.matching(fact.name), fact)
            case Call():
                for rule in _unexcused(self._calls.matching(fact.name), fact):
                    if rule.literal in (None, fact.literal):
                        yield rule
            case Attribute():
                yield from _unexcused(self._attributes.matching(fact.name), fact)


def _unexcused(rules: Iterable[Rule], fact: Import | Call | Attribute) -> Iterator[Rule]:
    """Those that are about names of the fact's language, and don't excuse this one."""
    return (rule for rule in rules if _is_about(rule, fact) and not _excused(rule, fact.name))


def _is_about(rule: Rule, fact: Import | Call | Attribute) -> bool:
    return (rule.language == "javascript") is fact.javascript


def _findings_in_text(rule: Rule, text: str) -> Iterator[Finding]:
    if 0 < rule.longer_than < len(text):
        yield _finding(rule, Fact())
    if rule.pattern:
        text, expression = _encodable(text), compile_re2(rule.pattern)
        shown = expression.groupindex.get("name") if _HIDDEN in rule.pattern else 0
        for hit in itertools.islice(expression.finditer(text), MAX_PATTERN_HITS):
            before = text[: hit.start()]
            column = hit.start() - (before.rfind("\n") + 1) + 1
            what = "" if shown is None else hit.group(shown) or ""
            yield _finding(rule, Fact(line=before.count("\n") + 1, column=column, text=what))


def _finding(rule: Rule, fact: Fact) -> Finding:
    text = " ".join(fact.text[: 4 * MAX_TEXT].split())
    if len(text) > MAX_TEXT:
        text = text[: MAX_TEXT - 1] + "…"
    return Finding(
        rule=rule.id,
        decision=rule.decision,
        reason=rule.reason,
        line=fact.line,
        column=fact.column,
        text="".join(character if character.isprintable() else "�" for character in text),
        suggestion=rule.suggestion,
    )
