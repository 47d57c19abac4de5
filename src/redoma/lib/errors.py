"""What Redoma raises.

    RedomaError
    ├── InvalidRequest       the request itself makes no sense (also a ValueError)
    ├── ConfigError          a configuration file can't be used
    │   └── PolicyError      ... because of a rule in it
    ├── Refused              policy, or the executor that was asked, said no: nothing ran
    ├── ApprovalError        an approval can't be asked for, given or used
    │   └── Absent               ... because nobody can be asked here
    ├── StoreError           what Redoma remembers can't be read or written
    ├── CallbackError        a function given as `on_output` failed; the run itself did not
    ├── AuditError           the record can't be written or read
    ├── WorkspaceError       a project can't be worked in, or its changes can't be kept, applied or undone
    │   └── Conflict             ... because of what somebody else did to it since; nothing was changed
    ├── NotWritten           `atomic_write` left everything as it was
    └── BackendError         a backend could not do its work
        ├── BackendUnavailable   ... because this host doesn't have it
        └── Unsupported          ... because it can't run this request; none of it ran

What the *code* did is never raised: it is in the `Result`. So is a refusal, except in the process interface
(`redoma.exec`), where it raises `Refused`. Every message says what happened, why, and what to do next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..models import Result


class RedomaError(Exception):
    """Base of everything Redoma raises."""

    def __init__(self, what: str, *, why: str = "", next: str = "") -> None:  # noqa: A002 - reads as the sentence it makes
        self.what, self.why, self.next = what, why, next
        message = what + (f": {why}" if why else "")
        super().__init__(message + (f". Next: {next}" if next else ""))


class InvalidRequest(RedomaError, ValueError):
    """The request itself makes no sense, so nothing was tried."""


class ConfigError(RedomaError):
    """A configuration file can't be used."""


class PolicyError(ConfigError):
    """A rule can't be used: its fields are wrong, or its own examples disagree with it."""


class Refused(RedomaError):
    """Nothing ran, because policy or a configured executor said no; see the evaluation of its `result`."""

    def __init__(self, what: str, result: Result) -> None:
        finding = next(iter(result.evaluation.deciding), None)  # there is none where a person, not policy, said no
        suggestion = finding.suggestion if finding else ""
        why = result.error or (finding.reason if finding else "")
        hint = suggestion or "change the command, or the rule"
        super().__init__(what, why=why.removesuffix(f". {suggestion}"), next=hint)
        self.result = result


class ApprovalError(RedomaError):
    """An approval can't be asked for, given or used."""


class Absent(ApprovalError):
    """Nobody can be asked here: there is no terminal, for example. Another approver may be."""


class StoreError(RedomaError):
    """The database in the state directory can't be read or written. Nothing runs that depends on it."""


class CallbackError(RedomaError):
    """A function given as `on_output` failed. The run went on to its end, without calling it again: see `result`."""

    def __init__(self, failure: Exception, result: Result) -> None:
        super().__init__(
            f"on_output raised {type(failure).__name__}",
            why=str(failure),
            next="fix the callback; the run ended by itself, and its result is `result` of this error",
        )
        self.result = result


class AuditError(RedomaError):
    """The audit log can't be written or read."""


class WorkspaceError(RedomaError):
    """A project can't be worked in, or what a run would change can't be kept, applied, discarded or undone."""


class Conflict(WorkspaceError):
    """The project is not as it was when this was decided on. Nothing was changed: see `paths`, path → what is there."""

    _MAX_SHOWN = 20

    def __init__(self, what: str, paths: dict[str, str], *, next: str) -> None:  # noqa: A002 - as above
        some = [f"{ascii(path)[1:-1]} ({why})" for path, why in sorted(paths.items())[: self._MAX_SHOWN]]
        more = f" and {len(paths) - self._MAX_SHOWN} more" if len(paths) > self._MAX_SHOWN else ""
        super().__init__(what, why=", ".join(some) + more, next=next)
        self.paths = paths


class NotWritten(RedomaError):
    """A file could not be replaced, or its new content was not accepted. What was there is there, unchanged."""


class BackendError(RedomaError):
    """A backend could not do its work. The executor turns it into a `failed` result."""


class BackendUnavailable(BackendError):
    """This host doesn't have what the backend needs."""


class Unsupported(BackendError):
    """The backend can't run this request. None of it ran, so another backend may safely be tried."""
