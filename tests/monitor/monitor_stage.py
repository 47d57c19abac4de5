"""One executor for all tests of a file, because starting its zygote and its cells takes time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from redoma import Config
from redoma.config import AuditConfig, NativeEntry
from redoma.pipeline.sync import Executor


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    audit = AuditConfig(directory=tmp_path_factory.mktemp("monitor") / "audit")
    shell = NativeEntry(name="shell", command_whitelist=("printf 'a\\033[31mb'", "false", "sleep 60"))
    with Executor(Config(audit=audit, entries={"ops:shell": shell, "ops:any": NativeEntry(name="any")})) as executor:
        yield executor
