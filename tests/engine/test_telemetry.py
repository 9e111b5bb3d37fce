"""One complete span per request, however it ends, and the host's own tracing untouched."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import fake_engine
import pytest
from fake_engine import Accepted, Failure, Finished, answer_at_once
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from tiny_folder import write_folder

from diptych import AsyncEngine, EngineConfig, SamplingParams, errors, telemetry

GREEDY = SamplingParams(max_tokens=2, temperature=0.0, seed=0, stop=["x"])


@pytest.fixture(autouse=True)
def native(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("diptych_core.engine.Engine", fake_engine.Engine)
    yield
    fake_engine.Engine.made.clear()


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> Iterator[TracerProvider]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider
    provider.shutdown()


@pytest.fixture
async def engine(provider: TracerProvider, tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    config = EngineConfig(str(write_folder(tmp_path / "tiny-model")), worker="scripted")
    async with AsyncEngine(config, tracer_provider=provider) as engine:
        yield engine


def core() -> fake_engine.Engine:
    return fake_engine.Engine.made[-1]


async def run(engine: AsyncEngine, params: SamplingParams = GREEDY, **options: Any) -> None:
    async for _ in engine.generate("hi", params, **options):
        pass


def open_mailboxes(engine: AsyncEngine) -> int:
    return sum(len(queue.mailboxes) for queue in engine._queues._queues.values())


async def all_told(engine: AsyncEngine) -> None:
    """Until the core has told every request's end."""
    for _ in range(5000):
        if not open_mailboxes(engine):
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"{open_mailboxes(engine)} requests did not end within 5 s")


def only(exporter: InMemorySpanExporter) -> ReadableSpan:
    (span,) = exporter.get_finished_spans()
    return span


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_finished_request_is_told_completely(engine: AsyncEngine, exporter: InMemorySpanExporter) -> None:
    core().on_submit = answer_at_once
    before = time.time_ns()
    await run(engine)
    span = only(exporter)
    assert (span.name, span.kind) == ("text_completion tiny-model", SpanKind.INTERNAL)
    assert span.status.status_code is StatusCode.UNSET
    told = attributes(span)
    assert told == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "diptych",
        "gen_ai.request.model": "tiny-model",
        "gen_ai.response.model": "tiny-model",
        "gen_ai.output.type": "text",
        "gen_ai.request.max_tokens": 2,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.seed": 0,
        "gen_ai.request.stop_sequences": ("x",),
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.response.time_to_first_chunk": 0.003,
        "diptych.preemptions": 0,
        "diptych.request.priority": 0,
        "diptych.time_in_tokeniser": 0.001,
        "diptych.time_in_queue": 0.001,
        "diptych.time_in_prefill": 0.001,
        "diptych.time_in_decode": 0.001,
        "diptych.time_to_first_token": 0.003,
        "diptych.time_total": 0.004,
    }
    moments = {event.name: event.timestamp for event in span.events}
    assert list(moments) == ["diptych.tokenised", "diptych.admitted", "diptych.first_token"]
    assert span.start_time is not None and abs(span.start_time - before) < 50_000_000
    for step, moment in enumerate(moments.values(), start=1):
        assert abs(moment - span.start_time - step * 1_000_000) < 500_000


async def test_preemptions_and_restarts_are_events(engine: AsyncEngine, exporter: InMemorySpanExporter) -> None:
    now = time.monotonic_ns()
    events = [(now, "worker_restarted"), (now - 1000, "preempted")]
    core().on_submit = lambda native, number: native.emit(number, finished=Finished(preemptions=1, events=events))
    await run(engine)
    assert [event.name for event in only(exporter).events] == ["diptych.preempted", "diptych.worker_restarted"]
    assert attributes(only(exporter))["diptych.preemptions"] == 1


@pytest.mark.parametrize(
    ("kind", "raised"),
    [
        ("nan_logits", errors.EngineFailure),
        ("worker_died", errors.EngineFailure),
        ("context_length", errors.ContextLengthError),
        ("queue_full", errors.OverloadedError),
    ],
)
async def test_failed_and_refused_requests_have_status_and_type(
    engine: AsyncEngine, exporter: InMemorySpanExporter, kind: str, raised: type[Exception]
) -> None:
    core().on_submit = lambda native, number: native.emit(
        number, accepted=Accepted(), token_ids=[1], failure=Failure(kind, "for a reason", completion_tokens=1)
    )
    with pytest.raises(raised):
        await run(engine)
    span = only(exporter)
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "for a reason"
    told = attributes(span)
    assert (told["error.type"], told["gen_ai.response.finish_reasons"]) == (kind, ("error",))
    assert told["gen_ai.usage.output_tokens"] == 1
    assert ("diptych.retry_after" in told) == (kind == "queue_full")


async def test_params_refused_before_submission_have_a_span_too(
    engine: AsyncEngine, exporter: InMemorySpanExporter
) -> None:
    with pytest.raises(errors.InvalidParameterError):
        await run(engine, SamplingParams(top_p=0.0))
    assert attributes(only(exporter))["error.type"] == "invalid_parameter"
    assert attributes(only(exporter))["gen_ai.request.top_p"] == 0.0


