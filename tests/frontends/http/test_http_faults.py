"""A service under load whose zygotes and whose own process are killed. `service_faults` can also run for long."""

from __future__ import annotations

from pathlib import Path

from service_faults import attempt


def test_every_accepted_run_is_accounted_for_though_parts_are_killed(tmp_path: Path) -> None:
    found = attempt(tmp_path / "home", seconds=8, clients=6, kills=1, zygote_every=3)
    assert found["accepted"].get("done", 0) > 0
    assert found["results"].get("ok", 0) > 0
