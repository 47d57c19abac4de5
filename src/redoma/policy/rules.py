"""Rules as data, and how a set of rules becomes a policy.

A rule is matched against one fact at a time. `command`, `flags`, `args`, `writes` and `unless` describe one command and
must all match it. `imports`, `calls`, `attributes`, `traits`, `pattern`, `longer_than` and `time_over` each describe
something else, and a match of any one of them is enough. Within a field any entry may match; in `flags`, all must.

Globs are those of the shell (`*`, `?`, `[…]`). They ignore case, except on names of Python and JavaScript, and have one
addition: `$` stands for a part that can't be known before running, such as a variable.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ..lib.errors import PolicyError
from ..lib.text import suggest
from ..lib.types import resolved
from ..models import Decision, HostRule, Language, Request
from ..models.reach import Resource
from ..models.request import DEFAULT_TIME
from .facts import REQUEST_TRAITS

if TYPE_CHECKING:
    from .match import Matcher

PACKS = ("none", "standard", "script", "strict", "core")
"""The built-in packs, weakest first: each contains every rule of the one before it, at least as strict."""
BY_TEXT = ("script", "strict", "core")
"""The packs that judge by text alone: they don't relax a decision because the run can touch less."""


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What to look for, what to decide when it is found, and why."""

    id: str
    decision: Decision
    reason: str
    suggestion: str = ""
    language: Literal["python", "bash", "javascript"] | None = None
    """Match only requests in this language; None for all. An argument vector counts as bash. Names (`imports`, `calls`,
    `attributes`) are JavaScript names if this is "javascript", and Python names otherwise."""
    touches: tuple[Resource, ...] = ()
    """The resources it is about: "files", "network" and "system" (processes, services, devices and users of the host).
    The decision applies only if the run could touch one of them; otherwise the finding is only reported. If empty, the
    decision always applies."""
    outright: bool = False
    """Whether the decision applies even if the run can't touch the resources. It doesn't in an overlay: there the
    effect of the run is judged."""
    by_reach: bool = False
    """Whether the decision depends on what the run can touch even under the packs that judge by text alone."""

    command: tuple[str, ...] = ()
    """A name and its first words: "rm", "git push", "mkfs*". Options between the words are ignored."""
    flags: tuple[str, ...] = ()
    """Options that must all be given, each with its spellings: "-r|-R|--recursive". `-rf` contains both -r and -f."""
    args: tuple[str, ...] = ()
    """Globs on arguments after quote removal, as written and as a normalised path. "" matches if there are no
    operands."""
    writes: tuple[str, ...] = ()
    """Globs on the paths it writes to, by redirection or as its targets."""
    unless: str = ""
    """An RE2 expression. The rule doesn't match if this matches all of the command's arguments joined by spaces, or the
    whole name of an import, call or attribute."""

    imports: tuple[str, ...] = ()
    """Globs on imported modules; "os" means os and everything in it."""
    calls: tuple[str, ...] = ()
    """Globs on the full name of the called function, with aliases resolved: "os.system", "pickle.*"."""
    literal: bool | None = None
    """Restricts `calls`. True: only calls whose arguments are all constants; False: only the other calls."""
    attributes: tuple[str, ...] = ()
    """Globs on names that are read without being called: "*.__globals__"."""
    traits: tuple[str, ...] = ()
    """Names of structural properties, such as "shell.pipe-to-interpreter"."""
    pattern: str = ""
    """An RE2 expression for the text of the request. A last resort: it can't tell code from a string or a comment. The
    text of a group `(?P<secret>…)` is neither shown nor recorded; the group `(?P<name>…)` is then shown instead."""
    longer_than: int = 0
    """Match source that is longer than this many characters."""
    time_over: float = 0.0
    """Match requests with a time limit of more than this many seconds."""

    match: tuple[str, ...] = ()
    """Examples that the rule must match; checked when the rule is loaded."""
    not_match: tuple[str, ...] = ()
    """Examples that it must not match; checked when the rule is loaded."""

    @property
    def at_once(self) -> bool:
        """Return whether the rule is about something that happens while the request runs, even in an overlay."""
        return bool(self.time_over) or any(trait in REQUEST_TRAITS for trait in self.traits)

    @property
    def of_command(self) -> bool:
        """Return whether the rule is about commands."""
        return bool(self.command or self.flags or self.args or self.writes)

    @property
    def of_names(self) -> bool:
        """Return whether the rule is about names of Python or JavaScript."""
        return bool(self.imports or self.calls or self.attributes)

    @property
    def example_languages(self) -> tuple[Literal["python", "bash", "javascript"], ...]:
        """Return the languages of its examples: the rule's `language`, or what its fields imply."""
        if self.language is not None:
            return (self.language,)
        python = self.of_names or any(trait.startswith("python.") for trait in self.traits)
        bash = self.of_command or any(trait.startswith("shell.") for trait in self.traits)
        if python == bash:
            return ("python", "bash")
        return ("python",) if python else ("bash",)


