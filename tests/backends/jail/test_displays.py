"""What a one-shot run shows beside what it prints."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path

import matplotlib.image
import pytest

import redoma as library
from pace import SLOW
from redoma.backends.jail import displays, protocol

CSV = b"city,year,rain\nPorto,2023,1200\nPorto,2024,1100\nFaro,2023,500\n"
PLOT = """
import pandas as pd
import matplotlib.pyplot as plt
rain = pd.read_csv('rain.csv')
rain.plot(x='year', y='rain')
plt.show()
print('between')
plt.plot([3, 1, 2])
rain.head(2)
"""


def is_blank(png: bytes) -> bool:
    picture = matplotlib.image.imread(io.BytesIO(png))
    return bool((picture == picture[0, 0]).all())


def test_figures_and_tables_come_back_without_being_saved() -> None:
    result = library.run(PLOT, files={"rain.csv": CSV}, timeout=60 * SLOW)
    assert result.ok, result
    assert (result.stdout, result.stderr) == ("between\n", "")
    first, table, second = result.displays
    for figure in (first, second):
        assert figure.png is not None
        assert not is_blank(figure.png)
    assert first.png != second.png
    assert "<table" in (table.html or "")
    assert "Porto" in table.text


def test_display_and_objects_that_show_themselves() -> None:
    result = library.run("""
class Shown:
    def _repr_svg_(self): return '<svg/>'
    def __repr__(self): return 'Shown!'
display('text', Shown())
1 / 0
""")
    assert result.exception == "ZeroDivisionError"
    text, svg = (shown.data for shown in result.displays)
    assert text == {"text/plain": "'text'"}
    assert svg == {"image/svg+xml": "<svg/>", "text/plain": "Shown!"}


def test_what_goes_wrong_while_showing_is_told_and_is_no_failure() -> None:
    result = library.run("class Bad:\n    def _repr_html_(self): raise ValueError('no html')\nBad()")
    assert result.ok
    assert "ValueError: no html" in result.stderr
    assert result.displays == ()


def test_a_run_that_shows_nothing_loads_nothing_for_it() -> None:
    result = library.run("import sys\nprint('importlib.util' in sys.modules or 'display' in sys.modules)\n{'a': 1}")
    assert result.stdout == "False\n"
    assert result.displays == ()
    assert result.value == {"a": 1}


def test_more_than_may_be_shown_is_left_out() -> None:
    code = """
class Large:
    def __init__(self, size): self.size = size
    def _repr_html_(self): return 'x' * self.size
for _ in range(60): display(Large(100_000))
"""
    result = library.run(code, timeout=60 * SLOW)
    assert result.ok
    assert len(result.displays) <= 50
    size = sum(len(shown.html or "") for shown in result.displays)
    assert 1_000_000 < size <= protocol.MAX_SHOWN


FORGED = {
    "no list": {"displays": {"a": "b"}},
    "an unknown type": {"displays": [{"text/x-evil": "x"}]},
    "no base64": {"displays": [{"image/png": "!!!"}]},
    "too many": {"displays": [{"text/plain": "x"}] * 51},
    "too large": {"displays": [{"text/html": "x" * (2 << 20) + "x"}]},
    "numbers": {"displays": [{"text/plain": 1}]},
}


@pytest.mark.parametrize("report", FORGED.values(), ids=FORGED)
def test_a_forged_report_shows_nothing(report: object) -> None:
    """The guest writes the report itself, so it can write anything."""
    code = f"import os\nopen('/run/report', 'w').write({json.dumps(report)!r})\nos._exit(0)"
    result = library.run(code)
    assert result.ok, result
    assert result.displays == ()


def test_a_report_is_read_within_its_bounds() -> None:
    half = base64.b64encode(b"p" * (protocol.MAX_SHOWN // 2)).decode()
    shown = displays.read(json.dumps([{"image/png": half}] * 3).encode())
    assert [len(each.png or b"") for each in shown] == [protocol.MAX_SHOWN // 2] * 2
    assert displays.read(b"[" * 100_000) == ()


def test_the_command_line_draws_tables_and_saves_pictures(
    redoma: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    code = (
        "class Table:\n    def _repr_html_(self): return '<b/>'\n    def __repr__(self): return 'a \\x1b[31mb'\nTable()"
    )
    status, printed, _ = redoma("run", code)
    assert status == 0
    assert printed.startswith("a ")
    assert "\x1b" not in printed
    svg = "class Svg:\n    def _repr_svg_(self): return '<svg/>'\ndisplay(Svg())\nprint('x')"
    status, printed, _ = redoma("run", svg, "--output-dir", str(tmp_path / "out"))
    picture = tmp_path / "out" / "picture-1.svg"
    assert f"[svg+xml: {picture}]" in printed
    assert picture.read_text() == "<svg/>"
