"""What the protocols that agents speak add to a run: the same code, by the library and by each protocol's own client.

    .venv/bin/python benchmarks/protocols.py             # all
    .venv/bin/python benchmarks/protocols.py --only mcp --runs 100

Each protocol is one function in `PROTOCOLS`, which yields rows: a name, and the milliseconds of each call. The servers
are real ones, in processes of their own, with policy, audit and redaction on. The numbers are those of a machine that
does other things, too: what they say is what a protocol adds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import redoma

CODE = "6 * 7"
PROGRAM = str(Path(sys.executable).with_name("redoma"))
WARM_UP = 5


class Row(NamedTuple):
    name: str
    found: list[float]


class Service(NamedTuple):
    """`redoma serve`, and a key."""

    url: str
    key: str


async def timed(runs: int, work: Callable[[], Awaitable[object]]) -> list[float]:
    """Milliseconds of each of so many calls."""
    found = []
    for number in range(-WARM_UP, runs):
        start = time.perf_counter()
        await work()
        if number >= 0:
            found.append((time.perf_counter() - start) * 1e3)
    return found


@contextmanager
def served(home: Path) -> Iterator[Service]:
    """A service with a key for the benchmark."""
    env = {**os.environ, "HOME": str(home), "REDOMA_STATE_DIR": str(home / "state")}
    made = [PROGRAM, "keys", "create", "bench", "--scope", "run", "--rate", "100000"]
    said = subprocess.run(made, env=env, capture_output=True, text=True, check=True).stdout
    key = next(word for word in said.split() if word.startswith("rdm_"))
    command = [PROGRAM, "serve", "--port", "0"]
    with subprocess.Popen(command, env=env, cwd=home, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = next(line for line in process.stdout if line.startswith("Redoma serves at "))
            yield Service(line.removeprefix("Redoma serves at ").strip(), key)
        finally:
            process.terminate()


async def library(runs: int, service: Service) -> AsyncIterator[Row]:
    """No protocol: in this process, and by the service's own API."""
    async with redoma.AsyncExecutor() as executor:
        yield Row("library: run", await timed(runs, lambda: executor.run(CODE)))
        async with executor.session() as session:
            yield Row("library: run in a session", await timed(runs, lambda: session.run(CODE)))
    client = redoma.connect(service.url, key=service.key).asynchronous
    yield Row("service: POST /v1/runs", await timed(runs, lambda: client.run(CODE)))
    await client.aclose()


async def mcp(runs: int, service: Service) -> AsyncIterator[Row]:
    """The Model Context Protocol, by its SDK's client: both eras, over stdio and HTTP."""
    import httpx2
    from mcp import Client, StdioServerParameters
    from mcp.client.streamable_http import streamable_http_client

    @asynccontextmanager
    async def stdio(era: str) -> AsyncIterator[Client]:
        env = {"HOME": os.environ["HOME"]}
        async with Client(StdioServerParameters(command=PROGRAM, args=["mcp"], env=env), mode=era) as client:
            yield client

    @asynccontextmanager
    async def http(era: str) -> AsyncIterator[Client]:
        async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {service.key}"}) as web:
            async with Client(streamable_http_client(f"{service.url}/mcp", http_client=web), mode=era) as client:
                yield client

    for name, connected in (("stdio", stdio), ("HTTP", http)):
        for era, version in (("legacy", "2025-11-25"), ("2026-07-28", "2026-07-28")):
            async with connected(era) as client:
                where = f"MCP {version}, {name}"
                yield Row(f"{where}: run_python", await timed(runs, lambda: _call(client, "run_python", code=CODE)))
                opened = await _call(client, "session_open")
                yield Row(
                    f"{where}: in a session",
                    await timed(
                        runs,
                        lambda: _call(client, "run_python", code=CODE, session_id=opened["session_id"]),  # noqa: B023
                    ),
                )


async def _call(client: Any, name: str, **arguments: Any) -> Any:
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result
    return result.structured_content


async def e2b(runs: int, service: Service) -> AsyncIterator[Row]:
    """Sandboxes, code and commands by E2B's SDK."""
    from e2b_code_interpreter import AsyncSandbox

    where = {"api_key": service.key, "api_url": f"{service.url}/e2b", "sandbox_url": f"{service.url}/e2b"}

    async def make() -> None:
        start = time.perf_counter()
        sandbox = await AsyncSandbox.create(**where)
        made.append((time.perf_counter() - start) * 1e3)
        await sandbox.kill()
        await asyncio.sleep(0.05)  # as long as it takes to have the next cell ready

    made: list[float] = []
    await timed(runs, make)
    yield Row("E2B: Sandbox.create", made[WARM_UP:])
    async with await AsyncSandbox.create(**where) as sandbox:
        yield Row("E2B: run_code", await timed(runs, lambda: sandbox.run_code(CODE)))
        yield Row("E2B: commands.run", await timed(runs, lambda: sandbox.commands.run("true")))


PROTOCOLS: dict[str, Callable[[int, Service], AsyncIterator[Row]]] = {"library": library, "mcp": mcp, "e2b": e2b}


async def measure(names: list[str], runs: int, service: Service) -> None:
    print(f"{'milliseconds':<44} {'p10':>8} {'p50':>8} {'p90':>8}")
    for name in names:
        async for row in PROTOCOLS[name](runs, service):
            found = sorted(row.found)
            p10, p90 = (found[int(len(found) * part)] for part in (0.1, 0.9))
            print(f"{row.name:<44} {p10:8.2f} {statistics.median(found):8.2f} {p90:8.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PROTOCOLS, help="by default all")
    parser.add_argument("--runs", type=int, default=50)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ["HOME"] = home
        with served(Path(home)) as service:
            asyncio.run(measure([given.only] if given.only else [*PROTOCOLS], given.runs, service))


if __name__ == "__main__":
    main()
