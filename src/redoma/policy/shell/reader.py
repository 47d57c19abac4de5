"""Walk the syntax tree of a script in source order and find its commands, tracking what is known at each point."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ...lib.patterns import lazy_pattern
from ..facts import MAX_DEPTH, UNKNOWN, Fact, Function, Lookup, Place, Searched, Trait, normal, position
from .commands import CHDIR, Commands, Deferred, Feed, Work
from .programs import KNOWN_COMMANDS, SUBSCRIPT, is_network_path
from .source import HEREDOC_PATH, Heredoc, Source, parseable, prepare
from .variables import (
    EXPANSION,
    SEARCHES,
    expansion_sets_hook,
    is_hook,
    may_be_hook,
    redirection_sets_hook,
    refers_to_hook,
    sum_sets_hook,
)
from .words import (
    LINE,
    MAX_FIELDS,
    UNSURE,
    Expander,
    Value,
    Variables,
    Word,
    combinations,
    command_names,
    echoed,
    expand_braces,
    merge,
    unknown_argument,
)
from .wrappers import search_roots

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

MAX_NESTING = 50
"""Maximum number of nested parentheses, substitutions and blocks that are read."""
MAX_FACTS = 5000
MAX_NODES = 200_000

Items = Sequence["Node | Callable[[], None]"]
"""What to visit next: nodes of the tree, and functions to call between them."""


def read(
    source: str,
    depth: int,
    *,
    params: tuple[Word, ...] = (),
    place: Place | None = None,
    trusts_values: bool = True,
    shared: Variables | None = None,
    feed: Feed | None = None,
    work: Work | None = None,
    deferred: list[Deferred] | None = None,
    environment: Mapping[str, str] | None = None,
    given: tuple[Word, ...] = (),
    lookup: Lookup = "path",
) -> list[Fact]:
    """Return the facts of a script.

    `params`: its `$0`, `$1` …. `feed`: its standard input. `environment`: the variables that it starts with.
    `trusts_values`: see `Commands`. `work`: the budget for reading. `given`: arguments of the request; an unknown word
    may be any of them, and the facts for each of these cases are added. `lookup`: that of its commands (see
    `facts.Command`).

    For a script inside another one, `place` is its position there, `shared` the variables of the outer script, and
    `deferred` receives the commands that depend on arguments of the outer script.
    """
    if depth > MAX_DEPTH:
        return [Trait(name="source.too-deep", **(place or {}))]
    prepared = prepare(source)
    reader = _Reader(prepared, depth, place, feed, trusts_values=trusts_values, work=work, lookup=lookup)
    if shared is not None:
        reader.variables = shared.copy()
    if deferred is not None:
        reader.deferred[""] = deferred
    reader.begin_with(environment or {})
    reader.start(params, given)
    reader.facts += reader.sums.on_data()
    if not (reader.unsure and trusts_values):
        return reader.facts
    # Something in the script may set any variable. So it is read twice: the first reading trusts the known values, the
    # second one treats every variable as unknown.
    second = _Reader(prepared, depth, place, feed, trusts_values=False, work=reader.work, lookup=lookup)
    second.environment = reader.environment
    second.start(params, given)
    known = set(reader.facts)
    return reader.facts + [fact for fact in second.facts if fact not in known]


@functools.cache
def _parser() -> Parser:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


def parse(data: bytes) -> Node:
    """Return the root of the syntax tree."""
    return _parser().parse(data).root_node


# A name that is not being expanded may be one that is being set: `x=1`, `read x`, `for x in`, `((x++))`.
_MENTION = lazy_pattern(r"(?<![\w$])(?<!\$\{)([A-Za-z_]\w*)|\$\{([A-Za-z_]\w*):?=")
_DESCRIPTOR = lazy_pattern(r"(?:\d+|\{\w+\})\Z")
_DUPLICATED = lazy_pattern(r"(?:\d+-?|-)\Z")
"""What follows `>&` if that names a descriptor."""
_PRINTS = lazy_pattern(r"[\\'\"]*(?:echo|printf|cat|tee|find)\b")
_SUBSTITUTION = lazy_pattern(r"(?<!\\)(?:\\\\)*(?:\$\(|`|[<>]\()")
"""The beginning of a substitution."""
_REDIRECTS = frozenset({"file_redirect", "herestring_redirect", "heredoc_redirect"})
_NOT_CODE = frozenset({"raw_string", "comment", "ansi_c_string", "string_content", "heredoc_body"})
_WORDS = frozenset({"string", "simple_expansion", "concatenation", "command_name"})
# A word without any of these contains no substitution and no operator of arithmetic.
_SPECIAL = lazy_pattern(r"[(`<>\[{]")
_RUNS_SOMETHING = lazy_pattern(
    rf"[(`]|\[\$'|\$\[|\$\{{!|\$\{{\w+(?:\[|:[^-=?+])|{EXPANSION.pattern}|{re.escape(HEREDOC_PATH)}"
)
_REFERENCE = lazy_pattern(r"-[A-Za-z]*n")
_NUMERIC = lazy_pattern(r"-[A-Za-z]*[in]")
_QUOTED_SUBSTITUTION = lazy_pattern(r"'[^']*(?:\$\(|`)|\$'")


def redirections(node: Node) -> list[Node]:
    """Return the redirections directly in a node."""
    return [child for child in node.named_children if child.type.endswith("_redirect")]


class _Reader(Commands):
    """Reads one script, walking once over its tree."""

    def __init__(
        self,
        source: Source,
        depth: int,
        place: Place | None,
        feed: Feed | None = None,
        *,
        trusts_values: bool,
        work: Work | None = None,
        lookup: Lookup,
    ) -> None:
        super().__init__(depth, feed, trusts_values=trusts_values, work=work, lookup=lookup)
        self.source = source
        self.place = place
        """The position of all facts if the script is inside another one."""
        self.data = parseable(source.text)
        self.ascii = source.text.isascii()
        self.verbatim = self.ascii and len(source.starts) == 1
        """Whether positions in the parsed text are those in the original."""
        self.functions: set[str] = set()
        self.checked_until = 0
        """The end of the last arithmetic that was checked."""
        self.attached: dict[int, list[Node]] = {}
        """Redirections of commands that are still to come, by the id of the command's node."""
        self.saved: list[Variables] = []
        """The variables at the beginning of each open scope, innermost last."""

    def start(self, params: tuple[Word, ...], given: tuple[Word, ...] = ()) -> None:
        """Read the whole script. `params`, `given`: see `read`."""
        self.called[""] = dict.fromkeys(filter(None, (params[1:], given)))
        self.arguments = given
        if params:
            self.set("0", [params[:1]])
            for number, word in enumerate(params[1:], 1):
                self.set(str(number), [(word,)])
            for name in "@*":
                self.set(name, [params[1:]])
        for name, offset in self.source.problems:
            line, column = position(self.source.original, offset)
            text = self.source.original[offset : offset + 40]
            self.trait(name, self.place or {"line": line, "column": column, "text": text})
        if redirection_sets_hook(self.source.text):
            self.trait(
                "shell.environment-hook", self.place or {"line": 1, "column": 1, "text": self.source.original[:40]}
            )
        self.walk(parse(self.data))
        self.settle()

    def text(self, node: Node) -> str:
        """Return the source text of a node."""
        if self.ascii:  # offsets in bytes are offsets in characters
            return self.source.text[node.start_byte : node.end_byte]
        return self.data[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def at(self, node: Node) -> Place:
        """Return the position of a node in the original source, for facts about it."""
        if self.place is not None:
            return self.place
        if self.verbatim:
            row, column = node.start_point
            return {"line": row + 1, "column": column + 1, "text": self.text(node)[:200]}
        offset = node.start_byte if self.ascii else len(self.data[: node.start_byte].decode("utf-8", "replace"))
        line, column = self.source.position(offset)
        return {"line": line, "column": column, "text": self.text(node)[:200]}

    def expand(self, node: Node) -> Word:
        return Expander(self.variables).text(node)

    def walk(self, root: Node) -> None:
        """Visit the nodes of a tree in order, and report what they run."""
        stack: list[Node | Callable[[], None]] = [root]
        visited = 0
        while stack:
            item = stack.pop()
            if callable(item):
                item()
                continue
            if len(self.facts) > MAX_FACTS or visited > MAX_NODES or self.work.left <= 0:
                self.trait("source.too-large", self.at(item))
                return
            # A handler reports its node and returns what to visit next, in order.
            parts = _HANDLERS.get(item.type, _Reader.other)(self, item)
            visited += len(parts)
            stack += [part for part in reversed(parts) if callable(part) or self.must_visit(part)]

    def must_visit(self, node: Node) -> bool:
        """Return whether a node must be visited. Most needn't: keywords, punctuation and words that run nothing."""
        kind = node.type
        if kind in _HANDLERS:
            return True
        if node.child_count:
            return kind not in _WORDS or node.has_error or _SPECIAL.search(self.text(node)) is not None
        if node.is_missing:
            return True
        if not node.is_named or kind in _NOT_CODE:
            return False
        text = self.text(node)
        return "$(" in text or "`" in text

    def other(self, node: Node) -> Items:
        """Handle a node that has no handler: visit its children."""
        if children := node.children:
            return children
        if node.is_missing:
            self.trait("shell.parse-error", self.at(node))
        elif _SUBSTITUTION.search(text := self.text(node)):
            # The parser has found no structure in this word, although it contains a substitution. Read that separately.
            self.trait("shell.parse-error", self.at(node))
            self.read_nested("shell", f": {text}", self.at(node), "$(")
        return ()

    def scoped(self, *items: Node, branch: bool) -> Items:
        """Visit nodes in a scope. Afterwards variables have their old values again; after a `branch`, which may run or
        not, their old or new values."""
        if len(self.saved) >= MAX_NESTING:
            self.trait("source.too-deep", self.at(items[0]))
            return ()
        return [self.enter, *items, self.leave_branch if branch else self.leave]

    def enter(self) -> None:
        self.work.spend(10 * len(self.variables.values))
        self.saved.append(self.variables.copy())

    def leave(self) -> None:
        self.variables = self.saved.pop()

    def leave_branch(self) -> None:
        self.variables.join(self.saved.pop())

    def operator(self, node: Node) -> Items:
        self.trait("shell.parse-error" if node.is_missing else "shell.operator", self.at(node))
        return ()

    # Statements

    def substitution(self, node: Node) -> Items:
        """Handle a subshell or a substitution: variables that are set in it don't change outside."""
        text = self.text(node)
        if text.startswith("`") and "\\" in text:
            # Inside backquotes Bash removes one more level of backslashes, which the grammar doesn't do.
            self.trait("shell.operator", self.at(node))
            self.read_nested("shell", re.sub(r"\\([$`\\])", r"\1", text[1:-1]), self.at(node), "`")
            return ()
        if writes := self.written(redirections(node)):  # `$(<file)`: a redirection without a command
            self.report(":", (), writes, (), self.at(node), lookup="none")
        return self.scoped(*node.children, branch=False)

    def branches(self, node: Node) -> Items:
        """Handle `if` and `case`: each part may run or not, so after it a variable may have its old or new value."""
        items: list[Node | Callable[[], None]] = []
        for child in node.children:
            items += self.scoped(child, branch=True) if child.is_named and items else [child]
        return items

    def sequence(self, node: Node) -> Items:
        """Handle `a && b && c`. Its tree is as deep as the list is long, so it is flattened first. Each part after the
        first may run or not."""
        parts: list[Node] = []
        while node.type == "list":
            parts += reversed(node.children[1:])
            node = node.children[0]
        items: list[Node | Callable[[], None]] = [node]
        for part in reversed(parts):
            items += self.scoped(part, branch=True) if part.is_named else [part]
        return items

    def loop(self, node: Node) -> Items:
        variable = node.child_by_field_name("variable")
        values = node.children_by_field_name("value")
        if node.type == "c_style_for_statement":
            self.sums.computes(self.text(node).partition("))")[0].removeprefix("for"), self.at(node))

        def start() -> None:
            # The second iteration sees the variables that the first one set.
            self.forget_mentioned(node)
            given = [UNKNOWN]
            if variable is not None and not values:
                self.set(self.text(variable), [unknown_argument()])  # `for x; do`
                self.sums.reads(self.text(variable))
            elif variable is not None:
                words = [word for value in values for word in Expander(self.variables).words(value)]
                if any(UNKNOWN in word.text or word.glob for word in words):
                    self.sums.gives(self.text(variable), " ".join(map(self.text, values)))
                self.set(self.text(variable), [(word,) for word in words])
                if self.text(variable) not in self.variables.values and any(word.argument for word in words):
                    self.set(self.text(variable), [unknown_argument()])
                given = [word.text for word in words]
            self.hook(variable is not None and any(is_hook(self.text(variable), v, v) for v in given), node)

        inside = self.scoped(*node.children, branch=True)
        return [start, *inside] if inside else ()

    def forget_mentioned(self, node: Node) -> set[str]:
        """Forget the values of all variables that a node may set; return their names."""
        mentioned = {first or second for first, second in _MENTION.findall(self.text(node))}
        if CHDIR & mentioned:
            mentioned.add("PWD")
        for name in mentioned & self.variables.values.keys():
            self.variables.forget(name)
        return mentioned

    def lasting(self) -> Variables:
        # A command that runs later can rely on a value only if it is set once, and before this point.
        known = self.variables.values.items()
        once = {name: values for name, values in known if self.mention_counts[name] == 1}
        if "PWD" in self.variables.values and not CHDIR & self.mention_counts.keys():
            once["PWD"] = self.variables.values["PWD"]  # nothing changes the directory
        return Variables(once)

    @functools.cached_property
    def mention_counts(self) -> Counter[str]:
        """How often each variable may be set in the whole script, including by the request."""
        counts = Counter(first or second for first, second in _MENTION.findall(self.source.text))
        counts.update(self.environment.keys())
        return counts

    def function(self, node: Node) -> Items:
        """Handle the definition of a function: its body is read once, as if it were called at any later time."""
        name_node, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        name = self.text(name_node) if name_node else ""
        self.functions.add(name)
        self.facts.append(Function(name=name))
        if name in KNOWN_COMMANDS:
            self.trait("shell.shadowed-command", self.at(node))
        if body is not None and "&" in self.text(body) and self.calls(body, name) > 1:
            self.trait("shell.fork-bomb", self.at(node))
        outer: list[tuple[Variables, Feed | None, str]] = []

        def enter() -> None:
            self.volatile |= self.forget_mentioned(node)
            outer.append((self.variables.copy(), self.feed, self.function_name))
            # It may be called from anywhere.
            self.variables, self.feed, self.function_name = self.lasting(), self.own_feed, name

        def leave() -> None:
            self.variables, self.feed, self.function_name = outer[0]

        return [enter, *self.scoped(*node.children[1:], branch=False), leave]

    def calls(self, body: Node, name: str) -> int:
        """Return how often commands in `body` have this name."""
        count, stack = 0, [body]
        while stack:
            node = stack.pop()
            count += node.type == "command_name" and self.text(node) == name
            stack.extend(node.named_children)
        return count

    def pipeline(self, node: Node) -> Items:
        """Handle a pipeline: each segment's input is the output of the one before it."""
        outer, segments = self.feed, node.named_children
        made: list[Feed] = []

        def begin(segment: Node) -> Callable[[], None]:
            def take_and_give() -> None:
                self.feed = made[-1] if made else outer
                if segment == segments[-1]:
                    return  # nothing in this pipeline reads its output
                makers = command_names(self.text(segment)) | (made[-1].makers if made else frozenset())
                made.append(Feed(self.output(segment), makers))

            return take_and_give

        def leave() -> None:
            self.feed = outer

        items: list[Node | Callable[[], None]] = []
        for child in node.children:
            items += [begin(child), *self.scoped(child, branch=False)] if child.is_named else [child]
        return [*items, leave]

    def statement(self, node: Node) -> Items:
        """Handle a statement with redirections after it."""
        body = node.child_by_field_name("body")
        redirects = redirections(node)
        rest = [child for child in node.children if child not in redirects and child != body]
        # In `a && b > f` the grammar attaches the redirection to the whole list, but Bash applies it to b.
        last = body
        while last is not None and last.type in ("list", "pipeline", "negated_command"):
            last = last.named_children[-1]
        if body is not None and last is not None and last.type == "command":
            self.attached[last.id] = redirects
            return [body, *redirects, *rest]
        if writes := self.written(redirects):
            self.report(":", (), writes, (), self.at(node), lookup="none")
        outer, feed = self.feed, self.redirected(redirects)

        def enter() -> None:
            self.feed = feed or outer

        def leave() -> None:
            self.feed = outer

        return [enter, *([body] if body is not None else []), leave, *redirects, *rest]

    # Input and output

    def output(self, segment: Node) -> str | None:
        """Return what a segment of a pipeline prints, for the few commands where that is known; else None."""
        text = self.text(segment)
        if not _PRINTS.match(text):
            return None
        body = segment.child_by_field_name("body") if segment.type == "redirected_statement" else segment
        if body is None or body.type != "command" or not body.named_children:
            return None
        redirects = [*redirections(body), *(redirections(segment) if segment is not body else [])]
        parts = [child for child in body.named_children if child not in redirects]
        name = self.text(parts[0]) if parts else ""
        if name in self.functions:
            return None
        if name == "tee" or (name == "cat" and len(parts) == 1):
            feed = self.redirected(redirects) or self.feed
            return feed.text if feed else None
        if redirects and any(self.written(redirects, quiet=True)):
            return None
        expander = Expander(self.variables)
        if name != "find":
            return echoed(body, expander)
        words = expander.line(text) if LINE.match(text) else [word for part in parts for word in expander.words(part)]
        # Not the exact output, but the directories of the results: enough to judge `find / | xargs rm`.
        return " ".join(search_roots([word.text for word in words[1:]]))

    def redirected(self, redirects: Iterable[Node]) -> Feed | None:
        """Return the redirected standard input; None if it isn't redirected."""
        feed = None
        for redirect in redirects:
            if redirect.type == "herestring_redirect" and redirect.named_children:
                word = self.expand(redirect.named_children[-1])
                feed = Feed(word.text + "\n", word.makers)
            elif redirect.type == "file_redirect" and any(child.type == "<" for child in redirect.children):
                feed = self.read_from(redirect) or feed
        return feed

    def read_from(self, redirect: Node) -> Feed | None:
        """Return the input that a redirection reads; None if it has no destination."""
        destination = redirect.child_by_field_name("destination")
        if destination is None:
            return None
        word = self.expand(destination)
        if word.text.startswith(HEREDOC_PATH):
            return self.heredoc(word.text)
        if word.makers:
            return Feed(word.content, word.makers)
        # As with a file given as an operand, only content that this script wrote is known.
        path = normal(word.text, self.cwd())
        text = self.files.get(path, "" if UNKNOWN not in path else None)
        return Feed(text, file=self.file_fact(word, "script", (), self.at(redirect)))

    def heredoc(self, path: str) -> Feed:
        """Return a here-document as input, with UNKNOWN for the parts that are expanded to unknown values."""
        document = self.document(path)
        if document is None:
            return Feed(None)
        if not document.expands or not re.search(r"[$`\\]", document.body):
            return Feed(document.body)
        if simple := Expander(self.variables).simple(document.body):
            return Feed(simple.text, simple.makers - {""})
        root = parse(parseable(document.as_string()))
        strings = [part for child in root.named_children for part in child.named_children if part.type == "string"]
        if len(strings) != 1:
            return Feed(UNKNOWN, command_names(document.body))
        word = self.expand(strings[0])
        return Feed(word.text, word.makers - {""})

    def written(self, redirects: Iterable[Node], writer: Node | None = None, *, quiet: bool = False) -> list[str]:
        """Return the paths that redirections write to. Unless `quiet`, also report the redirections, and remember that
        these files were written, with what `writer` prints as their content if that is known."""
        paths: dict[str, bool] = {}
        for redirect in redirects:
            destination = redirect.child_by_field_name("destination")
            if redirect.type != "file_redirect" or destination is None:
                continue
            operator = next((child.type for child in redirect.children if not child.is_named), "")
            word = self.expand(destination)
            if is_network_path(word.text) and not quiet:
                self.trait("shell.network-redirect", self.at(redirect))
            if "&" in operator and _DUPLICATED.match(word.text):
                continue
            if not quiet:
                self.defer((Word(":"), word), self.at(redirect), writes=not operator.startswith("<"))
            if operator.startswith("<"):
                if not quiet and not word.makers and not word.text.startswith(HEREDOC_PATH):
                    self.report(":", (normal(word.text, self.cwd()),), (), (), self.at(redirect), lookup="none")
                continue
            paths[normal(word.text, self.cwd())] = operator.endswith(">>")
        if paths and not quiet:
            content = self.output(writer) if writer is not None else None
            self.files.update((path, None if appended else content) for path, appended in paths.items())
        return list(paths)

    def redirect(self, node: Node) -> Sequence[Node]:
        """Read the commands that are substituted in a here-document, at the position of its redirection."""
        destination = node.child_by_field_name("destination")
        path = self.text(destination) if destination is not None else ""
        document = self.document(path) if path.startswith(HEREDOC_PATH) else None
        if document and document.expands and (_SUBSTITUTION.search(document.body) or EXPANSION.search(document.body)):
            self.read_nested("shell", document.as_string(), self.at(node), "<<")
        return node.children

    def document(self, path: str) -> Heredoc | None:
        """Return the here-document that was replaced by this path; None if there is none."""
        number = path[len(HEREDOC_PATH) :]
        if number.isdecimal() and len(number) < 9 and int(number) < len(self.source.heredocs):
            return self.source.heredocs[int(number)]
        return None

    # Variables

    def assignment(self, node: Node) -> Items:
        self.assign(node)
        return node.children

    def assign(self, node: Node, command: str = "", *, exported: bool = False) -> None:
        """Handle `name=value`: for the rest of the script or, if `command` is given, only for that command."""
        name_node, value_node = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name_node is None:
            return
        name = self.text(name_node).partition("[")[0]
        raw = self.text(value_node) if value_node else ""
        values = self.values(value_node) if value_node else [(Word(""),)]
        self.work.spend(10 * sum(len(word.text) for value in values for word in value))
        self.hook(any(is_hook(name, merge(value).text, raw, command) for value in values if value), node)
        if any(SUBSCRIPT.search(word.text) or sum_sets_hook(word.text) for value in values for word in value):
            self.trait("shell.dynamic-code", self.at(node))  # arithmetic evaluates the value of a variable
        if any(UNKNOWN in word.text for value in values for word in value):
            self.sums.gives(name, raw)
        if name in SEARCHES:
            self.searched(name, values, raw, node)
        if command or exported or may_be_hook(name):
            self.facts += (self.variable_fact(name, merge(value).text, self.at(node)) for value in values if value)
        if command:
            return
        if name_node.type == "subscript":
            self.variables.forget(name)
        elif "+=" in [child.type for child in node.children]:
            array = value_node is not None and value_node.type == "array"
            self.append(name, values, array)
        else:
            self.set(name, values)

    def append(self, name: str, values: Sequence[Value], array: bool) -> None:
        """Handle `name+=value`: add elements to an array, or text to a string."""
        known = self.variables.values.get(name, (UNSURE,))
        pairs = [(before, after) for before in known for after in values]
        self.set(name, [a + b if array else (merge((*a[:1], *b[:1]), ""),) for a, b in pairs])

    def values(self, node: Node) -> list[Value]:
        """Return all values that the right side of an assignment may have."""

        def one(expander: Expander) -> Value:
            if node.type == "array":
                return tuple(word for child in node.named_children for word in expander.words(child))
            return (expander.text(node),)

        first = Expander(self.variables)
        return [one(first), *(one(Expander(self.variables, picks)) for picks in combinations(first.seen))]

    def declaration(self, node: Node) -> Items:
        """Handle export, declare, local, readonly, typeset and unset: a command that contains assignments."""
        words = [Word(self.text(node.children[0]))]
        parts: list[Node] = []
        refers = False
        for child in node.children:
            if child.type == "variable_assignment":
                self.assign(child, exported=True)
                parts += child.children
                name = child.child_by_field_name("name")
                words.append(Word(self.text(name) if name else ""))
                value = child.child_by_field_name("value")
                self.hook(refers and value is not None and refers_to_hook(self.text(value)), node)
                continue
            parts.append(child)
            if child.is_named and not child.type.endswith("_redirect"):
                words += Expander(self.variables).words(child)
                refers = refers or any(_REFERENCE.match(word.text) for word in words[-MAX_FIELDS:])
                self.variables.forget(words[-1].text.partition("=")[0])
                if any(_NUMERIC.match(word.text) for word in words[-MAX_FIELDS:]):  # `declare -i n=$x`
                    self.sums.computes(self.text(node), self.at(node))
                # `local PATH` has no value: from here on, programs are searched for in the current directory.
                self.hook(words[-1].text == "PATH" and words[0].text in ("local", "declare", "typeset"), child)
        self.run(tuple(words), self.at(node), self.written(redirections(node)))
        return parts

    # Commands

    def simple(self, node: Node) -> Items:
        """Handle a simple command, for all values that its variables may have."""
        text, redirects = self.text(node), self.attached.pop(node.id, [])
        # Not with a redirection directly after it: its descriptor may be part of this text.
        adjoined = redirects and redirects[0].start_byte == node.end_byte
        if LINE.match(text) and not adjoined and not node.has_error:
            self.report_readings(node, self.readings(lambda expander: expander.line(text)), redirects)
            return ()
        prefixes: list[Node] = []
        parts: list[Node] = []
        for child in node.named_children:
            kind = child.type
            (prefixes if kind == "variable_assignment" else redirects if kind in _REDIRECTS else parts).append(child)
        if redirects:
            # In `bash 0<f` and `exec {fd}<f` the grammar parses the descriptor as an argument.
            starts = {redirect.start_byte for redirect in redirects}
            parts = [p for p in parts if not (p.end_byte in starts and _DESCRIPTOR.match(self.text(p)))]
        for prefix in prefixes:
            self.assign(prefix, self.text(parts[0]) if parts else "")
        readings = self.readings(lambda expander: tuple([word for part in parts for word in expander.words(part)]))
        self.report_readings(node, readings, redirects)
        if not _RUNS_SOMETHING.search(text) and not node.has_error:
            return ()  # like most commands, it contains no substitution
        # The assignments before a command don't apply to the rest of the script, so only their parts are visited.
        inside = [child for prefix in prefixes for child in prefix.children]
        return inside + [child for child in node.children if child.type != "variable_assignment"]

    def report_readings(self, node: Node, readings: Sequence[tuple[Word, ...]], redirects: Sequence[Node]) -> None:
        """Report a command in each of its readings, with its redirections."""
        outer, writes = self.feed, []
        if redirects:
            self.feed = self.redirected(redirects) or outer
            writes = self.written(redirects, node)
        at = self.at(node)
        for words in dict.fromkeys(readings) if len(readings) > 1 else readings:
            self.run(words, at, writes)
        # `exec < file` applies to the rest of the script.
        lasts = redirects and all(len(words) == 1 and words[0].text == "exec" for words in readings)
        self.feed = self.feed if lasts else outer

    def readings(self, one: Callable[[Expander], tuple[Word, ...]]) -> list[tuple[Word, ...]]:
        """Return the words of a command for all values that its variables may have. `one` expands the words for one
        choice of values."""
        first = Expander(self.variables)
        readings = [one(first)]
        if not first.seen and not first.prompts:
            return readings
        readings += (one(Expander(self.variables, picks)) for picks in combinations(first.seen))
        if first.open:
            known = self.variables.values.items()
            arguments = Variables({})
            for name in [name for name, values in known if any(word.argument for value in values for word in value)]:
                arguments.set(name, [unknown_argument()])
            readings.append(one(Expander(arguments)))
        for prompt in first.prompts:
            self.trait("shell.dynamic-code", self.at(prompt))
        return readings

    def test(self, node: Node) -> Items:
        """Handle a test. In `[[ 'a[$(rm x)]' -eq 0 ]]` the comparison runs the subscript, although it is quoted."""
        if SUBSCRIPT.search(self.text(node)):
            self.trait("shell.dynamic-code", self.at(node))
        if self.text(node).startswith("[["):
            self.sums.compares(self.text(node), self.at(node))
        return node.children

    def subscript(self, node: Node) -> Items:
        """Handle a subscript. Bash reads it as if in double quotes, so `${a['$(rm x)']}` runs rm."""
        if _QUOTED_SUBSTITUTION.search(self.text(node)):
            self.trait("shell.dynamic-code", self.at(node))
        if (index := node.child_by_field_name("index")) is not None and self.text(index) not in ("@", "*"):
            self.sums.computes(self.text(index), self.at(node))
        return self.arithmetic(node)

    def failed(self, node: Node) -> Items:
        """Handle text that the parser couldn't parse: report whatever looks like a command."""
        at, text = self.at(node), self.text(node)
        self.trait("shell.parse-error", at)
        # If a command begins with `{rm,-rf,/}`, the grammar takes the brace for a group.
        if found := re.match(r"\{[^\s{};&|]*[,.][^\s;&|]*", text):
            words = [Word(word, built=True) for word in expand_braces(found.group())]
            self.run((*words, *(Word(rest) for rest in text[found.end() :].split()[:MAX_FIELDS])), at)
        for piece in re.split(r"[;&|\n(){}]+", text)[:MAX_FIELDS]:
            plain = tuple(Word(word) for word in re.sub(r"['\"\\]", "", piece).split()[:MAX_FIELDS])
            if plain and re.match(r"[\w./~-]+\Z", plain[0].text):
                self.run(plain, at)
        return node.children

    # Arithmetic, and expansions that set a variable

    def arithmetic(self, node: Node) -> Sequence[Node]:
        """Handle arithmetic. Each part of a long sum is a node, too, but the text is checked only once."""
        if node.end_byte > self.checked_until:
            self.checked_until = node.end_byte
            self.hook(sum_sets_hook(self.text(node)), node)
            if node.type == "arithmetic_expansion" or self.data.startswith(b"((", node.start_byte):
                self.sums.computes(self.text(node), self.at(node))
        return node.children

    def compound(self, node: Node) -> Sequence[Node]:
        """Handle `{ … }` and `((…))`, which the grammar gives the same type."""
        return self.arithmetic(node) if self.data.startswith(b"((", node.start_byte) else node.children

    def expansion(self, node: Node) -> Sequence[Node]:
        """Handle `${…}`, which may set a variable or evaluate arithmetic."""
        self.hook(expansion_sets_hook(self.text(node)), node)
        self.sums.expands(self.text(node), self.at(node))
        return node.children

    def hook(self, found: bool, node: Node) -> None:
        """Report that a hook is set (see `variables`), if one was found."""
        if found:
            self.trait("shell.environment-hook", self.at(node))

    def searched(self, name: str, values: Sequence[Value], raw: str, node: Node) -> None:
        """Report a new value of PATH or PYTHONPATH. If the only unknown part is the old value (`$PATH`), leave that
        out."""
        own = not re.search(r"[$`]", re.sub(r"\$\{?(?:(?:PYTHON)?PATH|HOME|PWD)\b\}?", "", raw))
        for value in values:
            parts = merge(value).text.split(":")
            path = ":".join(part for part in parts if not own or part != UNKNOWN)
            self.facts.append(Searched(path=path, modules=name != "PATH", text=self.at(node)["text"]))


_HANDLERS: Mapping[str, Callable[[_Reader, Node], Items]] = {
    "command": _Reader.simple,
    "redirected_statement": _Reader.statement,
    "pipeline": _Reader.pipeline,
    "list": _Reader.sequence,
    "if_statement": _Reader.branches,
    "case_statement": _Reader.branches,
    "for_statement": _Reader.loop,
    "c_style_for_statement": _Reader.loop,
    "while_statement": _Reader.loop,
    "function_definition": _Reader.function,
    "subshell": _Reader.substitution,
    "command_substitution": _Reader.substitution,
    "process_substitution": _Reader.substitution,
    "variable_assignment": _Reader.assignment,
    "declaration_command": _Reader.declaration,
    "unset_command": _Reader.declaration,
    "file_redirect": _Reader.redirect,
    "test_command": _Reader.test,
    "subscript": _Reader.subscript,
    "compound_statement": _Reader.compound,
    "expansion": _Reader.expansion,
    "ERROR": _Reader.failed,
    **dict.fromkeys(("arithmetic_expansion", "binary_expression", "unary_expression"), _Reader.arithmetic),
    **dict.fromkeys(("postfix_expression", "ternary_expression"), _Reader.arithmetic),
} | dict.fromkeys((";", "&&", "||", "|", "|&", "&", "`", "$("), _Reader.operator)
