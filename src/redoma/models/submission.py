"""A request on its way from its caller to the record: what was submitted, and what was determined before it runs.

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
else:  # objects of this process, which are never stored
    Backend = Control = Expectation = Any


class PolicyView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the request that policy sees differs from the one that runs.

    The owner of a configured executor decides about its variables and its time limit; the code around a monitor rule is
    ours.
    """

    env: tuple[str, ...] | None = None
    """Names of the variables that policy sees; None for all."""
    limits: Limits | None = None
    """None for those of the request."""
    code: str | None = None
    """None for the request's."""
    stdin: bool = True
    """Whether policy sees the input."""

    @classmethod
    def of(cls, request: Request, judged: Request) -> PolicyView:
        """Return the difference between what runs (`request`) and what policy should see (`judged`)."""
        return cls(
            env=None if judged.env == request.env else tuple(sorted(judged.env)),
            limits=None if judged.limits == request.limits else judged.limits,
            code=None if judged.code == request.code else judged.code,
            stdin=judged.stdin == request.stdin,
        )

    def over(self, request: Request) -> Request:
        """Return the request as policy sees it."""
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
    """A request, and what only its caller knows."""

    request: Request
    policy: str | None = None
    """The policy pack that judges it; None for the configured one."""
    objections: tuple[Finding, ...] = ()
    """Findings that count whatever the policy says."""
    own_backend: Backend | None = None
    """The backend to run it on, if it is not one of the executor's."""
    control: Control | None = None
    """How the caller sends it input and signals while it runs."""
    view: PolicyView | None = None
    """What policy sees, if that is not exactly what runs."""
    expectation: Expectation | None = None
    """What it must print."""
    wait: bool = True
    """Whether the caller waits while a person decides; if not, the result is `pending`."""
    entry: str = ""
    """The address of the configured executor that runs it."""
    writes: tuple[str, ...] | None = None
    """Globs of where in its project it is expected to write; None if not declared."""
    resumes: str = ""
    """The id of an earlier question about this."""
    live_input: bool = False
    """Whether input may follow that policy must judge as unknown: no whitelist vouches for the program."""
    unread_input: bool = False
    """Whether input may follow that nobody has read, whitelisted program or not. An approval is bound to this."""
    session: str = ""
    """The id of the session that it runs in."""
    keep_inputs: bool = True
    """Whether its input and files are kept for a replay. Not worthwhile if they differ each time."""

    @property
    def judged(self) -> Request:
        """The request as policy sees it."""
        return self.request if self.view is None else self.view.over(self.request)


class ExecutedFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of the host that a request would execute."""

    files: dict[str, str] = {}
    """Path → SHA-256 of the content, or a word that says why there is none."""
    unbound: tuple[str, ...] = ()
    """What else it runs, or may run, that no approval can be bound to: then it can't be pinned."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A submission with everything that was determined before it runs: what a person approves."""

    submission: Submission
    evaluation: Evaluation
    level: Level = Level.L4
    level_why: tuple[str, ...] = ()
    backend: Backend | None = None
    """The one that is tried first, for which it was judged; None if none can run it."""
    reading: Reading | None = None
    """What policy has parsed of `submission.judged`, for stages that need its facts again."""
    configuration_digest: str = ""
    """Digest of the configuration that also decides what happens."""
    executed: ExecutedFiles | None = None
    """None if they were not determined, since no approval depends on them."""
    effect: Effect | None = None
    """What it did in an overlay, if that, and not the run itself, needs approval."""

    @property
    def request(self) -> Request:
        return self.submission.request