class Permit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Permission for one exact request to run although a rule matches it.

    A request that consists only of its text is identified by that `text`, which a person can read; any other request by
    the SHA-256 of all of it.
    """

    rule: str
    language: Language
    text: str = ""
    backend: str = "auto"
    time: float = DEFAULT_TIME
    """Maximum time limit, in seconds, that the request may have."""
    sha256: str = ""
    entry: str = ""
    """The address of the configured executor that the request may run on; empty if it runs on none."""
    up_to: Decision = Decision.FORBID
    """The strictest decision that it overrides: with `prompt` it avoids a question but never overrides a refusal."""
    match: tuple[str, ...] = ()
    """Texts that it must cover; checked when it is loaded."""
    not_match: tuple[str, ...] = ()
    """Texts that it must not cover; checked when it is loaded."""

    @property
    def key(self) -> str:
        """Return a short id of the permit, derived from its content."""
        import hashlib

        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:12]

    def covers(self, request: Request, entry: str = "") -> bool:
        """Return whether this permit covers this request, run on the configured executor `entry`.

        No permit covers a request with secrets: a digest in a file would let others guess them. A permit is valid only
        for its own entry: elsewhere the same text may do something else.
        """
        if self.language != request.language or request.secrets or self.entry != entry:
            return False
        if self.sha256:
            return self.sha256 == fingerprint(request, entry)
        fits = self.text == request.text and self.backend == request.backend and request.limits.time <= self.time
        return fits and is_text_only(request)


MAX_PERMIT_TEXT = 500
"""Maximum length of a text that is written out in a permit; a longer one is identified by its digest."""


def permit_of(rule: str, request: Request, entry: str = "", *, by_digest: bool = False, **more: Any) -> Permit:
    """Return a permit for exactly this request: by its text if that is the whole request, printable and not too long,
    otherwise by its digest."""
    if by_digest or not is_text_only(request) or len(request.text) > MAX_PERMIT_TEXT or not request.text.isprintable():
        what: dict[str, Any] = {"sha256": fingerprint(request, entry)}
    else:
        what = {"text": request.text}
        if request.backend != "auto":
            what["backend"] = request.backend
        if request.limits.time != DEFAULT_TIME:
            what["time"] = float(request.limits.time)
    return Permit(rule=rule, language=request.language, entry=entry, **what, **more)


def permit_lines(permit: Permit) -> str:
    """Return a permit as YAML, as an item under `permits` in a redoma.yaml."""
    import json

    # JSON is valid YAML. Non-ASCII characters are kept as they are.
    first, *rest = [
        f"{name}: {json.dumps(each, ensure_ascii=False)}\n" for name, each in msgspec.to_builtins(permit).items()
    ]
    return f"    - {first}" + "".join(f"      {line}" for line in rest)


def is_text_only(request: Request) -> bool:
    """Return whether the text is the whole request, without input, variables, files, arguments, directories, network
    rules or packages."""
    beside = request.stdin, request.env, request.files, request.cwd, request.project, request.network, request.uses
    return not any(beside) and not (request.language != "command" and request.argv)


def fingerprint(request: Request, entry: str = "") -> str:
    """Return the SHA-256 of everything that changes what a request does: not its id, reason, caller or secrets."""
    import hashlib

    # `ascii` also encodes names and arguments that aren't valid UTF-8.
    parts: tuple[object, ...] = (
        request.language,
        request.code,
        request.argv,
        request.backend,
        request.cwd,
        request.workspace,
        request.project,
        request.stdin,
        sorted(request.env.items()),
        sorted(request.files.items()),
        request.outputs,
        sorted(request.require),
        float(request.limits.time),
    )
    if entry:
        parts = (*parts, entry)
    if request.uses is not None:
        parts = (*parts, repr(request.uses))
    if request.interpreter:
        parts = (*parts, request.interpreter)
    if request.network:
        parts = (*parts, *sorted(map(repr, request.network)))
    return hashlib.sha256(ascii(parts).encode()).hexdigest()


class Policy(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A pack's rules and the user's own, ready to judge requests."""

    name: str
    rules: tuple[Rule, ...]
    permits: tuple[Permit, ...] = ()
    hosts: tuple[HostRule, ...] = ()
    """Hosts that requests may name in `network` without a question."""

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 of everything that can change a verdict, and also of the examples, which can't."""
        import hashlib

        return hashlib.sha256(self.encoded).hexdigest()

    @functools.cached_property
    def encoded(self) -> bytes:
        """The whole policy as JSON, for `decode`."""
        whole = (self.name, self.rules, self.permits, *([self.hosts] if self.hosts else []))
        return msgspec.json.encode(whole, order="deterministic")

    @classmethod
    def decode(cls, data: bytes) -> Policy:
        """Return the policy encoded as `data` by `encoded`. Raises `PolicyError` for data that this version can't
        read."""
        try:
            name, rules, permits, *more = msgspec.json.decode(data)
            return cls(
                name=str(name),
                rules=msgspec.convert(rules, resolved(tuple[Rule, ...])),
                permits=msgspec.convert(permits, resolved(tuple[Permit, ...])),
                hosts=msgspec.convert(more[0] if more else (), resolved(tuple[HostRule, ...])),
            )
        except (msgspec.DecodeError, ValueError, TypeError) as error:
            raise PolicyError(
                "a recorded policy can't be read", why=str(error), next="use the version of Redoma that recorded it"
            ) from error

    @property
    def by_text(self) -> bool:
        """Return whether it judges by text alone, regardless of what the run can touch."""
        return self.name in BY_TEXT

    @functools.cached_property
    def by_id(self) -> dict[str, Rule]:
        return {rule.id: rule for rule in self.rules}

    @functools.cached_property
    def matcher(self) -> Matcher:
        from .match import Matcher

        return Matcher(self.rules)

    @functools.cached_property
    def _by_text(self) -> dict[str, list[Permit]]:
        """Permits indexed by text, because there may be hundreds and one request needs only a few."""
        return _grouped((permit.text, permit) for permit in self.permits if not permit.sha256)

    @functools.cached_property
    def _by_digest(self) -> dict[str, list[Permit]]:
        return _grouped((permit.sha256, permit) for permit in self.permits if permit.sha256)

    def covering(self, request: Request, entry: str = "") -> list[Permit]:
        """Return the permits that cover this request."""
        named = self._by_text.get(request.text, [])
        if self._by_digest:
            named = [*named, *self._by_digest.get(fingerprint(request, entry), ())]
        return [permit for permit in named if permit.covers(request, entry)]


