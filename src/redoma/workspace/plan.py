"""Decide which changes to apply, and in which steps. Pure: nothing is read or written.

An undo has the same steps with before and after exchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..lib.errors import WorkspaceError
from ..models import Change
from .diffs import shown
from .journal import Step, is_directory
from .protected import named
from .tree import parents, with_parents

NOT_CHOSEN = "it was not chosen"


def steps(changes: Iterable[tuple[int, Change]], *, back: bool, owners: dict[str, tuple[int, int]]) -> tuple[Step, ...]:
    """Return the steps that apply these changes or, with `back`, undo them, in an order in which each can be done.

    Each change comes with its number, which is the name of the backup of its old content. `owners` maps paths to the
    user and group of what an undo restores.
    """
    steps = []
    for number, change in changes:
        halves = [(change.path, change.before, change.after)]
        if change.old_path:
            halves = [(change.old_path, change.before, None), (change.path, None, change.after)]
        for path, before, after in halves:
            if back:
                source = f"old/{number}" if before and before.kind == "file" else ""
                steps.append(Step(path=path, before=after, after=before, source=source, owner=owners.get(path)))
            else:
                source = f"new/{after.sha256}" if after and after.kind == "file" else ""
                backup = f"old/{number}" if before and before.kind == "file" else ""
                like = change.old_path if before is None else ""
                steps.append(Step(path=path, before=before, after=after, source=source, backup=backup, like=like))
    return tuple(sorted(steps, key=_order))


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
    waiting = {change.path: change for change in changes if change.path not in done}
    chosen = _named_by(paths, waiting, exact)
    left = {path: NOT_CHOSEN for path in waiting if path not in chosen}
    for path in sorted(chosen):
        change = waiting[path]
        if change.protected and not named(path, names):
            if paths is not None and path in paths:
                raise WorkspaceError(
                    f"{shown(path)} is protected",
                    why=change.protected,
                    next=f"name it to apply it: --allow {shown(path)}",
                )
            chosen.remove(path)
            left[path] = change.protected
    _add_directories(waiting, chosen, left, exact)
    while dependent := dict(_dependent(waiting, chosen, left)):
        chosen.difference_update(dependent)
        left.update(dependent)
    return [number for number, change in enumerate(changes) if change.path in chosen], left


def _named_by(paths: Iterable[str] | None, waiting: dict[str, Change], exact: bool) -> set[str]:
    """Return the paths of the changes that `paths` name. Raises `WorkspaceError` for a path that names none."""
    if paths is None:
        return set(waiting)
    unused = wanted = {path.rstrip("/") for path in paths}
    chosen = set()
    for path, change in waiting.items():
        places = {path} if exact else {*with_parents(path), *with_parents(change.old_path)}
        if places & wanted:
            chosen.add(path)
            unused = unused - places
    if unused:
        raise WorkspaceError(
            f"nothing that waits to be applied is at {', '.join(map(shown, sorted(unused)))}",
            why="these changes have no such path, or it was applied before",
            next="use paths as they are shown with the changes",
        )
    return chosen


def _add_directories(waiting: dict[str, Change], chosen: set[str], left: dict[str, str], exact: bool) -> None:
    """Move the changed directories that contain a chosen change from `left` to `chosen`."""
    for path in list(chosen):
        for place in parents(path):
            if place not in left or not is_directory(waiting[place].after):
                continue
            # A protected directory is added only for a path that is itself protected and named.
            needed = left[place] == NOT_CHOSEN or (waiting[path].protected and waiting[place].before is None)
            declined = exact and is_directory(waiting[place].before)  # it exists: only its mode would change
            if needed and not declined:
                chosen.add(place)
                del left[place]


def _dependent(waiting: dict[str, Change], chosen: set[str], left: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the chosen changes that depend on one that is left out, each with the reason."""
    for path in left:
        old_path = waiting[path].old_path or (path if waiting[path].before else "")
        for place in with_parents(old_path):
            if place in chosen and not is_directory(waiting[place].after):
                yield place, f"{shown(path)} is left, which was in it"
    for path in chosen:
        for place in parents(path) if waiting[path].after else ():
            if place in left and not is_directory(waiting[place].before):
                yield path, f"its directory {shown(place)} is left"
