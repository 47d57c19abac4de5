"""What code shows beside what it prints, and what comes while it runs."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator

import matplotlib.image
import pytest

from pace import SLOW
from redoma import CallbackError, Chunk, Config, Display, Executor, Session
from redoma.config import AuditConfig, SessionsConfig

CSV = "city,year,rain\nPorto,2023,1200\nPorto,2024,1100\nFaro,2023,500\nFaro,2024,450\n"


@pytest.fixture(scope="module")
def session_executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    """With time enough to end a run that was interrupted: a session whose run does not end is ended."""
    audit = AuditConfig(directory=tmp_path_factory.mktemp("state") / "audit")
    with Executor(Config(audit=audit, sessions=SessionsConfig(grace=60.0))) as made:
        yield made


def is_blank(png: bytes) -> bool:
    picture = matplotlib.image.imread(io.BytesIO(png))
    return bool((picture == picture[0, 0]).all())


def test_a_notebook(session: Session) -> None:
    session.files.write("rain.csv", CSV)
    read = session.run("import pandas as pd\nrain = pd.read_csv('rain.csv')\nrain.head(2)", timeout=60 * SLOW)
    assert read.ok
    (table,) = read.displays
    assert "<table" in (table.html or "")
    assert "Porto" in table.text
    wrong = session.run("import matplotlib.pyplot as plt\nrain.plot(x='year', y='rein')", timeout=60 * SLOW)
    assert wrong.exception == "KeyError"
    plotted = session.run(
        "for city, rows in rain.groupby('city'):\n    plt.plot(rows.year, rows.rain, label=city)\nplt.legend();"
    )
    (figure,) = plotted.displays
    assert figure.png is not None
    assert not is_blank(figure.png)
    again = session.run("plt.plot([1, 3, 2])\nplt.show()\nprint('after')\nplt.plot([3, 1, 2]);")
    assert [display.png is not None for display in again.displays] == [True, True]
    assert again.displays[0].png != again.displays[1].png
    assert again.stdout == "after\n"
    assert "non-interactive" not in again.stderr


def test_objects_show_themselves_as_notebooks_have_it(session: Session) -> None:
    result = session.run("""
class Many:
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {'text/html': '<b>1</b>', 'text/markdown': '*1*', 'application/x-strange': 'no'}
class One:
    def _repr_svg_(self): return '<svg/>'
    def _repr_latex_(self): return '$x$'
    def _repr_json_(self): return {'a': 1}
    def __repr__(self): return 'One!'
display(Many(), 'text')
One()
""")
    many, text, one = (display.data for display in result.displays)
    assert many["text/html"] == "<b>1</b>"
    assert set(many) == {"text/html", "text/markdown", "text/plain"}
    assert text == {"text/plain": "'text'"}
    assert one == {
        "image/svg+xml": "<svg/>",
        "text/latex": "$x$",
        "application/json": '{"a": 1}',
        "text/plain": "One!",
    }
    assert result.value == "One!"
    assert session.run("1").displays == ()


def test_displays_are_bounded_in_count_and_size(session: Session) -> None:
    assert len(session.run("for i in range(1000): display(i)").displays) == 50
    large = session.run("class L:\n    def _repr_html_(self): return 'x' * (3 << 20)\ndisplay(L())")
    assert large.displays[0].html is None
    total = session.run("class M:\n    def _repr_html_(self): return 'x' * (1 << 20)\nfor _ in range(20): display(M())")
    assert sum(len(display.html or "") for display in total.displays) <= 6 << 20


def test_events_come_in_order_while_it_runs(session: Session) -> None:
    code = "import os, time\nprint('a')\ndisplay(1)\nprint('b')\nwhile not os.path.exists('heard'): time.sleep(0.02)\n"
    with session.stream(code + "print('c')") as run:
        events = []
        for event in run:
            events.append(event)
            if event == Chunk("stdout", "b\n"):
                session.files.write("heard", "")  # without which it does not go on
    assert events == [
        Chunk("stdout", "a\n"),
        Display(data={"text/plain": "1"}),
        Chunk("stdout", "b\n"),
        Chunk("stdout", "c\n"),
    ]
    assert run.result.ok


def test_callbacks_get_what_they_are_for(session: Session) -> None:
    out: list[str] = []
    errors: list[str] = []
    shown: list[Display] = []
    code = "import sys\nprint('a')\nprint('b', file=sys.stderr)\ndisplay(3)"
    result = session.run(code, on_stdout=out.append, on_stderr=errors.append, on_result=shown.append)
    assert ("".join(out), "".join(errors), [each.text for each in shown]) == ("a\n", "b\n", ["3"])
    assert result.displays == tuple(shown)

    def fails(_text: str) -> None:
        raise ValueError("mine")

    with pytest.raises(CallbackError) as caught:
        session.run("print(1)\nx = 5", on_stdout=fails)
    assert caught.value.result.ok
    assert session.run("x").value == 5


def test_code_waits_for_a_reader_that_is_slow(session: Session) -> None:
    code = "import time\nfor i in range(8000): print('x' * 999)\nended = time.time()"
    with session.stream(code, whole_output=True, limits={"output_total": 64 << 20}) as run:
        events = iter(run)
        texts = [next(events)]
        time.sleep(1.5)
        resumed = time.time()
        texts += list(events)
    assert sum(len(event.text) for event in texts) == 8_000_000
    assert session.run("ended").value > resumed


def test_streams_that_are_left_early_take_no_room_from_later_ones(session: Session) -> None:
    for _ in range(3):
        code = "import time\nfor i in range(700): print('x' * 999)\ntime.sleep(20)"
        with session.stream(code, whole_output=True) as run:
            next(iter(run))
            time.sleep(0.5)
    result = session.run("print('y' * 3_000_000)", timeout=60 * SLOW)
    assert result.ok
    assert session.alive


def test_left_early_a_stream_ends_the_run_and_not_the_session(session: Session) -> None:
    session.run("kept = 1")
    with session.stream("import time\nwhile True:\n    print(1, flush=True); time.sleep(0.01)") as run:
        for _ in run:
            break
    assert session.run("kept").value == 1


def test_one_executor_runs_things_beside_its_sessions(session: Session) -> None:
    assert session._executor.run("6 * 7").value == 42
