"""Where a command's input comes from and its output goes: redirections, here-documents, pipes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..facts import UNKNOWN
from .commands import Commands, Feed, Place, Work, normal
from .programs import is_network_path
from .source import HEREDOC_PATH, Heredoc, Source, parseable
from .variables import EXPANSION
from .words import LINE, Expander, Word, command_names, echoed
from .wrappers import search_roots

if TYPE_CHECKING:
    from tree_sitter import Node

LIVE = re.compile(r"(?<!\\)(?:\\\\)*(?:\$\(|`|[<>]\()")
"""The beginning of a substitution."""


_DESCRIPTOR = re.compile(r"(?:\d+-?|-)\Z")
_PRINTS = re.compile(r"[\\'\"]*(?:echo|printf|cat|tee|find)\b")


def redirections(node: Node) -> list[Node]:
    return [child for child in node.named_children if child.type.endswith("_redirect")]


class Redirects(Commands):
    """Commands of a parsed script."""

    def __init__(
        self,
        source: Source,
        depth: int,
        place: Place | None,
        feed: Feed | None = None,
        *,
        constants: bool,
        work: Work | None = None,
    ) -> None:
        super().__init__(depth, feed, constants=constants, work=work)
        self.source = source
        self.place = place
        """Where all facts stand, when the script is itself a piece of another one."""
        self.data = parseable(source.text)
        self.ascii = source.text.isascii()
        self.verbatim = self.ascii and len(source.starts) == 1
        """Whether positions in the text that was parsed are those in the original."""
        self.functions: set[str] = set()

    def text(self, node: Node) -> str:
        if self.ascii:  # offsets in bytes are offsets in characters
            return self.source.text[node.start_byte : node.end_byte]
        return self.data[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def at(self, node: Node) -> Place:
        if self.place is not None:
            return self.place
        if self.verbatim:
            row, column = node.start_point
            return row + 1, column + 1, self.text(node)[:200]
        offset = node.start_byte if self.ascii else len(self.data[: node.start_byte].decode("utf-8", "replace"))
        line, column = self.source.position(offset)
        return line, column, self.text(node)[:200]

    def expand(self, node: Node) -> Word:
        return Expander(self.variables).text(node)

    def output(self, segment: Node) -> str | None:
        """What a segment of a pipeline prints, for the few where that is plain to see."""
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
        # Not what it prints, but where all of it lies: enough to judge `find / | xargs rm`.
        return " ".join(search_roots([word.text for word in words[1:]]))

    def redirected(self, redirects: Iterable[Node]) -> Feed | None:
        """Standard input as redirected here; None when it is not."""
        feed = None
        for redirect in redirects:
            if redirect.type == "herestring_redirect" and redirect.named_children:
                word = self.expand(redirect.named_children[-1])
                feed = Feed(word.text + "\n", word.makers)
            elif redirect.type == "file_redirect" and any(child.type == "<" for child in redirect.children):
                feed = self.read_from(redirect) or feed
        return feed

    def read_from(self, redirect: Node) -> Feed | None:
        destination = redirect.child_by_field_name("destination")
        if destination is None:
            return None
        word = self.expand(destination)
        if word.text.startswith(HEREDOC_PATH):
            return self.heredoc(word.text)
        if word.makers:
            return Feed(word.content, word.makers)
        # Like the same file as an operand: only what this script itself wrote there is known, or suspect.
        path = normal(word.text, self.cwd())
        text = self.files.get(path, "" if UNKNOWN not in path else None)
        return Feed(text, file=self.file(word, "script", (), self.at(redirect)))

    def heredoc(self, path: str) -> Feed:
        """The text of a here-document, with UNKNOWN for what it expands."""
        document = self.document(path)
        if document is None:
            return Feed(None)
        if not document.expands or not re.search(r"[$`\\]", document.body):
            return Feed(document.body)
        if simple := Expander(self.variables).simple(document.body):
            return Feed(simple.text, simple.makers - {""})
        from .reader import parse

        root = parse(parseable(document.as_string()))
        strings = [part for child in root.named_children for part in child.named_children if part.type == "string"]
        if len(strings) != 1:
            return Feed(UNKNOWN, command_names(document.body))
        word = self.expand(strings[0])
        return Feed(word.text, word.makers - {""})

    def written(self, redirects: Iterable[Node], writer: Node | None = None, *, quiet: bool = False) -> list[str]:
        """The paths that redirections write to; what is known of their new content is remembered."""
        paths: dict[str, bool] = {}
        for redirect in redirects:
            destination = redirect.child_by_field_name("destination")
            if redirect.type != "file_redirect" or destination is None:
                continue
            operator = next((child.type for child in redirect.children if not child.is_named), "")
            word = self.expand(destination)
            if is_network_path(word.text) and not quiet:
                self.trait("shell.network-redirect", self.at(redirect))
            if "&" in operator and _DESCRIPTOR.match(word.text):
                continue
            if not quiet:
                self.defer((Word(":"), word), self.at(redirect), writes=not operator.startswith("<"))
            if operator.startswith("<"):
                if not quiet and not word.makers and not word.text.startswith(HEREDOC_PATH):
                    self.emit(":", (normal(word.text, self.cwd()),), (), (), self.at(redirect))
                continue
            paths[normal(word.text, self.cwd())] = operator.endswith(">>")
        if paths and not quiet:
            content = self.output(writer) if writer is not None else None
            self.files.update((path, None if appended else content) for path, appended in paths.items())
        return list(paths)

    def redirect(self, node: Node) -> Sequence[Node]:
        """What a here-document runs on the way is read where its redirection stands."""
        destination = node.child_by_field_name("destination")
        path = self.text(destination) if destination is not None else ""
        document = self.document(path) if path.startswith(HEREDOC_PATH) else None
        if document and document.expands and (LIVE.search(document.body) or EXPANSION.search(document.body)):
            self.nested("shell", document.as_string(), self.at(node), "<<")
        return node.children

    def document(self, path: str) -> Heredoc | None:
        number = path[len(HEREDOC_PATH) :]
        if number.isdecimal() and len(number) < 9 and int(number) < len(self.source.heredocs):
            return self.source.heredocs[int(number)]
        return None
