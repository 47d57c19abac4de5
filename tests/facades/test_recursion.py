"""The limit on recursion counts the code's own calls, on every backend: not the frames below it, which are ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from redoma import Config, Executor, Status

DEEP = "def f(n):\n    if n > 1:\n        return f(n - 1)\n    print('bottom', n)\n\n\nf({})"


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    from redoma.config import AuditConfig

    with Executor(Config(audit=AuditConfig(directory=tmp_path_factory.mktemp("audit")))) as executor:
        yield executor


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("limit", [20, 100, 1000])
@pytest.mark.parametrize("backend", ["jail", "docker", "monty", "native"])
def test_so_many_calls_fit_and_not_many_more(executor: Executor, backend: str, limit: int) -> None:
    fits = executor.run(DEEP.format(limit), backend=backend, limits={"recursion": limit}, policy="none")
    assert (fits.status, fits.stdout) == (Status.OK, "bottom 1\n"), fits.error
    deeper = executor.run(DEEP.format(limit + 10), backend=backend, limits={"recursion": limit}, policy="none")
    assert (deeper.status, deeper.stdout) == (Status.ERROR, "")
    assert "RecursionError" in f"{deeper.error} {deeper.stderr}"
