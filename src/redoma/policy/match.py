"""Match rules with facts.

Rules are prepared once per policy: they are indexed by the kind of fact they are about, and the globs of a field become
one regular expression (`globs`). Users' expressions are RE2, which takes linear time even on hostile input.
"""

from __future__ import annotations

import functools
import itertools
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence

from ..lib.patterns import lazy_pattern
from ..lib.text import compile_re2, shorten
from ..models import MIN_SECRET, Finding
from .facts import MAX_NAME, UNKNOWN, Attribute, Call, Command, Fact, Import, Span, Trait, position
from .globs import Fits, any_glob, is_glob, root_paths
from .rules import Rule

MAX_TEXT = 80
_MAX_REMEMBERED = 2000
MAX_PATTERN_HITS = 20
"""Maximum number of matches of one `pattern` that are reported."""
_MAX_SECRETS = 1000

_HIDDEN = "(?P<secret>"
"""A pattern's group whose text is never shown. The text of the group `name`, if there is one, is shown instead."""

_PROC_ROOT = lazy_pattern(r"/proc/[^/]+(?:/task/[^/]+)?/root(?=/|\Z)")

_PLAIN_OPTION = lazy_pattern(r"--no-.*|--(?:verbose|quiet|silent|yes|debug)|-[vqy]+", re.DOTALL)
"""Options that never take the next word as a value, in any program: `git --no-pager stash push` is not `git push`."""


def _lowered(name: str) -> str:
    """Return an ASCII name in lower case; for others "", because `re` ignores case differently from `str.lower`."""
    return name.lower() if name.isascii() else ""


def _path_forms(words: Iterable[str]) -> list[str]:
    """Return the forms of paths to match: as written, normalised, and with a glob at the root resolved to the usual
    directories."""
    forms = list(words)
    for word in [word for word in forms if "/" in word]:
        tidy = posixpath.normpath(word)
        if tidy.startswith("//"):  # POSIX lets exactly two slashes mean something else; Linux doesn't
            tidy = tidy[1:]
        tidy = _PROC_ROOT.sub("", tidy) or "/"
        if tidy != word:
            forms.append(tidy)
        forms += root_paths(tidy)
    return forms


def _argument_forms(args: Sequence[str]) -> list[str]:
    return _path_forms([*args, *[arg.partition("=")[2] for arg in args if "=" in arg and arg.startswith("-")]])


def has_flag(args: Sequence[str], spellings: frozenset[str]) -> bool:
    """Return whether one of the options is given (alone, in a bundle or abbreviated), or may be, because a word that
    begins with a dash has an unknown part."""
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
    """Return the index of the `--` that ends the options; without one, the number of arguments. Directly after an
    option, `--` doesn't count, because it may be the option's value: `sort -T -- -o x` writes to x."""
    before = ""
    for at, arg in enumerate(args):
        takes_none = before == "--" or (before.startswith("--") and "=" in before)
        if arg == "--" and (takes_none or not before.startswith(("-", UNKNOWN))):
            return at
        before = arg
    return len(args)


def _has_operand(args: Sequence[str]) -> bool:
    return any(not arg.startswith("-") for arg in args) or "--" in args[:-1]


def _is_plain(text: str) -> bool:
    """Return whether a text matches itself alone, in any case."""
    return text.isascii() and not is_glob(text)


