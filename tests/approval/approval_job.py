"""A directory with scripts, and commands that run there on the host, with a time limit that needs approval."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from redoma import AsyncExecutor, Config, Result
from redoma.approval import Ask, Callback, Ledger
from redoma.approval.store import open_store
from redoma.audit import AuditLog
from redoma.backends.native.backend import NativeBackend
from redoma.config import ApprovalConfig, AuditConfig
from redoma.models import Approval, ExecutedFiles, Request
from redoma.pipeline.executed_files import find, visible_to

EVIL = "#!/bin/sh\necho evil\n"


def yes(ask: Ask, **said: Any) -> Approval:
    now = datetime.now(UTC)
    said = {"reason": "looked at it", "at": now, "expires": now + timedelta(hours=1), **said}
    return ask.answer("approved", approver="bob", **said)


class Job:
    """A directory with scripts, and commands that run there on the host, with a time limit that needs approval."""

    def __init__(self, place: Path) -> None:
        self.place = place / "job"
        self.place.mkdir()
        audit = AuditConfig(directory=place / "audit")
        self.config = Config(audit=audit, state=place / "state", approval=ApprovalConfig(approver="queue", timeout=60))
        self.log = AuditLog(audit.directory)

    def ledger(self) -> Ledger:
        assert self.config.state is not None
        return Ledger(open_store(self.config.state), self.log.append)

    def write(self, path: str, text: str) -> None:
        file = self.place / path
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(text)
        file.chmod(0o755)

    async def run(self, *command: str, approver: Callable[[Ask], Approval | None] | None = None, **more: Any) -> Result:
        options: dict[str, Any] = {"backend": "native", "cwd": str(self.place), "limits": {"time": 61}, **more}
        with_approver = {"approver": Callback(approver)} if approver else {}
        async with AsyncExecutor(self.config, backends=[NativeBackend()], **with_approver) as executor:
            if "id" in options:
                return await executor.resume(options["id"])
            if command[0] == "bash text":
                return await executor.run(command[1], "bash", **options)
            return await executor.command(command, **options)

    async def pin(self, *command: str, **more: Any) -> Result:
        return await self.run(*command, label="job", approver=lambda ask: yes(ask, pinned=True), **more)

    async def ask_of(self, *command: str, **more: Any) -> Ask:
        asked: list[Ask] = []
        await self.run(*command, approver=lambda ask: asked.append(ask), **more)
        return asked[0]

    def records(self, kind: str) -> list[dict[str, Any]]:
        return [record.data for record in self.log.records() if record.kind == kind]


def found(place: Path, *command: str, **fields: Any) -> ExecutedFiles:
    fields = {"argv": command, "language": "command", "backend": "native", "cwd": str(place), **fields}
    request = Request(**fields)
    return find(request, visible_to(request))


def job_with_scripts(place: Path) -> Job:
    made = Job(place)
    made.write("x.sh", "#!/bin/sh\necho good\n")
    made.write("lib.sh", "echo good\n")
    made.write("sub/lib.sh", "echo good\n")
    made.write("outer.sh", '#!/bin/bash\n. "$(dirname "$0")/lib.sh"\n')
    made.write("report.py", "print('good')\n")
    made.write("daily.py", "import helper\n")
    made.write("helper.py", "import json; print('good')\n")
    made.write("Makefile", "all:\n\t@/bin/echo good\n")
    made.write("bin/tool", "#!/bin/sh\necho good\n")
    made.write("calls.sh", "#!/bin/sh\ntool\n")
    made.write("uses.py", "import apart\n")
    made.write("sub/apart.py", "print('good')\n")
    made.write("~/x.sh", "#!/bin/sh\necho good\n")
    return made
