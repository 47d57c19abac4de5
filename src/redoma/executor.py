"""The pipeline, to be read top to bottom in `AsyncExecutor.submit`:

    Request ─▶ policy ─▶ audit(intent) ─▶ backend ─▶ output ─▶ audit(outcome) ─▶ Result

Only this file knows the order of the stages. `sync.Executor` drives the same object from ordinary code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Unpack

import msgspec

from . import config as configuration
from . import endings, intake
from .audit import AuditLog
from .backends.base import Backend, Capabilities, Control
from .config import Config
from .entries import Entries
from .errors import AuditError, BackendError, BackendUnavailable, InvalidRequest, Unsupported
from .intake import Options
from .live import Live
from .models import Decision, Evaluation, Finding, Language, Limits, Request, Result, Status
from .output import Capture
from .policy import Policy, evaluate, secrets_in
from .sensitive import Redactor
from .streaming import AsyncLiveRun


class Asked(NamedTuple):
    """A request, and what only its caller could know of it."""

    request: Request
    policy: str | None = None
    objections: tuple[Finding, ...] = ()
    """What speaks against it whatever the policy says."""
    on: Backend | None = None
    """The backend to run it on, where it is none of the executor's own."""
    control: Control | None = None
    """What the caller holds on to while it runs."""
    judged: Request | None = None
    """What policy looks at, where it is less than what runs: the variables of a configured executor are its owner's."""
    live_input: bool = False
    """Whether it can be given input that policy has not read, and that no list of commands allows it to be given."""


AUTO = ("jail", "docker", "monty")
"""What `backend="auto"` tries, in this order: never one without a boundary."""


class AsyncExecutor:
    """Runs requests. Use it as an asynchronous context manager, or call `aclose` when done."""

    def __init__(self, config: Config | None = None, *, backends: Iterable[Backend] | None = None) -> None:
        self.config = config or configuration.load()
        self.backends = {
            backend.name: backend for backend in (_installed(self.config) if backends is None else backends)
        }
        self._entries = Entries(self.config, self.backends)
        self._policies: dict[str | None, Policy] = {}
        audit = self.config.audit
        self._audit = AuditLog(audit.directory, retention_days=audit.retention_days, fsync=audit.fsync)

    async def run(self, code: str, language: Language = "python", **options: Unpack[Options]) -> Result:
        """Run source text."""
        return await self._run(self._source(code, language, options), options)

    async def command(self, argv: Iterable[str], *, entry: str | None = None, **options: Unpack[Options]) -> Result:
        """Run an argument vector, without a shell; `entry` names a configured executor such as `app:shell`."""
        return await self._run(self.ask(argv, entry, options), options)

    def stream(self, code: str, language: Language = "python", **options: Unpack[Options]) -> AsyncLiveRun:
        """Run source text and follow its output: `async with … as run`, `async for` over it, then `run.result`."""
        return self._live(self._source(code, language, options), options)

    def stream_command(
        self, argv: Iterable[str], *, entry: str | None = None, **options: Unpack[Options]
    ) -> AsyncLiveRun:
        """Run an argument vector and follow its output."""
        return self._live(self.ask(argv, entry, options), options)

    def follow(self, asked: Asked) -> AsyncLiveRun:
        """Run what was asked and follow its output."""
        live = Live(asked.request.limits, Redactor(asked.request.secrets.values()))
        return AsyncLiveRun(live, lambda live: self.submit(asked, live=live))

    def _source(self, code: str, language: Language, options: Options) -> Asked:
        request = intake.build(self.config, self.backends, options, code=code, language=language)
        return Asked(request, options.get("policy"))

    def ask(
        self, command: str | Iterable[str], entry: str | None, options: Options, control: Control | None = None
    ) -> Asked:
        """A command as it would be run, with what speaks against it. A configured executor also takes one text."""
        live_input = control is not None and control.takes_input
        if entry is not None:
            request, judged, objections, on = self._entries.prepare(entry, command, options)
            if self.config.entries[entry].command_whitelist is not None:
                live_input = False  # what may be said to a listed program was for its owner to consider
            return Asked(request, options.get("policy"), objections, on, control, judged, live_input)
        argv = intake.words("argv", command)
        request = intake.build(self.config, self.backends, options, argv=argv, language="command")
        return Asked(request, options.get("policy"), control=control, live_input=live_input)

    async def _run(self, asked: Asked, options: Options) -> Result:
        on_output = options.get("on_output")
        if on_output is None:
            return await self.submit(asked)
        async with self.follow(asked) as run:
            return await run.deliver(on_output)

    def _live(self, asked: Asked, options: Options) -> AsyncLiveRun:
        if options.get("on_output") is not None:
            raise InvalidRequest("on_output was given to a stream", why="it would get nothing", next="leave it out")
        return self.follow(asked)

    def check(self, request: Request, policy: str | None = None, *, live_input: bool = False) -> Evaluation:
        """What policy says of a request, without running it. See `evaluate`."""
        if policy not in self._policies:
            self._policies[policy] = self.config.policy.load(policy)
        return evaluate(self._policies[policy], request, live_input=live_input)

    def judge(self, asked: Asked) -> Evaluation:
        """What speaks against it, in one list."""
        evaluation = self.check(asked.judged or asked.request, asked.policy, live_input=asked.live_input)
        return msgspec.structs.replace(evaluation, findings=asked.objections + evaluation.findings)

    async def submit(self, asked: Asked, live: Live | None = None) -> Result:
        """The whole path of one request. Raises neither for what the code did nor for what we could not do.

        Whoever follows the run gets its output through `live`, too."""
        request, evaluation = asked.request, self.judge(asked)
        redactor = live.redactor if live else Redactor(request.secrets.values())
        result = Result(id=request.id, status=Status.KILLED, error="it was cancelled", evaluation=evaluation)
        try:
            self._record("intent", request.id, endings.intent(request, evaluation, self._for_record(asked, redactor)))
        except AuditError as error:
            return endings.failed(result, error, redactor)  # what can't be recorded doesn't run
        try:
            if evaluation.decision is Decision.ALLOW:
                result = await self._execute(asked, result, redactor, live)
            else:
                result = endings.refused(result)
        finally:  # also when we are cancelled: the record then says so
            try:
                self._record("outcome", request.id, endings.outcome(result, redactor))
            except AuditError as error:
                result = endings.failed(result, error, redactor, ran=True)
        return result

    def _for_record(self, asked: Asked, redactor: Redactor) -> Redactor:
        """That which also knows the secrets that only the policy has recognised."""
        embedded = secrets_in(self._policies[asked.policy], asked.judged or asked.request)
        return Redactor([*asked.request.secrets.values(), *embedded]) if embedded else redactor

    async def _execute(self, asked: Asked, result: Result, redactor: Redactor, live: Live | None) -> Result:
        """On the first backend that can. One that raises `Unsupported` has run nothing, so the next may be tried."""
        request, control = asked.request, asked.control
        refusals: list[BackendError] = []
        for backend in self._candidates(asked):
            result = msgspec.structs.replace(result, backend=backend.name)
            capture = Capture(request.limits, redactor, live.feed if live else None)
            try:
                _require(backend.name, backend.capabilities(), asked)
                outcome = await backend.run(request, capture.feed, control)
            except (Unsupported, BackendUnavailable) as error:
                refusals.append(error)
            except Exception as error:  # a backend's own bug too: the output is kept, and the record says what broke
                return endings.failed(result, error, redactor, captured=capture.finish())
            else:
                return endings.finished(result, outcome, capture.finish(), redactor, request.limits)
        return endings.failed(result, _no_backend(request, refusals), redactor)

    def _candidates(self, asked: Asked) -> list[Backend]:
        if asked.on is not None:
            return [asked.on]
        names = AUTO if asked.request.backend == "auto" else (asked.request.backend,)
        return [self.backends[name] for name in names if name in self.backends]

    def _record(self, kind: str, run: str, data: Mapping[str, Any]) -> None:
        if self.config.audit.enabled:
            self._audit.append(kind, run, data)

    async def aclose(self) -> None:
        """Let go of what the backends keep warm."""
        await self._entries.aclose()
        for backend in self.backends.values():
            await backend.aclose()

    async def __aenter__(self) -> AsyncExecutor:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


