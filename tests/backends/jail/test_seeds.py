"""The random numbers of a run can be had again by whoever has its seed, and by nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest
from jail_insides import SLOW

from redoma import AsyncExecutor, Config, Limits
from redoma.config import AuditConfig, JailConfig
from redoma.models import Request, Seed, Submission

SHOW = "import random; (random.random(), hash('text'), list({'a', 'b', 'c', 'd', 'e'}))"


@pytest.fixture
def kept(tmp_path: Path) -> Config:
    preload = ("numpy",)
    return Config(audit=AuditConfig(directory=tmp_path / "audit"), jail=JailConfig(minimum=1, preload=preload))


async def test_a_seed_gives_the_same_numbers_and_the_same_order_of_sets_again(kept: Config) -> None:
    show = SHOW.replace("list(", "__import__('numpy').random.random(), list(")
    async with AsyncExecutor(kept) as executor:
        first = await executor.run(show, policy="none", timeout=30 * SLOW)
        second = await executor.run(show, policy="none", timeout=30 * SLOW)
        limits = Limits(time=30 * SLOW)
        again = await executor.submit(Submission(Request(code=show, seed=first.seed, limits=limits), "none"))
        other = await executor.submit(
            Submission(Request(code=show, seed=Seed(random=1, hashes=1), limits=limits), "none")
        )
    assert again.value == first.value
    assert again.seed == first.seed
    assert other.value[1] != first.value[1]
    assert len({first.value[0], second.value[0], other.value[0]}) == 3  # no cell has the numbers of another
    assert len({first.value[2], second.value[2], other.value[2]}) == 3


async def test_what_a_run_starts_has_hashes_of_its_own_and_sees_no_seed(config: Config) -> None:
    code = (
        "import os, subprocess, sys\n"
        "ask = [sys.executable, '-c', 'print(hash(\"text\"))']\n"
        "seen = [name for name in os.environ if 'SEED' in name]\n"
        "seen, os.getenv('PYTHONHASHSEED'), hash('text'), *[int(subprocess.check_output(ask)) for _ in range(2)]\n"
    )
    async with AsyncExecutor(config) as executor:
        result = await executor.run(code, policy="none", env={"A": "1"})
    seen, variable, ours, one, other = result.value
    assert (seen, variable) == ([], None)
    assert len({ours, one, other}) == 3


@pytest.mark.parametrize("seed", [-1, 2**64])
async def test_a_seed_that_a_cell_does_not_take_is_refused_and_not_shortened(config: Config, seed: int) -> None:
    async with AsyncExecutor(config) as executor:
        request = Request(code=SHOW, seed=Seed(random=seed, hashes=1), backend="jail")
        result = await executor.submit(Submission(request, "none"))
    assert f"the seed {seed} can't be used" in (result.error or "")
    assert result.value is None
