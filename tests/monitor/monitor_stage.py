"""One executor for all tests of a file, because starting its zygote and its cells takes time."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest
from patience import CHANGED, PROGRAM

from redoma import Config
from redoma.config import AuditConfig, NativeEntry
from redoma.pipeline.sync import Executor


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    audit = AuditConfig(directory=tmp_path_factory.mktemp("monitor") / "audit")
    shell = NativeEntry(name="shell", command_whitelist=("printf 'a\\033[31mb'", "false", "sleep 60"))
    with Executor(Config(audit=audit, entries={"ops:shell": shell, "ops:any": NativeEntry(name="any")})) as executor:
        yield executor


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rule and no collector is given up because this machine is busy."""
    for module, name, value in CHANGED:
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def redoma_command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """The real program, which is as patient."""

    def call(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        settings: dict[str, object] = {"capture_output": True, "text": True, "timeout": 300, "check": False}
        return subprocess.run([*PROGRAM, *arguments], **{**settings, **options})  # type: ignore[call-overload, no-any-return]

    return call