class _Words:
    """One entry of `Rule.command`: a name, then words that must follow, with only options in between."""

    def __init__(self, entry: str) -> None:
        name, *self._words = entry.split()
        self._fits_name = any_glob([name])
        self._plain = name.lower() if _is_plain(name) else ""

    def fits_name(self, name: str, lowered: str) -> object:
        """Return whether the name matches. `lowered`: the result of `_lowered(name)`, computed once for all entries."""
        return lowered == self._plain if lowered and self._plain else self._fits_name(name)

    @functools.cached_property
    def fits_word(self) -> list[Fits]:
        """The matchers of the words that must follow, created on first use, as in `any_glob`."""
        return [any_glob([word]) for word in self._words]

    @functools.cached_property
    def literals(self) -> frozenset[str]:
        """The words that aren't globs."""
        return frozenset(word.lower() for word in self._words if _is_plain(word))

    def match(self, command: Command) -> bool:
        """Return whether the words follow in a command whose name is known to match.

        The word after an unknown option may be its value or not, so both readings are followed. Otherwise an unknown
        option with a value would prevent rules of several words from matching.
        """
        program = command.name[:MAX_NAME].rstrip("0123456789.")
        from .options import grammar_of, read_option  # a large module that Python code doesn't need

        grammar = grammar_of(program)
        wanted, reached = self.fits_word, {0}  # `reached`: how many of the wanted words may have been found so far
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
        self.needs_slash = bool(rule.args) and all("/" in glob and "[" not in glob for glob in rule.args)
        names = " ".join(rule.command or ("*",))
        self._plain = names.lower() if _is_plain(names) else ""
        """All names and words in lower case; empty if there is a glob among them."""

    # The rest is prepared when it is first needed: one command concerns few of the rules.

    @functools.cached_property
    def words(self) -> list[_Words]:
        return [_Words(entry) for entry in self.rule.command or ("*",)]

    @functools.cached_property
    def flags(self) -> list[frozenset[str]]:
        return [frozenset(entry.split("|")) for entry in self.rule.flags]

    @functools.cached_property
    def fits_arg(self) -> Fits:
        return any_glob(glob for glob in self.rule.args if glob)

    @functools.cached_property
    def fits_write(self) -> Fits:
        return any_glob(self.rule.writes)

    def concerns(self, *, writes: bool, slashes: bool) -> bool:
        """Return whether the rule can match a command at all. `writes`: whether that command writes files. `slashes`:
        whether its arguments contain slashes."""
        return (writes or not self.rule.writes) and (slashes or not self.needs_slash)

    def entries_for(self, name: str, lowered: str) -> list[_Words] | None:
        """Return the entries whose words a command with this name must match: none if the name is enough; None if the
        rule is not about it. `lowered`: the result of `_lowered(name)`."""
        if lowered and self._plain and lowered not in self._plain:
            return None
        entries = [words for words in self.words if words.fits_name(name, lowered)]
        if not entries:
            return None
        return entries if all(words.fits_word for words in entries) else []

    def miss(self, command: Command, entries: Sequence[_Words], arguments: list[str], writes: list[str]) -> str:
        """Return the name of the field that doesn't match; empty if the rule matches.

        `entries`: the result of `entries_for`. `arguments`, `writes`: path forms.
        """
        if entries:
            # Most entries need words that the command lacks. Beyond ASCII, `re` ignores case differently from `lower`.
            text = " ".join(command.args)
            there = frozenset(map(str.lower, command.args)) if text.isascii() else None
            possible = (words for words in entries if there is None or words.literals <= there)
            if not any(words.match(command) for words in possible):
                return "command"
        for spellings in self.flags:
            if not has_flag(command.args, spellings):
                return "flags"
        if self.rule.args and not (
            ("" in self.rule.args and not _has_operand(command.args)) or any(map(self.fits_arg, arguments))
        ):
            return "args"
        if self.rule.writes and not any(map(self.fits_write, writes)):
            return "writes"
        return "unless" if _excused(self.rule, " ".join(command.args)) else ""


def _excused(rule: Rule, text: str) -> bool:
    """Return whether the rule's `unless` matches the whole text."""
    return bool(rule.unless) and compile_re2(rule.unless).fullmatch(_encodable(text)) is not None


