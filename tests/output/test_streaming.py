"""Output that is shown while the run goes on is what the result will say, and gives no more away."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from held_memory import held_memory
from hypothesis import example, given, settings
from hypothesis import strategies as st

from redoma import (
    Answer,
    AsyncExecutor,
    CallbackError,
    Config,
    Executor,
    FakeBackend,
    InvalidRequest,
    Limits,
    RedomaError,
    Status,
)
from redoma.backends.base import Backend
from redoma.backends.jail import JailBackend
from redoma.backends.monty.backend import MontyBackend
from redoma.backends.native.backend import NativeBackend
from redoma.models import MiB
from redoma.output import live as shown_live
from redoma.output.capture import Capture
from redoma.output.live import Live
from redoma.redaction import Redactor

KEY = "AKIAIOSFODNN7EXAMPLE"
VALUES = ("correct-horse/ battery", "Tr0ub4dor&3", "line one is long enough\nsecond line of it\nx", "åß∂ƒ©-värde")
PEM = (
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7MIIEpAIBAAKCAQEA7MIIEpAIBAAKCAQEA7\nq83v\n"
    "-----END RSA PRIVATE KEY-----\n"
)
REDACTOR = Redactor(VALUES)


def batch(data: bytes, limits: Limits | None = None) -> str:
    capture = Capture(limits or Limits(), REDACTOR)
    capture.feed("stdout", data)
    return capture.finish().stdout


def streamed(pieces: Iterable[bytes], limits: Limits | None = None, *, pauses: bool = False) -> str:
    """The text as it was shown, piece by piece: at once, or with a pause after each."""
    return "".join(shown_after_each(pieces, limits, pauses=pauses))


def shown_after_each(
    pieces: Iterable[bytes], limits: Limits | None = None, *, pauses: bool = True, redactor: Redactor = REDACTOR
) -> list[str]:
    """What became visible after each piece, and at the end."""
    live, texts = Live(limits or Limits(), redactor), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shown_live, "DELAY", 0.0 if pauses else 1e9)
        for piece in pieces:
            live.feed("stdout", piece)
            texts.append("".join(chunk.text for chunk in live.take()[0]))
    return [*texts, "".join(chunk.text for chunk in live.finish())]


@st.composite
def spelt(draw: st.DrawFn) -> str:
    value = draw(st.sampled_from(VALUES))
    padding = "p" * draw(st.integers(0, 80))
    return draw(
        st.sampled_from(
            [
                value,
                value[: draw(st.integers(1, len(value)))],
                base64.b64encode(value.encode()).decode(),
                base64.encodebytes((padding + value + "q").encode()).decode(),
                quote(value),
                quote(value, safe="").lower(),
                json.dumps(value),
                value.encode().hex(),
                value.encode().hex().upper(),
            ]
        )
    )


words = st.sampled_from(["hello ", "a line\n", "\n", "x", "été ", "> ", "name: ", "c", "T", "1 of 2\n", "日本語\n"])
tricky = st.sampled_from(
    [PEM, KEY, "password: ", "password:\n", "hunter2x!\n", "\x1b[31m", "\x1b[0m\n", "50%\r", "\r\n", "\u2028", "a\x08a"]
)


def cut(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    at = number = 0
    while at < len(data):
        size = sizes[number % len(sizes)]
        yield data[at : at + size]
        at, number = at + size, number + 1


sizes = st.lists(st.sampled_from([1, 2, 3, 5, 16, 100]), min_size=1, max_size=8)


@given(st.lists(st.one_of(words, spelt(), tricky), max_size=10).map("".join), sizes)
@settings(max_examples=400, deadline=None)
@example(f"hello {VALUES[2] * 2}50%\rhello ", [1])
def test_however_it_is_cut_the_stream_is_the_text_of_the_result(text: str, sizes: list[int]) -> None:
    assert streamed(cut(text.encode(), sizes)) == batch(text.encode())


@given(st.lists(st.one_of(words, spelt()), max_size=10).map("".join), sizes)
@settings(max_examples=400, deadline=None)
def test_no_secret_of_the_request_is_shown_in_part_however_long_the_pauses_in_it(text: str, sizes: list[int]) -> None:
    assert streamed(cut(text.encode(), sizes), pauses=True) == batch(text.encode())


@given(st.lists(st.one_of(words, spelt(), tricky), max_size=10).map("".join), sizes)
@settings(max_examples=400, deadline=None)
def test_no_whole_secret_is_shown_whatever_else_is_in_the_text(text: str, sizes: list[int]) -> None:
    seen = streamed(cut(text.encode(), sizes), pauses=True)
    for secret in (*VALUES, KEY, "MIIEpAIBAAKCAQEA7MIIEpAIBAAKCAQEA7MIIEpAIBAAKCAQEA7"):
        # Or else it is none, glued to other letters; of a redrawn line the result has only the last state.
        assert secret not in seen or secret in batch(text.replace("\r", "\n").encode())


@given(st.binary(max_size=200), sizes)
@settings(max_examples=300, deadline=None)
def test_any_bytes_at_all_come_out_as_the_result_has_them(data: bytes, sizes: list[int]) -> None:
    assert streamed(cut(data, sizes)) == batch(data)


# --- when something is shown -------------------------------------------------------------------------------------


def test_a_line_is_shown_at_once_and_an_unfinished_one_after_a_moment() -> None:
    live = Live(Limits(), REDACTOR)
    live.feed("stdout", b"one\nName: ")
    chunks, wait = live.take()
    assert [tuple(chunk) for chunk in chunks] == [("stdout", "one\n")]
    assert wait is not None
    assert 0 < wait <= 0.1
    time.sleep(wait)
    assert live.take() == ([("stdout", "Name: ")], None)
    live.feed("stdout", b"Ana\n")
    assert live.take()[0] == [("stdout", "Ana\n")]


@pytest.mark.parametrize(
    "prompt", ["Name: ", "Password: ", ">>> ", "$ ", "[y/N]? ", "Loading....", "45%", "Pick 1-9: "]
)
def test_prompts_are_shown(prompt: str) -> None:
    assert shown_after_each([prompt.encode()], redactor=Redactor()) == [prompt, ""]


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (["say cor", "ner\n"], ["say ", "corner\n", ""]),
        (["say cor", "rect-horse/ batter", "y!\n"], ["say ", "", "[redacted:known-secret]!\n", ""]),
        (["T", "r", "0", "ub4dor", "&3"], ["", "", "", "", "", "[redacted:known-secret]"]),
        (["line one is long enough\n", "other\n"], ["", "[redacted:known-secret]\nother\n", ""]),
        (["password: ", "hunter2!x\n"], ["password: ", "[redacted:password]\n", ""]),
        (["password: hun", "ter2!x\n"], ["password: ", "[redacted:password]\n", ""]),
        (["api_token=", "x9Yk2L", "mN4pQr7S\n"], ["api_token=", "", "[redacted:credential]\n", ""]),
        (["AKIAIOSFODNN", "7EXAMPLE\n"], ["", "[redacted:aws-access-key]\n", ""]),
        (["4111 1111 ", "1111 1111\n"], ["", "[redacted:card]\n", ""]),
        ([KEY + "correct-horse/ ", "battery\n"], ["", "[redacted:aws-access-key][redacted:known-secret]\n", ""]),
        (["mail ana@exe", "mplo.com.br\n"], ["mail ", "[redacted:email]\n", ""]),
        (["go to amqp://app:s3", "cr3t@db/x\n"], ["go to amqp", "://app:[redacted:url-password]@db/x\n", ""]),
        (["a caf\xc3", "\xa9 "], ["a caf", "é ", ""]),
        (["10%\r", "20%\r", "done\n"], ["", "", "done\n", ""]),
        (["10%", "\r20%\n"], ["10%", "\n20%\n", ""]),
        (["\x1b[1", "mbold\n"], ["", "bold\n", ""]),
    ],
)
def test_what_could_become_something_else_waits(pieces: list[str], shown: list[str]) -> None:
    raw = [piece.encode("latin-1") for piece in pieces]
    assert shown_after_each(raw, redactor=Redactor(VALUES[:3])) == shown


def test_a_private_key_waits_for_its_end_and_nothing_else_does() -> None:
    lines = [line + "\n" for line in PEM.splitlines()]
    pieces = [piece.encode() for piece in ("before\n", *lines, "after\n")]
    assert shown_after_each(pieces) == ["before\n", "", "", "", "[redacted:private-key]\n", "after\n", ""]
    described = [b"Proc-Type: 4,ENCRYPTED\n", b"kept for later (see below)\n"]
    assert shown_after_each([pieces[1], *described, *pieces[2:5]])[:-2] == [""] * 5
    # The middle and the end of one, as a log that was cut shows it.
    for size in (1, 7, 1000):
        assert "AQEA7MIIE" not in streamed(cut(b"".join(pieces[2:]), [size]), pauses=True)
    # Never finished: shown when something comes that can't be part of it, or at the end of the run.
    assert shown_after_each([*pieces[:3], b"What now?!\n"]) == [
        "before\n",
        "",
        "",
        "[redacted:private-key]What now?!\n",
        "",
    ]
    assert shown_after_each(pieces[:3])[-1] == "[redacted:private-key]"


# --- bounds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [7, 4096, 10_000_000])
def test_beyond_the_limits_the_stream_stops_and_the_end_is_shown_at_the_end(piece: int) -> None:
    limits = Limits(output_lines=100, output_bytes=100_000)
    data = b"".join(b"line %d\n" % number for number in range(5000))
    shown = shown_after_each([data[at : at + piece] for at in range(0, len(data), piece)], limits, pauses=False)
    assert "".join(shown[:-1]) == "".join(f"line {number}\n" for number in range(100))
    assert shown[-1].startswith("line 100\n")
    assert "left out" in shown[-1]
    assert shown[-1].endswith("line 4999\n")
    assert "".join(shown).count("\n") <= 150


def test_bytes_are_limited_after_replacing() -> None:
    limits = Limits(output_bytes=10_000, output_lines=100_000)
    text = streamed([b"Tr0ub4dor&3\n"] * 5000, limits)
    assert len(text) <= 15_000
    assert text.count("[redacted:known-secret]") > 400


@given(st.lists(st.one_of(words, spelt(), tricky), max_size=10).map("".join), st.integers(0, 70_000), sizes)
@settings(max_examples=100, deadline=None)
def test_a_whole_stream_has_all_of_it_and_no_secret(text: str, room: int, sizes: list[int]) -> None:
    """Also where a line is too long to wait for, and where there is more than a result keeps."""
    raw = (text + "." * room + text + "\n" * (room % 2)).encode() * 4
    live = Live(Limits(output_bytes=1000, output_lines=10), REDACTOR, whole=True)
    shown = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shown_live, "DELAY", 1e9)  # on a busy machine there would be pauses, and lines be shown again
        for piece in cut(raw, [size * 400 for size in sizes]):
            live.feed("stdout", piece)
            shown += live.take()[0]
    shown += live.finish()
    all_of_it = batch(raw, Limits(output_bytes=10 * MiB, output_lines=1_000_000))
    if "\r" in text or "\x08" in text:  # which change what was shown: only that nothing is given away
        assert not any(value in "".join(chunk.text for chunk in shown) for value in VALUES)
    else:
        assert "".join(chunk.text for chunk in shown) == all_of_it


@pytest.mark.parametrize("line", [b"x" * 100, b"-----BEGIN PRIVATE KEY-----\n", b"\xff", b"\0"])
def test_a_whole_stream_takes_time_in_proportion(line: bytes) -> None:
    live = Live(Limits(), REDACTOR, whole=True)
    began = time.thread_time()
    for _ in range(MiB // len(line) // 10):
        live.feed("stdout", line * 10)
    live.finish()
    assert time.thread_time() - began < 20


@pytest.mark.parametrize(
    "line", [b"x" * 100, b"A1" * 50, b"\x1b[31m", b"-----BEGIN PRIVATE KEY-----\n", b"0 Tr0ub4dor&", b"\xff"]
)
def test_memory_is_bounded_though_nobody_listens(line: bytes) -> None:
    live = Live(Limits(), REDACTOR)
    block = line * (65536 // len(line))
    with held_memory() as held:
        for _ in range(30 * MiB // len(block)):
            live.feed("stdout", block)
        assert held() < 4 * MiB
    assert sum(len(chunk.text) for chunk in live.finish()) <= 1.5 * MiB + 200


def test_a_slow_listener_gets_one_large_piece() -> None:
    live = Live(Limits(), REDACTOR)
    for number in range(500):
        live.feed("stdout", b"line %d\n" % number)
    chunks, _ = live.take()
    assert len(chunks) == 1
    assert chunks[0].text.count("\n") == 500


# --- through the executor --------------------------------------------------------------------------------------------


@pytest.fixture(params=[NativeBackend, JailBackend, MontyBackend], ids=["native", "jail", "monty"])
async def executor(
    request: pytest.FixtureRequest, config: Config, nothing_left_behind: None
) -> AsyncIterator[AsyncExecutor]:
    backend: Backend = request.param()
    async with AsyncExecutor(config, backends=[backend]) as executor:
        yield executor


@pytest.fixture(params=[NativeBackend, JailBackend, MontyBackend], ids=["native", "jail", "monty"])
def sync_executor(request: pytest.FixtureRequest, config: Config, nothing_left_behind: None) -> Iterator[Executor]:
    backend: Backend = request.param()
    with Executor(config, backends=[backend]) as executor:
        yield executor


def options(executor: AsyncExecutor, **more: Any) -> dict[str, Any]:
    (backend,) = executor.backends
    return {"backend": backend, "policy": "none", **more}


ENDLESS = "import time\nprint('first', flush=True)\nwhile True: time.sleep(0.2)"


def endless(executor: AsyncExecutor) -> str:
    return ENDLESS.replace(", flush=True", "") if "monty" in executor.backends else ENDLESS


async def test_output_comes_while_the_run_goes_on_and_leaving_ends_it(executor: AsyncExecutor) -> None:
    start = time.monotonic()
    async with executor.stream(endless(executor), **options(executor, limits={"time": 60})) as run:
        async for stream, text in run:
            assert (stream, text) == ("stdout", "first\n")
            break
        with pytest.raises(RedomaError, match="there is no result"):
            _ = run.result
    assert time.monotonic() - start < 50
    assert [chunk async for chunk in run] == []


async def test_the_stream_and_the_result_agree(executor: AsyncExecutor) -> None:
    code = f"import sys\nprint('a')\nprint('b', file=sys.stderr)\nprint('{KEY}', 'Tr0ub' + '4dor&3')"
    texts = {"stdout": "", "stderr": ""}
    async with executor.stream(code, **options(executor, secrets={"S": "Tr0ub4dor&3"})) as run:
        async for stream, text in run:
            texts[stream] += text
    result = run.result
    assert result.status is Status.OK
    assert texts == {"stdout": result.stdout, "stderr": result.stderr}
    assert result.stdout == "a\n[redacted:aws-access-key] [redacted:known-secret]\n"


async def test_a_listener_that_is_cancelled_takes_the_run_with_it(executor: AsyncExecutor) -> None:
    got = asyncio.Event()

    async def listen() -> None:
        async for _ in executor.stream(endless(executor), **options(executor)):
            got.set()

    task = asyncio.create_task(listen())
    await got.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_stream_that_nobody_refers_to_ends(executor: AsyncExecutor) -> None:
    async for _ in executor.stream(endless(executor), **options(executor, limits={"time": 1000})):
        break
    gc.collect()
    async with asyncio.timeout(100):  # by itself it would go on for longer
        while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110 - of a task of Redoma's own
            await asyncio.sleep(0.01)


async def test_on_output_may_be_asynchronous(executor: AsyncExecutor) -> None:
    got: list[tuple[str, str]] = []

    async def listen(stream: str, text: str) -> None:
        await asyncio.sleep(0)
        got.append((stream, text))

    result = await executor.run("print('hi')", **options(executor, on_output=listen))
    assert (result.stdout, got) == ("hi\n", [("stdout", "hi\n")])


async def test_output_without_listeners_is_as_before(executor: AsyncExecutor) -> None:
    assert (await executor.run("print('hi')", **options(executor))).stdout == "hi\n"


def test_on_output_is_called_in_the_thread_that_waits(sync_executor: Executor) -> None:
    got: list[tuple[str, str, int]] = []
    result = sync_executor.run(
        "print('hi')",
        **options(sync_executor.core, on_output=lambda stream, text: got.append((stream, text, threading.get_ident()))),
    )
    assert (result.stdout, got) == ("hi\n", [("stdout", "hi\n", threading.get_ident())])


def test_a_callback_that_fails_breaks_nothing_and_is_told(sync_executor: Executor, config: Config) -> None:
    calls: list[str] = []

    def listen(stream: str, text: str) -> None:
        calls.append(text)
        raise ValueError("a bug of the caller")

    code = "import time\nprint('one')\ntime.sleep(0.3)\nprint('two')\n7"
    with pytest.raises(CallbackError, match="on_output raised ValueError: a bug of the caller") as raised:
        sync_executor.run(code, **options(sync_executor.core, on_output=listen))
    assert isinstance(raised.value.__cause__, ValueError)
    assert (raised.value.result.status, raised.value.result.stdout) == (Status.OK, "one\ntwo\n")
    assert len(calls) == 1
    (log,) = Path(config.audit.directory).glob("*.jsonl")
    assert json.loads(log.read_text().splitlines()[-1])["data"]["status"] == "ok"


async def test_a_callback_that_fails_is_told_to_asynchronous_callers_too(executor: AsyncExecutor) -> None:
    def listen(stream: str, text: str) -> None:
        raise ValueError("a bug of the caller")

    with pytest.raises(CallbackError) as raised:
        await executor.run("print(1)", **options(executor, on_output=listen))
    assert raised.value.result.ok


def test_an_interrupt_in_a_callback_ends_the_run(sync_executor: Executor) -> None:
    def listen(stream: str, text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sync_executor.run(endless(sync_executor.core), **options(sync_executor.core, on_output=listen))


def test_a_slow_callback_misses_nothing_and_delays_only_itself(sync_executor: Executor) -> None:
    got: list[str] = []

    def listen(stream: str, text: str) -> None:
        got.append(text)
        time.sleep(0.2)

    result = sync_executor.run("for i in range(900): print(i)", **options(sync_executor.core, on_output=listen))
    assert "".join(got) == result.stdout


def test_leaving_a_stream_early_ends_its_run(sync_executor: Executor) -> None:
    with sync_executor.stream(endless(sync_executor.core), **options(sync_executor.core)) as run:
        assert next(run) == ("stdout", "first\n")
    assert list(run) == []


def test_closing_the_executor_ends_its_streams(config: Config) -> None:
    executor = Executor(config, backends=[NativeBackend()])
    run = executor.stream(ENDLESS, backend="native", policy="none")
    assert next(run).text == "first\n"
    threading.Timer(0.2, executor.close).start()
    with pytest.raises(RedomaError, match=r"the run was ended|executor is closed"):
        list(run)
    run.close()


def test_commands_can_be_followed_too(config: Config) -> None:
    got: list[str] = []
    with Executor(config, backends=[NativeBackend()]) as executor:
        with executor.stream_command(["echo", "hi"], backend="native") as run:
            assert list(run) == [("stdout", "hi\n")]
        assert run.result.ok
        executor.command(["echo", "there"], backend="native", on_output=lambda _, text: got.append(text))
    assert got == ["there\n"]


def test_nothing_runs_before_it_is_asked_for_and_what_is_refused_prints_nothing(config: Config) -> None:
    fake = FakeBackend(Answer(stdout="hi\n"))
    with Executor(config, backends=[fake]) as executor:
        executor.stream("1", backend="fake").close()
        assert fake.requests == []
        with executor.stream("import os\nos.system('rm -rf /')", backend="fake", policy="strict") as run:
            assert list(run) == []
        assert run.result.status is Status.FORBIDDEN
        with executor.stream("1", backend="fake") as run:
            assert list(run) == [("stdout", "hi\n")]
        with pytest.raises(InvalidRequest, match="on_output was given to a stream"):
            executor.stream("1", backend="fake", on_output=print)
        with pytest.raises(InvalidRequest, match="unknown option"):
            executor.stream("1", backend="fake", on_outptu=print)  # type: ignore[call-arg]


# --- the command line ----------------------------------------------------------------------------------------


def test_the_command_line_shows_output_as_it_comes() -> None:
    program = str(Path(sys.executable).with_name("redoma"))
    arguments = [program, "run", "--backend", "native", "--policy", "none", ENDLESS]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"first\n"
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_a_reader_that_has_enough_ends_the_run() -> None:
    program = str(Path(sys.executable).with_name("redoma"))
    code = "import time\nwhile True: print('x' * 100, flush=True); time.sleep(0.01)"
    arguments = [program, "run", "--backend", "native", "--policy", "none", code]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        os.read(process.stdout.fileno(), 10)
        process.stdout.close()
        assert process.wait(60) == 141