def _installed(config: Config) -> list[Backend]:
    from .backends.docker import DockerBackend
    from .backends.jail import JailBackend
    from .backends.monty import MontyBackend
    from .backends.native import NativeBackend

    return [
        JailBackend(**msgspec.structs.asdict(config.jail)),
        DockerBackend.configured(**msgspec.structs.asdict(config.docker)),
        MontyBackend(),
        NativeBackend(),
    ]


def _require(name: str, can: Capabilities, asked: Asked) -> None:
    """Refuse, before anything runs, what the backend could only do in part."""
    request = asked.request
    needs = {
        f"{request.language} code": request.language in can.languages,
        "input": can.stdin or not request.stdin,
        "input and signals while it runs": can.control or asked.control is None,
        "variables": can.env or not request.environment,
        "files": can.files or not request.files,
        "files to bring back": can.outputs or not request.outputs,
        # Where the backend was chosen with the request, so was the directory: it is one inside.
        "a working directory on the host": can.cwd or request.cwd is None or asked.on is not None,
        **{f"the isolation layer {layer!r}": False for layer in can.isolation.lacking(request.require)},
        **{f"a limit on {field}": False for field in _unenforced(can, request.limits)},
    }
    unmet = [need for need, met in needs.items() if not met]
    if unmet:
        raise Unsupported(f"{name} can't run this request", why=f"it doesn't offer {', '.join(unmet)}")


def _unenforced(can: Capabilities, limits: Limits) -> list[str]:
    """The limits that were asked for and would not hold. A default that doesn't is written on the result instead."""
    defaults = Limits()
    unenforced = [field for field in Limits.__struct_fields__ if field not in can.limits]
    return [field for field in unenforced if getattr(limits, field) != getattr(defaults, field)]


def _no_backend(request: Request, refusals: list[BackendError]) -> BackendError:
    if request.backend != "auto" and refusals:
        return refusals[0]
    return Unsupported(
        f"no isolating backend on this host can run this {request.language} request",
        why="; ".join(f"{error.what}: {error.why}" for error in refusals) or "none is here",
        next="see `redoma doctor`, or choose the backend `native` to run it on the host itself, without isolation",
    )
