"""A history that is recorded as by the executor, without running anything; and requests of every kind."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from pathlib import Path

import msgspec

from redoma.audit import AuditLog
from redoma.audit.inputs import Inputs
from redoma.models import (
    Approval,
    Decision,
    Evaluation,
    Finding,
    Judged,
    Limits,
    PolicyView,
    Request,
    Result,
    Status,
    Submission,
    Usage,
)
from redoma.pipeline.intents import intent_record, keep
from redoma.pipeline.results import outcome_record
from redoma.policy import Policy, evaluate, level_of, load, secrets_in
from redoma.redaction import Redactor


class Stage:
    """`policy` is in force while requests are recorded."""

    def __init__(self, place: Path, policy: Policy | None = None) -> None:
        self.log, self.inputs = AuditLog(place / "audit"), Inputs(place / "inputs")
        self._policy = policy

    def policy(self, pack: str | None) -> Policy:
        return self._policy if self._policy and pack in (None, self._policy.name) else load(pack or "standard")

    def judge(self, asked: Submission) -> Evaluation:
        said = evaluate(self.policy(asked.policy), asked.judged, live_input=asked.live_input, entry=asked.entry)
        return msgspec.structs.replace(said, findings=asked.objections + said.findings)

    def ask(self, asked: Submission, status: str = "ok", approval: Approval | None = None) -> str:
        request, policy = asked.request, self.policy(asked.policy)
        evaluation = self.judge(asked)
        hidden = Redactor([*request.secrets.values(), *secrets_in(policy, request)])
        level = level_of(asked.judged, evaluation)
        judged = Judged(submission=asked, evaluation=evaluation, level=level.level, level_why=level.why)
        kept = keep(asked, policy, hidden, self.inputs)
        self.log.append("intent", request.id, intent_record(judged, approval, kept, hidden))
        result = Result(
            id=request.id, status=Status(status), backend="jail", usage=Usage(wall=0.1), evaluation=evaluation
        )
        self.log.append("outcome", request.id, outcome_record(result, hidden))
        return request.id

    def approve(self, asked: Submission, by: str, reason: str = "it is right") -> str:
        """Record an approval as `Ledger` does, and then the run."""
        approval = _answer("approved", by, reason)
        said = {"approval": approval.id, "approver": by, "reason": reason, "pinned": False}
        self.log.append("approval.given", asked.request.id, said)
        return self.ask(asked, approval=approval)

    def deny(self, asked: Submission, by: str) -> str:
        answer = _answer("denied", by, "no")
        said = {"approval": answer.id, "approver": by, "reason": "no", "pinned": False}
        self.log.append("approval.denied", asked.request.id, said)
        return self.ask(asked, "denied", answer)


def _answer(decision: str, by: str, reason: str) -> Approval:
    from datetime import UTC, datetime

    now = datetime.now(UTC)
    return msgspec.convert(
        {"id": secrets.token_hex(16), "digest": "", "decision": decision, "approver": by, "reason": reason}
        | {"at": now, "expires": now},
        Approval,
    )


def variety(seed: int, count: int) -> Iterator[Submission]:
    """Yield requests that differ in everything an evaluation reads, many of them more than once."""
    dice = random.Random(seed)
    objection = Finding(rule="entry.whitelist", decision=Decision.FORBID, reason="it is not listed")
    for _ in range(count):
        number = dice.randrange(12)
        text = dice.choice(
            [
                f"curl {number}.io", f"rm -rf build{number}", "rm -rf /", f"ls {number}",
                "git push --force origin main",
                f"sudo reboot {number}", f"echo {number} | sh", f"psql db{number}", "cat", f"sleep {number}",
            ]
        )  # fmt: skip
        limits = Limits(time=dice.choice([30, 30, 10, 90]))
        env = dice.choice([{}, {}, {"PATH": "/tmp/mine"}, {"A": str(number)}])
        kind = dice.randrange(4)
        if kind == 0:
            stdin = dice.choice([b"", b"rm -rf /\n", b"\xff\0", b"DROP TABLE x;"])
            argv = tuple(text.replace("|", "x").split()) if number % 3 else ("bash",)
            request = Request(argv=argv, language="command", stdin=stdin, limits=limits, env=env)
        elif kind == 1:
            request = Request(code=text, language="bash", limits=limits, env=env)
        elif kind == 2:
            code = dice.choice(["import json", f"eval('{number}')", f"import os\nos.system('{text}')", "x ="])
            files = dice.choice([{}, {"a": b"1"}, {"a": b"2"}])
            request = Request(code=code, files=files, limits=limits)
        else:
            name = dice.choice(["TOKEN", "LD_PRELOAD", "EDITOR"])
            request = Request(code=text, language="bash", secrets={name: "vim-or-something"}, limits=limits)
        entry = dice.choice(["", "", "app:shell"]) if kind == 0 else ""
        yield Submission(
            request,
            dice.choice([None, None, "strict", "none"]),
            (objection,) if entry and number % 4 == 0 else (),
            view=PolicyView(env=()) if entry and number % 2 else None,
            entry=entry,
            live_input=kind == 0 and number % 5 == 0,
        )
