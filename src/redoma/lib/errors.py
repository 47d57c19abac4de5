"""What Redoma raises.

    RedomaError
    ├── InvalidRequest       the request itself is invalid (also a ValueError)
    │   └── UnknownId            ... because an id names nothing, or several things; also one of those below
    ├── ConfigError          a configuration file can't be used
    │   └── PolicyError      ... because of a rule in it
    ├── Refused              policy, or the configured executor, refused: nothing ran
    ├── ApprovalError        an approval can't be requested, given or used
    │   ├── Absent               ... because no person can be asked here
    │   └── Pending              ... because no person has answered yet
    ├── StoreError           Redoma's database can't be read or written
    ├── CallbackError        a function given as `on_output` failed; the run itself did not
    ├── AuditError           the record can't be written or read
    ├── ServiceError         a service (`redoma serve`) refused, or can't be reached
    ├── WorkspaceError       a project can't be worked in, or its changes can't be kept, applied or undone
    │   └── Conflict             ... because another program has changed it since; nothing was changed
    ├── NotWritten           `atomic_write` left everything as it was
    ├── EnvironmentProblem   packages can't be installed or kept
    └── BackendError         a backend failed
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
        below = "\n" if "\n" in next else " "  # several lines are easier to read on their own
        super().__init__(message + (f". Next:{below}{next}" if next else ""))


class InvalidRequest(RedomaError, ValueError):
    """The request itself is invalid, so nothing was tried."""


class UnknownId(InvalidRequest):
    """An id, or a prefix of one, that names nothing, or several things."""


class ConfigError(RedomaError):
    """A configuration file can't be used."""


class PolicyError(ConfigError):
    """A rule can't be used: its fields are invalid, or its own examples disagree with it."""


class Refused(RedomaError):
    """Nothing ran, because policy or a configured executor refused; see the evaluation of its `result`."""

    def __init__(self, what: str, result: Result) -> None:
        finding = next(iter(result.evaluation.deciding), None)  # there is none if a person, not policy, refused
        suggestion = finding.suggestion if finding else ""
        why = result.error or (finding.reason if finding else "")
        hint = suggestion or "change the command, or the rule"
        super().__init__(what, why=why.removesuffix(f". {suggestion}"), next=hint)
        self.result = result


class ApprovalError(RedomaError):
    """An approval can't be requested, given or used."""


class UnknownApproval(ApprovalError, UnknownId):
    """No question has this id."""


class Absent(ApprovalError):
    """No person can be asked here, because there is no terminal, for example. Another approver may be able to."""


class Pending(ApprovalError):
    """No person has answered yet. `id` is the id of the question: approve that, and do the same again."""

    def __init__(self, what: str, id: str, *, why: str = "", next: str = "") -> None:  # noqa: A002 - as above
        super().__init__(what, why=why, next=next)
        self.id = id


class StoreError(RedomaError):
    """The database in the state directory can't be read or written. Nothing runs that depends on it."""


class CallbackError(RedomaError):
    """A function given as `on_output` failed. The run continued to its end, without calling it again: see `result`."""

    def __init__(self, failure: Exception, result: Result) -> None:
        super().__init__(
            f"on_output raised {type(failure).__name__}",
            why=str(failure),
            next="fix the callback; the run ended by itself, and its result is `result` of this error",
        )
        self.result = result


class AuditError(RedomaError):
    """The audit log can't be written or read."""


class UnknownRun(AuditError, UnknownId):
    """No recorded run has this id, or several begin with it."""


class ServiceError(RedomaError):
    """A service refused a request, or can't be reached. `status` is the HTTP status, or 0; `retry` is the number of
    seconds after which to try again, or 0; `code` is the error of an operation on a file, such as `ENOENT`.
    """

    def __init__(
        self,
        what: str,
        *,
        why: str = "",
        next: str = "",  # noqa: A002 - as above
        status: int = 0,
        retry: int = 0,
        code: str = "",
    ) -> None:
        super().__init__(what, why=why, next=next)
        self.status, self.retry, self.code = status, retry, code


class WorkspaceError(RedomaError):
    """A project can't be worked in, or what a run would change can't be kept, applied, discarded or undone."""


class UnknownChanges(WorkspaceError, UnknownId):
    """No changes are kept under this id, or several begin with it."""


class Conflict(WorkspaceError):
    """The project has changed since the decision. Nothing was changed: see `paths`, path → what is there."""

    _MAX_SHOWN = 20

    def __init__(self, what: str, paths: dict[str, str], *, next: str) -> None:  # noqa: A002 - as above
        some = [f"{ascii(path)[1:-1]} ({why})" for path, why in sorted(paths.items())[: self._MAX_SHOWN]]
        more = f" and {len(paths) - self._MAX_SHOWN} more" if len(paths) > self._MAX_SHOWN else ""
        super().__init__(what, why=", ".join(some) + more, next=next)
        self.paths = paths


class NotWritten(RedomaError):
    """A file could not be replaced, or its new content was not accepted. The old content is unchanged."""


class EnvironmentProblem(RedomaError):
    """Packages can't be installed or kept. Nothing that is only half there can be used."""


class UnknownEnvironment(EnvironmentProblem, UnknownId):
    """No environment has this name."""


class BackendError(RedomaError):
    """A backend failed. The executor turns it into a `failed` result."""


class BackendUnavailable(BackendError):
    """This host doesn't have what the backend needs."""


class Unsupported(BackendError):
    """The backend can't run this request. None of it ran, so another backend may safely be tried."""
