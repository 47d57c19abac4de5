"""A request on its way from its caller to the record: what was submitted, and what was found out before it runs.

There is one `Submission` for each request, made by the pipeline's intake. Judging it gives one `Judged`, and everything
after that (approval, the audit log, execution, the result) reads these two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from .effect import Effect
from .evaluation import Evaluation, Finding, Level
from .request import Limits, Request

if TYPE_CHECKING:
    from ..backends.base import Backend, Control
    from ..output.expectations import Expectation
    from ..policy import Reading
else:  # handles of this process: they are never written down
    Backend = Control = Expectation = Any


class PolicyView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """In what policy looks at less, or at something else, than what runs.

    The variables of a configured executor are its owner's, and so is how long it may take; the code around a rule of
    the monitor is ours.
    """

    env: tuple[str, ...] | None = None
    """Names of the variables that policy looks at; None for all."""
    limits: Limits | None = None
    """None for those of the request."""
    code: str | None = None
    """None for the request's."""
    stdin: bool = True
    """Whether policy looks at the input."""

    @classmethod
    def of(cls, request: Request, judged: Request) -> PolicyView:
        """The difference between what runs (`request`) and what policy is to look at (`judged`)."""
        return cls(
            env=None if judged.env == request.env else tuple(sorted(judged.env)),
            limits=None if judged.limits == request.limits else judged.limits,
            code=None if judged.code == request.code else judged.code,
            stdin=judged.stdin == request.stdin,
        )

    def over(self, request: Request) -> Request:
        """The request as policy looks at it."""
        return msgspec.structs.replace(
            request,
            env=request.env
            if self.env is None
            else {name: request.env[name] for name in self.env if name in request.env},
            limits=self.limits or request.limits,
            code=request.code if self.code is None else self.code,
            stdin=request.stdin if self.stdin else b"",
        )


class Submission(msgspec.Struct, frozen=True):
    """A request, and what only its caller can say of it."""

    request: Request
    policy: str | None = None
    """The policy pack that judges it; None for the configured one."""
    objections: tuple[Finding, ...] = ()
    """Findings that count whatever the policy says."""
    own_backend: Backend | None = None
    """The backend to run it on, where it is none of the executor's."""
    control: Control | None = None
    """How the caller gives it input and signals while it runs."""
    view: PolicyView | None = None
    """What policy looks at, where that is not exactly what runs."""
    expectation: Expectation | None = None
    """What it has to print."""
    wait: bool = True
    """Whether the caller waits while a person decides; if not, the result is `pending`."""
    entry: str = ""
    """The address of the configured executor that runs it."""
    writes: tuple[str, ...] | None = None
    """Globs of where in its project it is expected to write; None if nothing was said."""
    resumes: str = ""
    """The id under which a person was asked for this before."""
    live_input: bool = False
    """Whether it can be given input that policy has not read, and that no list of commands allows."""
    unread_input: bool = False
    """Whether it can be given input that nobody has read, also where a list of commands allows that. An approval says
    so."""
    keep_inputs: bool = True
    """Whether its input and files are kept for a replay. Not worth it where they are different each time."""

    @property
    def judged(self) -> Request:
        """The request as policy looks at it."""
        return self.request if self.view is None else self.view.over(self.request)


class ExecutedFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of the host that a request would execute."""

    files: dict[str, str] = {}
    """Path → SHA-256 of the content, or a word that says why there is none."""
    unbound: tuple[str, ...] = ()
    """What else it runs, or may run, that no approval can be bound to: then it can't be pinned."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A submission with all that was found out about it before it runs: what a person approves."""

    submission: Submission
    evaluation: Evaluation
    level: Level = Level.L4
    level_why: tuple[str, ...] = ()
    reading: Reading | None = None
    """What policy has read of `submission.judged`, for stages that need its facts again."""
    setting: str = ""
    """Digest of the configuration that also decides what happens: see `approval.setting_of`."""
    executed: ExecutedFiles | None = None
    """None if it was not looked, since no approval depends on them."""
    effect: Effect | None = None
    """What it did in an overlay, where that, and not the run itself, is to be approved."""

    @property
    def request(self) -> Request:
        return self.submission.request