def _grouped(permits: Iterable[tuple[str, Permit]]) -> dict[str, list[Permit]]:
    groups: dict[str, list[Permit]] = {}
    for key, permit in permits:
        groups.setdefault(key, []).append(permit)
    return groups


def load(
    pack: str = "standard",
    rules: Sequence[Rule] = (),
    decisions: Mapping[str, Decision] | None = None,
    *,
    permits: Sequence[Permit] = (),
    hosts: Sequence[HostRule] = (),
    time: float = 0.0,
) -> Policy:
    """Return a policy with the rules of a built-in pack plus `rules`; `decisions` replaces decisions by rule id.

    `permits`: requests that are allowed although a rule matches them. `hosts`: hosts that requests may name without a
    question. `time`: the seconds that the configuration allows a run; built-in rules object only to longer limits.

    Raises `PolicyError` for an unknown pack or id, and for a rule that can't work or contradicts its examples. The
    test suite checks the examples of the built-in rules; they aren't checked on every start.
    """
    if pack not in PACKS:
        raise PolicyError(
            f"unknown policy pack {pack!r}", why=f"the packs are {', '.join(PACKS)}", next=suggest(pack, PACKS)
        )
    built_in = _built_in(pack)
    patient = any(0 < rule.time_over < time for rule in built_in.rules)
    if not rules and not decisions and not permits and not hosts and not patient:
        return built_in
    verify(rules, taken=(rule.id for rule in built_in.rules))
    own = [
        msgspec.structs.replace(rule, time_over=time) if 0 < rule.time_over < time else rule for rule in built_in.rules
    ]
    chosen = {rule.id: rule for rule in (*own, *rules)}
    for rule_id, decision in (decisions or {}).items():
        if rule_id not in chosen:
            raise PolicyError(
                f"there is no rule {rule_id!r} to decide about",
                why=f"the pack {pack!r} and your own rules don't have it",
                next=suggest(rule_id, chosen),
            )
        # The owner's decision applies wherever the request runs.
        chosen[rule_id] = msgspec.structs.replace(chosen[rule_id], decision=decision, touches=())
    return Policy(name=pack, rules=tuple(chosen.values()), permits=tuple(permits), hosts=tuple(hosts))


def verify_permit(permit: Permit) -> None:
    """Raise `PolicyError` for a permit that contradicts its own examples."""
    examples = [(True, text) for text in permit.match] + [(False, text) for text in permit.not_match]
    if examples and permit.sha256:
        raise PolicyError(
            "a permit by `sha256` has examples",
            why="an example is a text, and the digest is of all of a request",
            next="leave `match` and `not_match` out",
        )
    for expected, text in examples:
        if (text == permit.text) is not expected:
            raise PolicyError(
                f"the permit of {permit.text[:80]!r} disagrees with its own example {text[:80]!r}",
                why="it is under `match`, but is another text" if expected else "it is under `not_match`, but is that",
                next="correct the permit or the example",
            )


