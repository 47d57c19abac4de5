"""The data of the monitor, from the plan in a file to a round with its verdicts. All frozen."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from ..models import KiB

Facts = dict[str, Any]
"""Plain data by the name of its collector."""
NAME = r"^[a-z][a-z0-9_]{0,63}\Z"
Name = Annotated[
    str, msgspec.Meta(pattern=NAME, extra={"expected": "a name of small letters, digits and `_` that begins with one"})
]
"""The name of a collector or a check; in rules, collectors are variables."""
Seconds = Annotated[float, msgspec.Meta(ge=0, le=31_536_000, extra={"unit": "seconds"})]
"""In a file also with a unit: `90`, `5m`, `1h`."""
Text = Annotated[str, msgspec.Meta(min_length=1)]


class State(enum.IntEnum):
    """The state of a check, numbered like the exit status of a monitoring plugin."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3

    @property
    def word(self) -> str:
        return self.name.lower()

    @property
    def urgency(self) -> int:
        """The order of urgency: ok, warning, unknown, critical."""
        return (State.OK, State.WARNING, State.UNKNOWN, State.CRITICAL).index(self)


class Remedy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command that may repair what a check found. Policy and, if policy prompts, a person must allow it; a pinned
    approval lets it run unattended.
    """

    run: Text
    """The executor that runs it, as `namespace:name`."""
    command: Text
    after: Seconds = 0.0
    """Seconds for which the check must have been warning or critical before the remedy is tried."""
    again: Seconds = 3600.0
    """Seconds until it may be tried again."""


class Check(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule, and what to do about its findings."""

    name: Name
    rule: Text
    """Python over the facts. The value of its last expression is the answer: false is ok, true is `severity`, a text is
    `severity` with that message, and `{"state": …, "message": …}` gives both.
    """
    severity: Literal["warning", "critical"] = "warning"
    message: str = ""
    """The message if it is not ok: the text of an f-string over the facts, also evaluated in the sandbox."""
    lasting: Seconds = msgspec.field(default=0.0, name="for")
    """Seconds for which the rule must find a problem before the state changes (`for` in the file)."""
    notify: tuple[str, ...] | None = None
    """The notifiers to use, by name; None means all."""
    remedy: Remedy | None = None
    about: str = ""
    """What the check looks at, and why, in one line."""


class _Probe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """Collects facts other than those of the machine itself."""


class FileProbe(_Probe, frozen=True, kw_only=True, tag="file"):
    """Returns `exists`, `size` and `age` in seconds; for a pattern, the number of matching lines as `matches` and the
    last of them as `lines`.
    """

    path: Path
    tail: Annotated[int, msgspec.Meta(ge=1, le=16 * 1024 * KiB)] = 64 * KiB
    """Bytes at the end of the file that are searched for the pattern."""
    pattern: Text | None = None
    """RE2."""


class HttpProbe(_Probe, frozen=True, kw_only=True, tag="http"):
    """Returns `ok`, `status`, `seconds`, `size`, `body` and `error`."""

    url: Text
    timeout: Annotated[float, msgspec.Meta(ge=0.1, le=60, extra={"unit": "seconds"})] = 5.0
    expect: Text | None = None
    """An RE2 pattern that must be found in the first 64 KiB of the body for it to be `ok`."""


class TcpProbe(_Probe, frozen=True, kw_only=True, tag="tcp"):
    """Returns `open`, `seconds` and `error`."""

    host: Text
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    timeout: Annotated[float, msgspec.Meta(ge=0.1, le=60, extra={"unit": "seconds"})] = 2.0


class CommandProbe(_Probe, frozen=True, kw_only=True, tag="command"):
    """Returns `exit_code`, `status`, `seconds`, `stdout` and `stderr` of a command on the whitelist of a configured
    executor.
    """

    run: Text
    command: Text
    timeout: Annotated[float, msgspec.Meta(ge=0.1, le=60, extra={"unit": "seconds"})] = 30.0


Probe = FileProbe | HttpProbe | TcpProbe | CommandProbe


class _Notifier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """Someone who is notified when a state changes."""

    repeat: Seconds = 0.0
    """Seconds after which a problem that lasts is sent again; if 0, it is sent once."""
    recovery: bool = True
    """Whether to send that it is ok again."""


class WebhookNotifier(_Notifier, frozen=True, kw_only=True, tag="webhook"):
    url: Text


class CommandNotifier(_Notifier, frozen=True, kw_only=True, tag="command"):
    """A command on the whitelist of a configured executor, which gets the notice as JSON on its standard input."""

    run: Text
    command: Text


Notifier = WebhookNotifier | CommandNotifier


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the monitor does: what it collects, how it judges that, and whom it notifies."""

    checks: tuple[Check, ...]
    collect: dict[str, Probe] = {}
    notify: dict[str, Notifier] = {}
    interval: float = 60.0
    history: float = 30 * 86400.0
    """Seconds for which everything is kept."""
    source: str = ""
    """The file that it comes from; empty for the ready-made checks alone."""
    trusted: bool = True
    """Whether the user named the file, has it in their configuration, or trusted it; False if it was only found."""
    notices: tuple[str, ...] = ()
    """Sentences to show to the user, such as that a file has no effect and why."""


class StoredState(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored about a check from one round to the next."""

    state: State
    since: float
    """Unix time of the beginning of this state."""
    bad_since: float = 0.0
    """Unix time since when its rule finds a problem; 0 if it finds none. `unknown` neither begins nor ends one."""


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """A notice or a remedy that was tried because of a check."""

    time: float
    kind: Literal["notice", "remedy"]
    check: str
    name: str
    """The notifier, or the executor of the remedy."""
    state: State
    """The state of the check at that time."""
    ok: bool
    text: str
    """A description of the outcome."""
    run: str = ""
    """The id of its run in the audit log; empty if there was none."""


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one check."""

    check: str
    state: State
    message: str = ""
    sandbox: str = ""
    """The backend that evaluated the rule: `monty`, `jail`; empty if none did."""
    seconds: float = 0.0
    run: str = ""
    """The id of that run in the audit log."""
    found: State = State.OK
    """What the rule found now. `state` changes only once that has lasted."""
    since: float = 0.0
    """Unix time of the beginning of this state; 0 without a history."""


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was found at one time."""

    time: float
    """Unix time."""
    host: str
    facts: Facts
    problems: dict[str, str] = {}
    """Why collectors failed, by name. Their facts are None."""
    verdicts: tuple[CheckResult, ...] = ()
    actions: tuple[Action, ...] = ()
    """The notices and remedies of this round."""

    @property
    def state(self) -> State:
        """The most urgent state of all checks; unknown if there are none."""
        return max((verdict.state for verdict in self.verdicts), key=lambda state: state.urgency, default=State.UNKNOWN)

    def to_dict(self) -> dict[str, Any]:
        """Return the round as plain data, with the names of states."""
        parts = {"verdicts": list(map(to_dict, self.verdicts)), "actions": list(map(to_dict, self.actions))}
        return {**msgspec.structs.asdict(self), "state": self.state.word, **parts}


def to_dict(item: msgspec.Struct) -> dict[str, Any]:
    """Return a struct as plain data, with the names of states."""
    return {
        name: value.word if isinstance(value, State) else value for name, value in msgspec.structs.asdict(item).items()
    }
