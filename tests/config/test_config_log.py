"""What is logged: by the files, the environment, and the command line over both."""

from __future__ import annotations

from pathlib import Path

import pytest
from config_place import Place

from redoma.config import LogConfig
from redoma.lib.errors import ConfigError


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_the_environment_says_what_is_logged_over_every_file(place: Place) -> None:
    place.user("log: {level: error, format: json, file: ~/redoma.log}")
    assert place.load().log == LogConfig(level="error", format="json", file=place.home / "redoma.log")
    place.env["REDOMA_LOG"] = "debug::/var/log/redoma:1.log"
    loaded = place.load()
    assert loaded.log == LogConfig(level="debug", format="json", file=Path("/var/log/redoma:1.log"))
    assert loaded.origins["log.level"] == loaded.origins["log.file"] == "the environment, REDOMA_LOG"
    assert loaded.origins["log.format"].startswith("user file")


def test_whoever_names_a_file_for_the_log_wants_one_written(place: Place) -> None:
    place.env["REDOMA_LOG"] = ":json"
    assert place.load().log == LogConfig(level="info", format="json")
    place.user("log: {level: warning}")
    assert place.load().log == LogConfig(level="warning", format="json")
    place.env["REDOMA_LOG"] = "off"
    assert place.load().log == LogConfig(level="off")


@pytest.mark.parametrize("said", ["loud", "info:xml", "INFO", "\x1b[2K"])
def test_a_variable_that_says_nothing_about_a_log_is_an_error(place: Place, said: str) -> None:
    place.env["REDOMA_LOG"] = said
    with pytest.raises(ConfigError, match="REDOMA_LOG is") as raised:
        place.load()
    assert str(raised.value).isprintable()
