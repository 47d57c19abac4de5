"""What most runs in a session leave out: each shortcut must find what the long way finds."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redoma import AsyncExecutor, AsyncSession, Config, InvalidRequest
from redoma.config import AuditConfig, LanguageConfig
from redoma.models import Submission
from redoma.sessions import frames
from redoma.sessions.alarm import Alarm
from redoma.sessions.channel import framed
from redoma.sessions.turn import Turn

CONFIG = Config(audit=AuditConfig(directory=Path("/nowhere")), languages={"ruby": LanguageConfig(argv=("ruby", "-"))})
SESSIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "with options": {
        "policy": "strict",
        "limits": {"time": 3, "output_lines": 7},
        "memory": "64MiB",
        "secrets": {"KEY": "long enough"},
        "env": {"A": "b"},
        "reason": "because",
        "requester": "ana",
        "label": "daily",
    },
}


class Text(str):
    __slots__ = ()


@pytest.fixture(scope="module", params=list(SESSIONS))
def session(request: pytest.FixtureRequest) -> AsyncSession:
    return AsyncSession(AsyncExecutor(CONFIG), backend="jail", **SESSIONS[request.param])


def outcome(session: AsyncSession, what: dict[str, Any], *, long: bool) -> Submission | str:
    """What is submitted, or the error; without what is new each time."""
    turn = Turn(session, context="main")
    try:
        made = session._submission(dict(what), {}, turn) if long else session._plain_submission(dict(what), turn)
    except InvalidRequest as error:
        return str(error)
    assert made.own_backend is turn
    assert (type(made.request.code), type(made.request.language)) == (str, str)
    return msgspec.structs.replace(made, own_backend=None, request=msgspec.structs.replace(made.request, id=""))


@given(
    codes=st.lists(st.text(st.sampled_from("a\ufeff\0\ud800\n é")) | st.just(Text("x")), min_size=2, max_size=4),
    language=st.sampled_from(["python", "bash", "javascript", "ruby", "lua", "cobol", "command", Text("python")]),
)
def test_a_run_without_options_is_submitted_as_if_all_was_read_again(
    session: AsyncSession, codes: list[str], language: str
) -> None:
    for code in codes:
        what = {"code": code, "language": language}
        assert outcome(session, what, long=False) == outcome(session, what, long=True)


def test_each_run_without_options_has_its_own_id(session: AsyncSession) -> None:
    turn = Turn(session, context="main")
    made = [session._plain_submission({"code": "1", "language": "python"}, turn).request.id for _ in range(5)]
    assert len({*made}) == 5


async def test_an_alarm_calls_what_was_set_last_when_it_is_due() -> None:
    """Timers that are set and stopped again, earlier and later than the one before."""
    loop, alarm = asyncio.get_running_loop(), Alarm()
    called: list[tuple[int, float]] = []
    start = loop.time()

    def call(number: int) -> None:
        called.append((number, loop.time() - start))

    for number, seconds in enumerate((60.0, 0.2, 0.05, 0.1)):
        alarm.set(start + seconds, partial(call, number))
    await asyncio.sleep(0.5)
    ((number, after),) = called
    assert number == 3
    assert after >= 0.1
    alarm.set(loop.time() + 0.05, partial(call, 9))
    alarm.stop()
    await asyncio.sleep(0.2)
    assert len(called) == 1
    alarm.close()


@given(
    st.dictionaries(st.text(st.sampled_from('a"\\\n\0é\u2028\ud800')), st.text(st.characters())),
    st.integers(0, 2**53),
)
def test_a_message_is_the_same_by_the_quick_encoder(variables: dict[str, str], number: int) -> None:
    head: dict[str, Any] = {"do": "run", "variables": variables, "run": number, "size": None, "argv": ["a", 1.5]}
    (quick,), (slow,) = (frames.Reader().feed(each) for each in (framed(head, b"body"), frames.frame(head, b"body")))
    assert (json.loads(quick[0]), quick[1]) == (json.loads(slow[0]), slow[1]) == (head, b"body")
