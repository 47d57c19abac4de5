"""Two ends of a run side by side. Pure: both are outcomes as the audit log has them."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

_MOST_LINES = 200  # of a diff
_SHOWN = 200  # characters
_CUT = 8192  # characters that the record has of a result


class Field(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that both have."""

    name: str
    state: Literal["same", "different", "unknown", "measured"]
    """`unknown`: the record doesn't have it. `measured`: it is never twice the same, and no difference."""
    before: str = ""
    after: str = ""
    diff: str = ""
    """Unified, where the text of both is at hand."""


def compared(before: dict[str, Any], after: dict[str, Any]) -> tuple[Field, ...]:
    return (*_ending(before, after), *_printed(before, after), *_left(before, after), *_used(before, after))


def _field(name: str, before: Any, after: Any, *, same: bool | None = None, diff: str = "") -> Field:
    equal = before == after if same is None else same
    return Field(
        name=name, state="same" if equal else "different", before=_shown(before), after=_shown(after), diff=diff
    )


def _shown(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _ending(before: dict[str, Any], after: dict[str, Any]) -> Iterator[Field]:
    yield _field("status", before.get("status"), after.get("status"))
    for name in ("exit_code", "exception", "error", "mismatch"):
        if name == "exception" and "stdout" not in before:
            continue  # from before it was recorded
        if before.get(name) is not None or after.get(name) is not None:
            yield _field(name, before.get(name), after.get(name))


def _printed(before: dict[str, Any], after: dict[str, Any]) -> Iterator[Field]:
    if "stdout" not in before:  # a record that has no more than the beginning of one of them
        was, now = str(before.get("result") or ""), str(after.get("result") or "")
        if was == now and len(was) >= _CUT:
            yield Field(name="result", state="unknown", before=_shown(was), after=_shown(now))
        elif was or now:
            yield _field("result", was, now, diff="" if was == now else _diff(was, now))
        return
    if "value" in before or "value" in after:
        was, now = (str(each.get("result") or "") if "value" in each else "" for each in (before, after))
        same = before.get("value") == after.get("value")
        yield _field("value", was, now, same=same, diff="" if same or "\n" not in was + now else _diff(was, now))
    for stream in ("stdout", "stderr"):
        yield from _stream(stream, before, after)


def _stream(stream: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[Field]:
    """All of it where it was kept, else what the result had of it."""
    was, now = ({**each[stream], **each.get("artifacts", {}).get(stream, {})} for each in (before, after))
    if not was["size"] and not now["size"]:
        return
    same = (was["size"], was.get("sha256")) == (now["size"], now.get("sha256"))
    texts = [_text(stream, each) for each in (before, after)]
    diff = "" if same else _diff(*texts)
    if not same and not diff:
        diff = "(what the record has of it is the same; it differs further on)\n"
    sizes = [f"{each['size']:,} characters" for each in (was, now)]
    yield _field(stream, sizes[0], sizes[1], same=same, diff=diff)


def _text(stream: str, outcome: dict[str, Any]) -> str:
    """What an outcome has of a stream, cut at the same place for both."""
    text = outcome[stream].get("text")
    if text is None:
        text = outcome.get("result") if stream == "stdout" and "value" not in outcome else ""
    return str(text or "")


def _left(before: dict[str, Any], after: dict[str, Any]) -> Iterator[Field]:
    """Files, and changes to a project."""
    if before.get("files") or after.get("files"):
        names = [_listed(each.get("files", ())) for each in (before, after)]
        yield _field("files", *names, same=before.get("files", []) == after.get("files", []))
    was, now = before.get("effect"), after.get("effect")
    if was is None and now is None:
        return
    told = [_counted(each) for each in (was, now)]
    paths = [(each or {}).get("paths") for each in (was, now)]
    if was is not None and paths[0] is None:  # from before they were recorded
        yield _field("changes", *told, same=was["digest"] == (now or {}).get("digest"))
    else:
        lines = ["".join(f"{' | '.join(map(str, path))}\n" for path in each or ()) for each in paths]
        counts = [(each or {}).get("changes", 0) for each in (was, now)]
        same = paths[0] == paths[1] and counts[0] == counts[1]
        yield _field("changes", *told, same=same, diff="" if same else _diff(*lines))


def _listed(files: Any) -> str:
    return ", ".join(f"{file['name']} ({file['size']} bytes)" for file in files)


def _counted(effect: dict[str, Any] | None) -> str:
    return "" if effect is None else f"{effect['changes']} changed"


def _used(before: dict[str, Any], after: dict[str, Any]) -> Iterator[Field]:
    for name, key, unit, scale in (
        ("time", "duration", "ms", 1000.0),
        ("cpu", "cpu", "ms", 1000.0),
        ("memory", "memory_used", "MiB", 1 / (1 << 20)),
    ):
        was, now = (
            f"{each[key] * scale:.1f} {unit}" if isinstance(each.get(key), int | float) else ""
            for each in (before, after)
        )
        if was or now:
            yield Field(name=name, state="measured", before=was, after=now)


def _diff(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "recorded", "replayed", lineterm="")
    kept = [line for _, line in zip(range(_MOST_LINES + 1), lines, strict=False)]
    if len(kept) > _MOST_LINES:
        kept[-1] = "[… and more]"
    return "".join(f"{line}\n" for line in kept)
