"""Which changes a run made that nobody had declared."""

from __future__ import annotations

from collections.abc import Sequence

from ..backends.collect import Patterns, wanted
from ..models import Change


def unexpected(changes: Sequence[Change], declared: Sequence[str]) -> tuple[Change, ...]:
    """The changes outside the declared paths, which are patterns as `outputs` takes them: `build/**`, `*.log`.

    What was moved has to be declared at both ends. `build/**` declares `build` itself, too; and a directory that is new
    is expected where it leads to something declared. Nothing declared means that nothing is expected.
    """
    wholes = [pattern.removesuffix("/**") for pattern in declared if pattern.endswith("/**")]
    patterns = [*declared, *wholes]

    def expected(change: Change) -> bool:
        if change.before is None and change.after is not None and change.after.kind == "directory":
            rest = Patterns(patterns)
            for name in change.path.split("/"):
                rest = rest.below(name)
            if rest:
                return True
        return all(wanted(path, patterns) for path in (change.path, change.old_path) if path)

    return tuple(change for change in changes if not expected(change))