def verify(rules: Iterable[Rule], taken: Iterable[str] = ()) -> None:
    """Raise `PolicyError` for the first rule that can't work, contradicts its own examples, or has an id that is in use
    (`taken`)."""
    seen = set(taken)
    for rule in rules:
        if rule.id in seen:
            raise PolicyError(
                f"rule {rule.id!r} is there twice",
                why="a finding must name one rule",
                next="give it an id of its own, or change the decision of the existing rule under `decisions`",
            )
        seen.add(rule.id)
        for what, why, next_step in _objections(rule):
            raise PolicyError(f"rule {rule.id!r} {what}", why=why, next=next_step)
        _check_examples(rule)


@functools.cache
def _built_in(pack: str) -> Policy:
    from . import packs

    return Policy(name=pack, rules=packs.rules_of(pack))


def _objections(rule: Rule) -> Iterator[tuple[str, str, str]]:
    """Yield what is wrong with a rule's fields, why, and what to do. This includes rules that would load but couldn't
    work as intended."""
    if not rule.id or rule.id != "".join(rule.id.split()):
        yield "can't be used as an id", "it is empty or holds spaces", "use a-name.like-this"
    try:
        msgspec.json.encode(rule)
    except UnicodeEncodeError:
        yield "holds text that is not valid UTF-8", "it can't be recorded", "remove it"
    looks_at = rule.of_command or rule.of_names or rule.traits or rule.pattern
    if not (looks_at or rule.longer_than > 0 or rule.time_over > 0):
        fields = "command, flags, args, writes, imports, calls, attributes, traits, pattern, longer_than, time_over"
        yield "matches nothing", "it says what to decide but not what to look for", f"add one of {fields}"
    for field in ("command", "flags", "writes", "imports", "calls", "attributes"):
        if not all(entry.strip() for entry in getattr(rule, field)):
            yield f"has an empty entry in `{field}`", "it would match nothing", "remove it"
    if rule.decision is Decision.ALLOW:
        why = "a rule only adds a reason to ask or refuse; it can't excuse what another one finds"
        yield "decides `allow`", why, "change the decision of that other rule under `decisions`"
    if not rule.reason.strip():
        why = "it is what a person reads when they are asked"
        yield "has an empty reason", why, "say in a few words what is wrong"
    for entry in rule.command:
        if "/" in entry.split()[0]:
            base = entry.split()[0].rpartition("/")[2] or "the name alone"
            why = "commands are matched by their base name, so it would match nothing"
            yield f"has a path in `command`: {entry!r}", why, f"write {base!r}, which is found at any path"
    from .globs import check_glob

    for field in ("command", "args", "writes", "imports", "calls", "attributes"):
        for glob in getattr(rule, field):
            if error := _error_of(check_glob, glob):
                next_step = "correct it; `[[]` stands for a `[` itself"
                yield f"has a glob in `{field}` that can't be read: {glob!r}", error, next_step
    known = _known_traits(rule.traits)
    for trait in rule.traits:
        if trait not in known:
            yield f"names the unknown trait {trait!r}", "nothing reports it", suggest(trait, known)
    from ..lib.text import compile_re2

    for field in ("unless", "pattern"):
        if error := _error_of(compile_re2, getattr(rule, field)):
            next_step = "correct it; RE2 has no look-around and no back-references"
            yield f"has a `{field}` that is not a valid RE2 expression", error, next_step


def _error_of(check: Callable[[str], object], text: str) -> str:
    try:
        check(text)
    except ValueError as error:
        return str(error) or "it is not valid"
    return ""


def _check_examples(rule: Rule) -> None:
    from ..models import Request
    from .evaluate import evaluate

    policy = Policy(name="example", rules=(rule,))
    for expected, examples in ((True, rule.match), (False, rule.not_match)):
        for example in examples:
            found = any(
                finding.rule == rule.id
                for language in rule.example_languages
                for finding in evaluate(policy, Request(code=example, language=language)).findings
            )
            if found is not expected:
                raise PolicyError(
                    f"rule {rule.id!r} disagrees with its own example {example!r}",
                    why="it is under `match` but the rule doesn't find it"
                    if expected
                    else "it is under `not_match` but the rule finds it",
                    next="correct the rule or the example",
                )


def _known_traits(wanted: Iterable[str]) -> dict[str, str]:
    """Return the known traits. The Bash parser is loaded only if one of `wanted` isn't found without it."""
    from . import javascript, python

    known = {**REQUEST_TRAITS, **python.TRAITS, **javascript.TRAITS}
    if any(trait not in known for trait in wanted):
        from . import shell

        known.update(shell.TRAITS)
    return known