def _encodable(text: str) -> str:
    """Return the text with each lone surrogate replaced by one character: RE2 reads UTF-8, which can't encode them."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


class _NameIndex:
    """Rules indexed by dotted name."""

    def __init__(self, entries: Iterable[tuple[str, Rule]]) -> None:
        self.exact: dict[str, list[Rule]] = {}
        self.globs: list[tuple[Fits, Rule]] = []
        self._without_dot: list[tuple[Fits, Rule]] = []
        """Those of `globs` that may match a name without a dot, such as `print`: hardly any."""
        wild: dict[str, tuple[Rule, list[str]]] = {}
        for entry, rule in entries:
            if is_glob(entry):
                wild.setdefault(rule.id, (rule, []))[1].append(entry)
            else:
                self.exact.setdefault(entry, []).append(rule)
        for rule, globs in wild.values():
            prepared = any_glob(globs, ignore_case=False), rule
            self.globs.append(prepared)
            if any("." not in glob or "[" in glob for glob in globs):
                self._without_dot.append(prepared)

    def matching(self, name: str) -> Iterator[Rule]:
        """Yield the rules that have an entry for this name."""
        yield from self.exact.get(name, ())
        for fits, rule in self.globs if "." in name else self._without_dot:
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
        self._of_time = [rule for rule in rules if rule.time_over > 0]
        self._of_text = [rule for rule in rules if rule.pattern or rule.longer_than > 0]

    @functools.cached_property
    def _by_name(self) -> dict[type[Fact], _NameIndex]:
        """The rules about names, prepared when the first name occurs, because commands have none."""
        rules = self._rules
        return {
            Import: _NameIndex(
                (entry, rule) for rule in rules for name in rule.imports for entry in (name, f"{name}.*")
            ),
            Call: _NameIndex((name, rule) for rule in rules for name in rule.calls),
            Attribute: _NameIndex((name, rule) for rule in rules for name in rule.attributes),
        }

    @functools.cached_property
    def _commands(self) -> list[_CommandRule]:
        """The rules about commands, prepared when the first command occurs, because most Python code has none."""
        return [_CommandRule(rule) for rule in self._rules if rule.of_command]

    def _about_command(self, command: Command) -> list[tuple[_CommandRule, list[_Words]]]:
        """Return the rules that may match a command, each with its `entries_for` it.

        The result is cached, because scripts repeat commands. The rules with the most globs are about paths in any
        command; they are left out for commands that write nothing and name no path, as most do.
        """
        name, writes, slashes = key = command.name, bool(command.writes), "/" in "".join(command.args)
        about = self._about.get(key)
        if about is None:
            about = []
            lowered = _lowered(name)
            for prepared in self._commands:
                if prepared.concerns(writes=writes, slashes=slashes):
                    entries = prepared.entries_for(name, lowered)
                    if entries is not None:
                        about.append((prepared, entries))
            if len(self._about) >= _MAX_REMEMBERED:  # names come from the source, which may hold any number of them
                self._about.clear()
            if len(name) <= MAX_NAME:
                self._about[key] = about
        return about

    def findings(self, facts: Iterable[Fact], text: str, language: str) -> list[Finding]:
        """Return a finding for every rule that matches a fact or the text, in the order of the source."""
        found = dict.fromkeys(finding for fact in facts for finding in self.of_fact(fact, language))
        found.update(dict.fromkeys(self.of_text(text, language)))
        return sorted(found, key=lambda finding: (finding.line, finding.column))

    def of_fact(self, fact: Fact, language: str) -> Iterator[Finding]:
        """Yield the findings of all rules that match one fact."""
        for rule in self._matching(fact):
            if rule.language in (None, language):
                yield _finding(rule, fact)

    def of_text(self, text: str, language: str) -> Iterator[Finding]:
        """Yield the findings of all rules about the text itself."""
        for rule in self._of_text:
            if rule.language in (None, language):
                yield from _findings_in_text(rule, text)

    def silent(self, fact: Fact, language: str) -> Iterator[tuple[Rule, str]]:
        """Yield the rules that have an entry for this command or name but don't match it, each with the field that
        prevents the match."""
        match fact:
            case Command():
                arguments, writes = _argument_forms(fact.args), _path_forms(fact.writes)
                for prepared in self._commands:
                    if prepared.rule.command and prepared.rule.language in (None, language):
                        entries = prepared.entries_for(fact.name, _lowered(fact.name))
                        if entries is not None and (missed := prepared.miss(fact, entries, arguments, writes)):
                            yield prepared.rule, missed
            case Import() | Call() | Attribute():
                for rule in self._by_name[type(fact)].matching(fact.name):
                    if rule.language in (None, language) and _is_about(rule, fact) and (missed := _miss(rule, fact)):
                        yield rule, missed

    def secrets(self, text: str, language: str) -> list[str]:
        """Return the secrets that rules find in the text: the group `secret` of each match, or the whole match if the
        group is too short to be redacted by itself."""
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
            case Import() | Call() | Attribute():
                for rule in self._by_name[type(fact)].matching(fact.name):
                    if _is_about(rule, fact) and not _miss(rule, fact):
                        yield rule


def _is_about(rule: Rule, fact: Import | Call | Attribute) -> bool:
    """Return whether a rule is about names of the fact's language."""
    return (rule.language == "javascript") is fact.javascript


def _miss(rule: Rule, fact: Import | Call | Attribute) -> str:
    """Return the field of a rule that exempts a name for which it has an entry; empty if the rule matches."""
    if _excused(rule, fact.name):
        return "unless"
    return "literal" if isinstance(fact, Call) and rule.literal not in (None, fact.literal) else ""


def _findings_in_text(rule: Rule, text: str) -> Iterator[Finding]:
    if 0 < rule.longer_than < len(text):
        yield _finding(rule, Fact())
    if rule.pattern:
        text, expression = _encodable(text), compile_re2(rule.pattern)
        shown = expression.groupindex.get("name") if _HIDDEN in rule.pattern else 0
        for hit in itertools.islice(expression.finditer(text), MAX_PATTERN_HITS):
            line, column = position(text, hit.start())
            yield _finding(rule, Fact(line=line, column=column, text="" if shown is None else hit.group(shown) or ""))


def _finding(rule: Rule, fact: Fact) -> Finding:
    text = shorten(" ".join(fact.text[: 4 * MAX_TEXT].split()), MAX_TEXT)
    return Finding(
        rule=rule.id,
        decision=rule.decision,
        reason=rule.reason,
        line=fact.line,
        column=fact.column,
        text="".join(character if character.isprintable() else "�" for character in text),
        suggestion=rule.suggestion,
    )
