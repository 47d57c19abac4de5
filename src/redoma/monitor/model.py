"""The data of a check, from a file to a report. Frozen; who reads files, asks the machine or keeps a history is
elsewhere in this room."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from ..models import KiB

Facts = dict[str, Any]
"""By the name of the collector; plain data, as JSON has it."""
NAME = r"^[a-z][a-z0-9_]{0,63}\Z"
Name = Annotated[
    str, msgspec.Meta(pattern=NAME, extra={"expected": "a name of small letters, digits and `_` that begins with one"})
]
"""Of a collector or a check: also a variable in a rule."""
Seconds = Annotated[float, msgspec.Meta(ge=0, le=31_536_000, extra={"unit": "seconds"})]
"""In a file also with a unit: `90`, `5m`, `1h`."""
Text = Annotated[str, msgspec.Meta(min_length=1)]


class State(enum.IntEnum):
    """How it stands, by the numbers that monitoring plugins exit with."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3

    @property
    def word(self) -> str:
        return self.name.lower()

    @property
    def urgency(self) -> int:
        """For sorting, and for the state of the whole: what is not known is worse than a warning, and no emergency."""
        return (State.OK, State.WARNING, State.UNKNOWN, State.CRITICAL).index(self)


class Remedy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command that may mend it: judged by policy and, where that asks, by a person. A pinned approval lets it run
    unattended."""

    run: Text
    """The executor that runs it, as `namespace:name`."""
    command: Text
    after: Seconds = 0.0
    """Seconds that it has to be warning or critical first."""
    again: Seconds = 3600.0
    """Seconds until it may be tried again."""


class Check(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule, and what follows from it."""

    name: Name
    rule: Text
    """Python over the facts; the value of its last expression is the answer: false is ok, true is `severity`, a text
    is `severity` with that message, and `{"state": …, "message": …}` says both."""
    severity: Literal["warning", "critical"] = "warning"
    message: str = ""
    """What to say when it is not ok, as the text of an f-string over the facts; made in the sandbox, too."""
    lasting: Seconds = msgspec.field(default=0.0, name="for")
    """Seconds that the rule must have found it before the state changes (`for` in the file)."""
    notify: tuple[str, ...] | None = None
    """Whom to tell, by name; None is everybody."""
    remedy: Remedy | None = None
    about: str = ""
    """A line for people: what it looks at, and why."""


class _Probe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """A collector of something beside the machine's own facts."""


class FileProbe(_Probe, frozen=True, kw_only=True, tag="file"):
    """`exists`, `size`, `age` in seconds; with a pattern `matches` and the last `lines` that match."""

    path: Path
    tail: Annotated[int, msgspec.Meta(ge=1, le=16 * 1024 * KiB)] = 64 * KiB
    """Bytes at its end in which the pattern is looked for."""
    pattern: Text | None = None
    """RE2."""


class HttpProbe(_Probe, frozen=True, kw_only=True, tag="http"):
    """`ok`, `status`, `seconds`, `size`, `body` and `error`."""

    url: Text
    timeout: Annotated[float, msgspec.Meta(ge=0.1, le=60, extra={"unit": "seconds"})] = 5.0
    expect: Text | None = None
    """RE2 that the beginning of the body must match for it to be `ok`."""


class TcpProbe(_Probe, frozen=True, kw_only=True, tag="tcp"):
    """`open`, `seconds` and `error`."""

    host: Text
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    timeout: Annotated[float, msgspec.Meta(ge=0.1, le=60, extra={"unit": "seconds"})] = 2.0


class CommandProbe(_Probe, frozen=True, kw_only=True, tag="command"):
    """`exit_code`, `stdout`, `stderr` and `seconds` of a command on the list of a configured executor."""

    run: Text
    command: Text
    timeout: Annotated[float, msgspec.Meta(ge=0.1, le=60, extra={"unit": "seconds"})] = 30.0


Probe = FileProbe | HttpProbe | TcpProbe | CommandProbe


class _Notifier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """Somebody to tell when a state changes."""

    repeat: Seconds = 0.0
    """Seconds until a state that stays is told again; 0: it is told once."""
    recovery: bool = True
    """Whether to tell that it is ok again, too."""


class WebhookNotifier(_Notifier, frozen=True, kw_only=True, tag="webhook"):
    url: Text


class CommandNotifier(_Notifier, frozen=True, kw_only=True, tag="command"):
    """A command on the list of a configured executor, which gets the notice as JSON on its standard input."""

    run: Text
    command: Text


Notifier = WebhookNotifier | CommandNotifier


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked at, how it is judged, and who is told."""

    checks: tuple[Check, ...]
    collect: dict[str, Probe] = {}
    notify: dict[str, Notifier] = {}
    interval: float = 60.0
    history: float = 30 * 86400.0
    """Seconds that anything is remembered."""
    source: str = ""
    """The file it comes from; empty for the ready-made checks alone."""
    trusted: bool = True
    """Whether the user named it, put it among their own, or trusted it. Else it was only found."""
    notices: tuple[str, ...] = ()
    """Sentences the user should see, such as that a file has no effect and why."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of a check from one round to the next."""

    state: State
    since: float
    """Unix time since when it is that."""
    bad_since: float = 0.0
    """Since when its rule finds something; 0: it finds nothing. What is unknown neither starts it nor ends it."""


class Deed(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was done, or tried, because of a check: telling somebody, or mending it."""

    time: float
    kind: Literal["notice", "remedy"]
    check: str
    name: str
    """Of whom was told, or of the executor that ran it."""
    state: State
    """Of the check, when it was done."""
    ok: bool
    text: str
    """What came of it, for people."""
    run: str = ""
    """The id of its run in the audit log, where there was one."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one check."""

    check: str
    state: State
    message: str = ""
    sandbox: str = ""
    """The backend that evaluated the rule: `monty`, `jail`; empty if none did."""
    seconds: float = 0.0
    run: str = ""
    """The id of that run in the audit log."""
    found: State = State.OK
    """What the rule found, where `state` still waits for it to last."""
    since: float = 0.0
    """Unix time since when the state is this, as far as the history knows; 0 if there is none."""


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was found at one time."""

    time: float
    """Unix time."""
    host: str
    facts: Facts
    problems: dict[str, str] = {}
    """Collectors that could not do their part, and why. Their facts are None."""
    verdicts: tuple[Verdict, ...] = ()
    deeds: tuple[Deed, ...] = ()
    """What was done because of them, in this round."""

    @property
    def state(self) -> State:
        return max((verdict.state for verdict in self.verdicts), key=lambda state: state.urgency, default=State.UNKNOWN)

    @property
    def told(self) -> dict[str, Any]:
        """As JSON has it, with states in words."""
        parts = {"verdicts": list(map(worded, self.verdicts)), "deeds": list(map(worded, self.deeds))}
        return {**msgspec.structs.asdict(self), "state": self.state.word, **parts}


def worded(item: msgspec.Struct) -> dict[str, Any]:
    """As JSON has it, with states in words."""
    return {
        name: value.word if isinstance(value, State) else value for name, value in msgspec.structs.asdict(item).items()
    }
