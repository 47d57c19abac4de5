"""Decide which changes to apply, and in which steps. Pure: nothing is read or written.

An undo has the same steps with before and after exchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..lib.errors import WorkspaceError
from ..models import Change
from .diffs import shown
from .journal import Step, is_directory
from .protected import named
from .tree import with_parents

NOT_CHOSEN = "it was not chosen"


def steps(changes: Iterable[tuple[int, Change]], *, back: bool, owners: dict[str, tuple[int, int]]) -> tuple[Step, ...]:
    """Return the steps that apply these changes or, with `back`, undo them, in an order in which each can be done.

    Each change comes with its number, which is the name of the backup of its old content. `owners` maps paths to the
    user and group of what an undo restores.
    """
    found = []
    for number, change in changes:
        halves = [(change.path, change.before, change.after)]
        if change.old_path:
            halves = [(change.old_path, change.before, None), (change.path, None, change.after)]
        for path, before, after in halves:
            if back:
                source = f"old/{number}" if before and before.kind == "file" else ""
                found.append(Step(path=path, before=after, after=before, source=source, owner=owners.get(path)))
            else:
                source = f"new/{after.sha256}" if after and after.kind == "file" else ""
                backup = f"old/{number}" if before and before.kind == "file" else ""
                like = change.old_path if before is None else ""
                found.append(Step(path=path, before=before, after=after, source=source, backup=backup, like=like))
    return tuple(sorted(found, key=_order))


def _order(step: Step) -> tuple[int, int, str]:
    """Sort key: first removals, bottom up; then new directories, top down; then files; and last modes, bottom up, since
    they may make a directory inaccessible.
    """
    depth = step.path.count("/")
    if step.kind == "mode":
        return 3, -depth, step.path
    if step.kind == "remove" or step.empties:
        return 0, -depth, step.path
    return (1 if is_directory(step.after) else 2), depth, step.path


def choose(
    changes: Sequence[Change],
    applied: Iterable[str],
    paths: Sequence[str] | None,
    names: Sequence[str],
    *,
    exact: bool = False,
) -> tuple[list[int], dict[str, str]]:
    """Choose the changes to apply. Returns their numbers, and for the others path → why it is left out.

    `applied` are paths that were applied before. `paths` are the paths to choose: of changes, or of directories for
    everything below them; None for all. If `exact`, a path means that change alone, because a person was asked about
    each. Protected paths are left out unless they match a pattern in `names`.

    Changed directories that contain a chosen change are chosen, too; if `exact`, only new ones. A change is left out if
    it depends on one that is left out: a directory isn't removed while something in it stays. Raises `WorkspaceError`
    if one of the `paths` is protected and not named, or if no change has it.
    """
    done = set(applied)
    waiting = {change.path: number for number, change in enumerate(changes) if change.path not in done}
    wanted = _picked(changes, waiting, paths, exact)
    left = {path: NOT_CHOSEN for path in waiting if path not in wanted}
    for path in list(wanted):
        change = changes[waiting[path]]
        if change.protected and not named(path, names):
            if paths is not None and path in paths:
                raise WorkspaceError(
                    f"{shown(path)} is protected",
                    why=change.protected,
                    next=f"name it to apply it: --allow {shown(path)}",
                )
            wanted.remove(path)
            left[path] = change.protected
    _complete(changes, waiting, wanted, left, exact)
    return sorted(waiting[path] for path in wanted), {path: why for path, why in left.items() if path not in wanted}


def _picked(changes: Sequence[Change], waiting: dict[str, int], paths: Iterable[str] | None, exact: bool) -> set[str]:
    if paths is None:
        return set(waiting)
    asked = {path.rstrip("/") for path in paths}
    picked, met = set(), set()
    for path, number in waiting.items():
        places = {path} if exact else {*with_parents(path), *with_parents(changes[number].old_path)}
        if places & asked:
            picked.add(path)
            met |= places
    if unknown := asked - met:
        raise WorkspaceError(
            f"nothing that waits to be applied is at {', '.join(map(shown, sorted(unknown)))}",
            why="these changes have no such path, or it was applied before",
            next="use paths as they are shown with the changes",
        )
    return picked


def _complete(
    changes: Sequence[Change], waiting: dict[str, int], wanted: set[str], left: dict[str, str], exact: bool
) -> None:
    """Add the directories that chosen changes need; drop changes that depend on something left out."""
    about = {path: changes[number] for path, number in waiting.items()}
    for path in list(wanted):
        for place in [place for place in with_parents(path) if place in about and place not in wanted]:
            # A protected directory is added only for a path that is itself protected and named.
            needed = left[place] == NOT_CHOSEN or (about[path].protected and about[place].before is None)
            declined = exact and is_directory(about[place].before)  # it exists: only its mode would change
            if needed and not declined and is_directory(about[place].after):
                wanted.add(place)
    while True:
        leave = {}
        for path in [path for path in left if path not in wanted]:
            for place in with_parents(about[path].old_path or (path if about[path].before else "")):
                if place in wanted and not is_directory(about[place].after):
                    leave[place] = f"{shown(path)} is left, which was in it"
        for path in wanted:
            for place in with_parents(path):
                if (
                    about[path].after
                    and place in left
                    and place not in wanted
                    and not is_directory(about[place].before)
                ):
                    leave[path] = f"its directory {shown(place)} is left"
        if not leave:
            return
        wanted.difference_update(leave)
        left.update(leave)
