"""Parts of a script that set a variable on the way: arithmetic and expansions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..facts import UNKNOWN, Searched
from .redirects import Redirects
from .variables import expansion_sets_hook, sum_sets_hook
from .words import Value, merge

if TYPE_CHECKING:
    from tree_sitter import Node


class Hooks(Redirects):
    """Reports those that may make a later, innocent command run something else."""

    summed = 0
    """Where the last arithmetic that was looked at ends."""

    def sum(self, node: Node) -> Sequence[Node]:
        """Arithmetic. Its parts are parts of the text that was looked at already: a long sum is a deep tree."""
        if node.end_byte > self.summed:
            self.summed = node.end_byte
            self.hook(sum_sets_hook(self.text(node)), node)
        return node.children

    def compound(self, node: Node) -> Sequence[Node]:
        return self.sum(node) if self.data.startswith(b"((", node.start_byte) else node.children

    def expansion(self, node: Node) -> Sequence[Node]:
        self.hook(expansion_sets_hook(self.text(node)), node)
        return node.children

    def hook(self, found: bool, node: Node) -> None:
        if found:
            self.trait("shell.environment-hook", self.at(node))

    def searched(self, name: str, values: Sequence[Value], raw: str, node: Node) -> None:
        """Programs are looked for elsewhere: beside where they are anyway, if `$PATH` is all that isn't known of it."""
        own = not re.search(r"[$`]", re.sub(r"\$\{?(?:(?:PYTHON)?PATH|HOME|PWD)\b\}?", "", raw))
        for value in values:
            parts = merge(value).text.split(":")
            path = ":".join(part for part in parts if not own or part != UNKNOWN)
            self.facts.append(Searched(path=path, modules=name != "PATH", text=self.at(node)[2]))
