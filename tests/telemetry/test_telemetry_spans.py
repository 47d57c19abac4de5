"""Spans, as an application gets them with the real SDK; and nothing where there is none."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from telemetry_stage import ASKING, TALKATIVE, WORD, Broken, answer, full_of, listening, tells

from redoma import Answer, AsyncExecutor, Config, Executor, FakeBackend, Status
from redoma.approval import Callback
from redoma.config import PolicyConfig


class Seen:
    """What was exported, by name, and who is below whom."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def of(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self.spans if span.name == name]
        return span

    @property
    def parents(self) -> dict[str, str]:
        """Each span's name, and that of its parent."""
        names = {span.context.span_id: span.name for span in self.spans if span.context}
        return {span.name: names.get(span.parent.span_id, "?") if span.parent else "" for span in self.spans}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """An SDK as an application sets it up; the API's own setter works once in a process."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return Seen(exporter)


@pytest.fixture
def settings(config: Config, tmp_path: Path) -> Config:
    return msgspec.structs.replace(config, state=tmp_path / "state", policy=PolicyConfig(rules=(ASKING,)))


def attributes(span: ReadableSpan) -> dict[str, object]:
    return {key.removeprefix("redoma."): value for key, value in (span.attributes or {}).items()}


async def test_a_run_is_a_span_with_its_stages_below_the_one_that_was_current(seen: Seen, config: Config) -> None:
    tracer = trace.get_tracer("application")
    async with AsyncExecutor(config, backends=[FakeBackend()]) as executor:
        with tracer.start_as_current_span("request"):
            result = await executor.run("print(1)", backend="fake")
    assert seen.parents == {
        **{"request": "", "redoma.run": "request"},
        **{"redoma.policy": "redoma.run", "redoma.backend": "redoma.run"},
    }
    said = attributes(seen.of("redoma.run"))
    assert said.items() >= {"run": result.id, "language": "python", "backend": "fake", "status": "ok"}.items()
    assert said.items() >= {"decision": "allow", "level": "L3", "policy": "standard", "exit_code": 0}.items()
    assert seen.of("redoma.run").status.is_ok
    assert attributes(seen.of("redoma.backend"))["backend"] == "fake"


@pytest.mark.parametrize("way", ["run", "command", "stream", "on_output"])
def test_ordinary_code_is_the_parent_of_its_run_although_that_is_on_another_thread(
    way: str, seen: Seen, config: Config
) -> None:
    tracer = trace.get_tracer("application")
    with Executor(config, backends=[FakeBackend()]) as executor:
        with tracer.start_as_current_span("request"):
            match way:
                case "run":
                    executor.run("1", backend="fake")
                case "command":
                    executor.command(["ls"], backend="fake")
                case "on_output":
                    executor.run("1", backend="fake", on_output=lambda stream, text: None)
                case _:
                    with executor.stream("1", backend="fake") as run:
                        list(run)
        executor.run("2", backend="fake")  # and one that comes after it is not below it
    runs = [span for span in seen.spans if span.name == "redoma.run"]
    request = seen.of("request").context
    assert request is not None
    assert [span.parent and span.parent.span_id for span in runs] == [request.span_id, None]


def test_runs_at_the_same_time_are_each_below_their_own_parent(seen: Seen, config: Config) -> None:
    tracer = trace.get_tracer("application")

    def one(number: int) -> str:
        with tracer.start_as_current_span(f"request {number}"):
            return executor.run(f"{number}", backend="fake").id

    with Executor(config, backends=[FakeBackend(Answer(delay=0.01))]) as executor, ThreadPoolExecutor(4) as threads:
        ids = list(threads.map(one, range(8)))
    names = {span.context.span_id: span.name for span in seen.spans if span.context}
    runs = [span for span in seen.spans if span.name == "redoma.run"]
    assert {attributes(span)["run"]: span.parent and names[span.parent.span_id] for span in runs} == {
        run: f"request {number}" for number, run in enumerate(ids)
    }


async def test_asking_a_person_is_a_span_of_its_own(seen: Seen, settings: Config) -> None:
    async with AsyncExecutor(settings, backends=[FakeBackend()], approver=Callback(answer)) as executor:
        result = await executor.run("deploy", "bash", backend="fake")
    assert seen.parents["redoma.approval"] == "redoma.run"
    said = {"outcome": "approved", "approval": result.approval_id, "run": result.id}
    assert attributes(seen.of("redoma.approval")) == said


def test_an_effect_and_what_is_done_with_it_are_spans(seen: Seen, settings: Config, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    with Executor(settings) as executor:
        result = executor.run("echo new > a", "bash", workspace="overlay", project=tmp_path / "project")
        executor.apply(result.id)
        executor.undo(result.id)
    assert result.status is Status.OK
    assert seen.parents["redoma.effect"] == "redoma.backend"
    assert [attributes(seen.of(name))["run"] for name in ("redoma.apply", "redoma.undo")] == [result.id] * 2


async def test_what_did_not_go_well_is_an_error_without_a_word_of_the_code(seen: Seen, settings: Config) -> None:
    async with AsyncExecutor(
        settings, backends=[TALKATIVE, Broken()], approver=Callback(lambda ask: answer(ask, "denied"))
    ) as executor:
        for backend in ("talkative", "broken"):
            await executor.run(f"print({WORD!r})", backend=backend, **full_of(WORD))
        await executor.command(["deploy", WORD], backend="talkative", **full_of(WORD))
        await executor.run(f"rm -rf / # {WORD}", "bash")
    told = [(span.status.status_code.name, span.status.description) for span in seen.spans if span.name == "redoma.run"]
    assert told == [("ERROR", "error"), ("ERROR", "failed"), ("ERROR", "denied"), ("ERROR", "forbidden")]
    broken = next(span for span in seen.spans if span.events)
    assert [(event.name, dict(event.attributes or {})) for event in broken.events] == [
        ("exception", {"exception.type": "RuntimeError"})
    ]
    assert [span.to_json() for span in seen.spans if tells(span.to_json())] == []


async def test_a_cancelled_run_ends_its_spans(seen: Seen, config: Config) -> None:
    async with AsyncExecutor(config, backends=[FakeBackend(Answer(delay=30))]) as executor:
        with listening() as heard:
            task = asyncio.create_task(executor.run("1", backend="fake"))
            while "run.started" not in heard.events:  # noqa: ASYNC110 - a logger sets no event
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    assert attributes(seen.of("redoma.run"))["status"] == "killed"
    assert not trace.get_current_span().is_recording()


async def test_events_name_the_trace_that_they_are_part_of(seen: Seen, config: Config) -> None:
    async with AsyncExecutor(config, backends=[FakeBackend()]) as executor:
        with listening() as heard:
            await executor.run("1", backend="fake")
    context = seen.of("redoma.run").context
    assert context is not None
    assert {said["trace_id"] for said in heard.said} == {f"{context.trace_id:032x}"}
    assert heard.of("run.ended")["span_id"] == f"{context.span_id:016x}"


# --- without an SDK, or with a bad one ---


class Failing(SpanProcessor):
    def __init__(self, moment: str) -> None:
        self.moment = moment

    def on_start(self, span: object, parent_context: object = None) -> None:
        if self.moment == "start":
            raise RuntimeError("no room")

    def on_end(self, span: object) -> None:
        if self.moment == "end":
            raise RuntimeError("no room")


@pytest.mark.parametrize("moment", ["start", "end"])
async def test_an_sdk_that_fails_changes_no_result(
    moment: str, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = TracerProvider()
    provider.add_span_processor(Failing(moment))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    async with AsyncExecutor(config, backends=[FakeBackend(Answer(value=42))]) as executor:
        assert (await executor.run("6 * 7", backend="fake")).value == 42
    assert not trace.get_current_span().is_recording()


@pytest.mark.parametrize("method", ["set_attributes", "set_status", "add_event", "end"])
async def test_a_span_that_fails_changes_no_result(
    method: str, seen: Seen, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(f"opentelemetry.sdk.trace.Span.{method}", fail)
    backend = FakeBackend(Answer(status=Status.ERROR))
    async with AsyncExecutor(config, backends=[backend]) as executor:
        assert (await executor.run("1", backend="fake")).status is Status.ERROR
    assert not trace.get_current_span().is_recording()


def test_without_an_sdk_opentelemetry_is_neither_imported_nor_asked(config: Config) -> None:
    script = f"""
import sys
from pathlib import Path
from redoma import Config, Executor, FakeBackend
from redoma.config import AuditConfig
with Executor(Config(audit=AuditConfig(directory=Path({str(config.audit.directory)!r}))), backends=[FakeBackend()]) as executor:
    executor.run("1", backend="fake")
    print([name for name in sys.modules if name.startswith("opentelemetry")])
    from opentelemetry import trace
    executor.run("1", backend="fake")
    print(trace._TRACER_PROVIDER)
    from opentelemetry.sdk.trace import TracerProvider
    trace.set_tracer_provider(TracerProvider())
    from redoma.telemetry.spans import Span
    with Span("redoma.run") as span:
        print(span.live)  # set up later, and found
"""  # noqa: E501
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "None", "True"]
