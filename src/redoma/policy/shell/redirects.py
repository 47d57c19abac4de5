"""Where a command's input comes from and its output goes: redirections, here-documents, pipes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..facts import UNKNOWN
from .commands import Commands, Feed, Place, normal
from .programs import is_network_path
from .source import HEREDOC_PATH, Heredoc, Source
from .words import Expander, Word, command_names, echoed
from .wrappers import search_roots

if TYPE_CHECKING:
    from tree_sitter import Node

LIVE = re.compile(r"(?<!\\)(?:\\\\)*(?:\$\(|`|[<>]\()")
"""The beginning of a substitution."""


_PRINTS = re.compile(r"[\\'\"]*(?:echo|printf|cat|tee|find)\b")


def redirections(node: Node) -> list[Node]:
    return [child for child in node.named_children if child.type.endswith("_redirect")]


class Redirects(Commands):
    """Commands of a parsed script."""

    def __init__(self, source: Source, depth: int, place: Place | None, *, constants: bool) -> None:
        super().__init__(depth, constants=constants)
        self.source = source
        self.place = place
        """Where all facts stand, when the script is itself a piece of another one."""
        self.data = source.text.encode("utf-8", "replace")
        self.ascii = len(self.data) == len(source.text)
        self.functions: set[str] = set()

    def text(self, node: Node) -> str:
        return self.data[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def at(self, node: Node) -> Place:
        if self.place is not None:
            return self.place
        if self.ascii and len(self.source.starts) == 1:
            row, column = node.start_point
            return row + 1, column + 1, self.text(node)[:200]
        offset = node.start_byte if self.ascii else len(self.data[: node.start_byte].decode("utf-8", "replace"))
        line, column = self.source.position(offset)
        return line, column, self.text(node)[:200]

    def expand(self, node: Node) -> Word:
        return Expander(self.variables).text(node)

    def output(self, segment: Node) -> str | None:
        """What a segment of a pipeline prints, for the few where that is plain to see."""
        if not _PRINTS.match(self.text(segment)):
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
        if redirects and any(self.written(redirects, None, quiet=True)):
            return None
        if name == "find":
            # Not what it prints, but where all of it lies: enough to judge `find / | xargs rm`.
            words = [word.text for part in parts[1:] for word in Expander(self.variables).words(part)]
            return " ".join(search_roots(words))
        return echoed(body, Expander(self.variables))

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
        return Feed(self.files.get(path, "" if UNKNOWN not in path else None))

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

        root = parse(document.as_string().encode("utf-8", "replace"))
        strings = [part for child in root.named_children for part in child.named_children if part.type == "string"]
        if len(strings) != 1:
            return Feed(UNKNOWN, command_names(document.body))
        word = self.expand(strings[0])
        return Feed(word.text, word.makers - {""})

    def written(self, redirects: Iterable[Node], content: str | None, *, quiet: bool = False) -> list[str]:
        """The paths that redirections write to; what is known of their new content is remembered."""
        paths = []
        for redirect in redirects:
            destination = redirect.child_by_field_name("destination")
            if redirect.type != "file_redirect" or destination is None:
                continue
            operator = next((child.type for child in redirect.children if not child.is_named), "")
            word = self.expand(destination)
            if is_network_path(word.text) and not quiet:
                self.trait("shell.network-redirect", self.at(redirect))
            if operator.startswith("<") or ("&" in operator and re.fullmatch(r"\d+-?|-", word.text)):
                continue
            path = normal(word.text, self.cwd())
            paths.append(path)
            if not quiet:
                self.files[path] = None if operator.endswith(">>") else content
        return paths

    def redirect(self, node: Node) -> Sequence[Node]:
        """What a here-document runs on the way is read where its redirection stands."""
        destination = node.child_by_field_name("destination")
        path = self.text(destination) if destination is not None else ""
        document = self.document(path) if path.startswith(HEREDOC_PATH) else None
        if document and document.expands and LIVE.search(document.body):
            self.nested("shell", document.as_string(), self.at(node), "<<")
        return node.children

    def document(self, path: str) -> Heredoc | None:
        number = path[len(HEREDOC_PATH) :]
        if number.isdecimal() and len(number) < 9 and int(number) < len(self.source.heredocs):
            return self.source.heredocs[int(number)]
        return None
