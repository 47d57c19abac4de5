"""What Redoma raises.

    RedomaError
    ├── InvalidRequest       the request itself makes no sense (also a ValueError)
    ├── ConfigError          a configuration file can't be used
    │   └── PolicyError      ... because of a rule in it
    ├── Refused              policy, or the executor that was asked, said no: nothing ran
    ├── CallbackError        a function given as `on_output` failed; the run itself did not
    ├── AuditError           the record can't be written or read
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
    from .models import Result


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
        finding = result.evaluation.deciding[0]
        hint = finding.suggestion or "change the command, or the rule"
        super().__init__(what, why=(result.error or finding.reason).removesuffix(f". {finding.suggestion}"), next=hint)
        self.result = result


class CallbackError(RedomaError):
    """A function given as `on_output` failed. The run went on to its end, without calling it again: see `result`."""

    def __init__(self, failure: Exception, result: Result) -> None:
        super().__init__(
            f"on_output raised {type(failure).__name__}",
            why=str(failure),
            next="mend it; the run ended by itself, with the `result` of this error",
        )
        self.result = result


class AuditError(RedomaError):
    """The audit log can't be written or read."""


class NotWritten(RedomaError):
    """A file could not be replaced, or its new content was not accepted. What was there is there, unchanged."""


class BackendError(RedomaError):
    """A backend could not do its work. The executor turns it into a `failed` result."""


class BackendUnavailable(BackendError):
    """This host doesn't have what the backend needs."""


class Unsupported(BackendError):
    """The backend can't run this request. None of it ran, so another backend may safely be tried."""
