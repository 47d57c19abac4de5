"""A real service, and the real SDK pointed at it. Fixtures for tests/frontends/e2b.

The SDK is imported where it is used: other tests have no need for it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest

from serving import Serving

if TYPE_CHECKING:
    from e2b_code_interpreter import AsyncSandbox, Sandbox

SETTINGS = """
sessions: {maximum: 24, lifetime: 600, grace: 60}
limits: {memory: 256MB, disk: 64MB}
approval: {timeout: 60}
policy:
  rules:
    - {id: app.ask, decision: prompt, reason: a person decides on this, command: [deploy-it]}
    - {id: app.never, decision: forbid, reason: nobody does this, command: [destroy-it]}
"""


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    serving = Serving(tmp_path_factory.mktemp("e2b"), settings=SETTINGS, options=["--e2b-port", "0"])
    serving.key("agent")
    serving.key("other")
    serving.key("maria", "approve")
    serving.key("both", "run", "approve")
    serving.key("small", concurrency=1)
    serving.start()
    try:
        yield serving
    finally:
        serving.stop()


@pytest.fixture
def pointed(service: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user sets; nothing else."""
    monkeypatch.setenv("E2B_API_KEY", service.key("agent"))
    monkeypatch.setenv("E2B_API_URL", f"{service.url}/e2b")
    monkeypatch.setenv("E2B_SANDBOX_URL", f"{service.url}/e2b")


@pytest.fixture(scope="module")
def shared(service: Serving) -> Iterator[Sandbox]:
    """One for the tests of a file that don't mind each other."""
    from e2b_code_interpreter import Sandbox

    where = f"{service.url}/e2b"
    sandbox = Sandbox.create(
        api_key=service.key("agent"), api_url=where, sandbox_url=where, envs={"GIVEN": "at start"}, timeout=600
    )
    try:
        yield sandbox
    finally:
        sandbox.kill()


@pytest.fixture
def sandbox(pointed: None) -> Iterator[Sandbox]:
    from e2b_code_interpreter import Sandbox

    made = Sandbox.create()
    try:
        yield made
    finally:
        made.kill()


@pytest.fixture
async def asandbox(pointed: None) -> AsyncIterator[AsyncSandbox]:
    from e2b_code_interpreter import AsyncSandbox

    made = await AsyncSandbox.create()
    try:
        yield made
    finally:
        await made.kill()