@pytest.mark.parametrize("way", ["aclose", "cancel"])
async def test_aborted_requests_have_a_complete_span(
    engine: AsyncEngine, exporter: InMemorySpanExporter, way: str
) -> None:
    core().on_submit = lambda native, number: native.emit(number, accepted=Accepted(), text="a", token_ids=[1, 2])
    stream = engine.generate("hi", GREEDY)
    await anext(stream)
    await anext(stream)
    if way == "aclose":
        await stream.aclose()
    else:
        task = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await all_told(engine)
    span = only(exporter)
    told = attributes(span)
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "aborted")
    assert (told["error.type"], told["gen_ai.response.finish_reasons"]) == ("aborted", ("abort",))
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (3, 2)
    for part in ("tokeniser", "queue", "prefill", "decode"):
        assert told[f"diptych.time_in_{part}"] == 0.001
    assert (told["diptych.time_to_first_token"], told["diptych.time_total"]) == (0.003, 0.004)
    names = [event.name.removeprefix("diptych.") for event in span.events]
    assert names == ["tokenised", "admitted", "first_token", "aborted"]


async def test_an_aborted_requests_span_waits_for_the_cores_end_only(
    engine: AsyncEngine, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_engine.Engine, "abort", lambda native, request: native.aborted.append(request))
    core().on_submit = lambda native, number: native.emit(number, accepted=Accepted())
    stream = engine.generate("hi", GREEDY)
    await anext(stream)
    await stream.aclose()
    # Output that was on its way is counted, and nobody is left to read it.
    core().emit(0, text="late", token_ids=[1])
    await asyncio.sleep(0.01)
    assert core().aborted == [0] and exporter.get_finished_spans() == () and open_mailboxes(engine) == 1
    await engine.close()
    assert attributes(only(exporter))["gen_ai.usage.output_tokens"] == 1
    assert open_mailboxes(engine) == 0


async def test_a_bare_span_of_the_hosts_is_filled_before_the_stream_is_closed(
    engine: AsyncEngine, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    core().on_submit = lambda native, number: native.emit(number, accepted=Accepted(), text="a", token_ids=[1])
    span = provider.get_tracer("host").start_span("mine")
    stream = engine.generate("hi", GREEDY, span=span)
    await anext(stream)
    await stream.aclose()
    span.end()
    assert attributes(only(exporter))["error.type"] == "aborted"
    assert open_mailboxes(engine) == 0


async def test_spans_started_are_spans_ended_after_every_way_out(
    engine: AsyncEngine, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    fates = [
        answer_at_once,
        lambda native, number: native.emit(number, failure=Failure("nan_logits")),
        lambda native, number: None,
    ]

    def answer(native: fake_engine.Engine, number: int) -> None:
        fates[number % 3](native, number)

    core().on_submit = answer
    tasks = [asyncio.ensure_future(run(engine)) for _ in range(30)]
    await asyncio.sleep(0.1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await all_told(engine)
    spans = exporter.get_finished_spans()
    assert len(spans) == 30
    types = [attributes(span).get("error.type") for span in spans]
    assert sorted(types, key=str) == [None] * 10 + ["aborted"] * 10 + ["nan_logits"] * 10


async def test_a_span_of_the_hosts_is_filled_and_left_open(
    engine: AsyncEngine, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    core().on_submit = answer_at_once
    span = provider.get_tracer("host").start_span("POST /v1/completions", kind=SpanKind.SERVER)
    await run(engine, span=span)
    assert exporter.get_finished_spans() == ()
    assert span.is_recording()
    span.end()
    assert attributes(only(exporter))["gen_ai.usage.output_tokens"] == 2


async def test_a_clients_fault_leaves_the_status_of_a_server_span_unset(
    engine: AsyncEngine, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    span = provider.get_tracer("host").start_span("POST /v1/completions", kind=SpanKind.SERVER)
    with pytest.raises(errors.InvalidParameterError):
        await run(engine, SamplingParams(top_p=0.0), span=span)
    span.end()
    assert only(exporter).status.status_code is StatusCode.UNSET
    assert attributes(only(exporter))["error.type"] == "invalid_parameter"


async def test_the_engines_span_is_a_child_of_the_hosts_current_one(
    engine: AsyncEngine, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    core().on_submit = answer_at_once
    with provider.get_tracer("host").start_as_current_span("caller") as caller:
        await run(engine)
    child = next(span for span in exporter.get_finished_spans() if span.name != "caller")
    assert child.parent is not None and child.parent.span_id == caller.get_span_context().span_id
    assert child.get_span_context().trace_id == caller.get_span_context().trace_id


async def test_without_a_recording_span_no_attribute_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("attributes were built for nobody")

    monkeypatch.setattr(telemetry, "request_attributes", refuse)
    config = EngineConfig(str(write_folder(tmp_path)), worker="scripted")
    async with AsyncEngine(config, tracer_provider=trace.NoOpTracerProvider()) as engine:
        core().on_submit = answer_at_once
        await run(engine)


def test_the_library_needs_the_api_of_opentelemetry_only() -> None:
    import subprocess
    import sys

    code = "import sys, diptych.telemetry; assert not [m for m in sys.modules if m.startswith('opentelemetry.sdk')]"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
