"""One complete span per request, whatever became of it; the host's tracer, context in and out."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web
from aiohttp.typedefs import Handler
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from raw_client import RawClient
from service_rig import CLIENT, ServiceThread, wait_until

from diptych import AsyncEngine, EngineConfig
from diptych_service import create_app

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def traced(model_folder: Path) -> Iterator[tuple[ServiceThread, InMemorySpanExporter]]:
    """A slow service whose spans are kept. The provider is handed to `get_tracer`: the global one stays as it is."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "get_tracer_provider", lambda: provider)
        with ServiceThread(model_folder, script_step_ms=5.0) as service:
            yield service, exporter
    provider.shutdown()


def only_span(exporter: InMemorySpanExporter) -> ReadableSpan:
    wait_until(lambda: bool(exporter.get_finished_spans()), what="a span")
    (span,) = exporter.get_finished_spans()
    exporter.clear()
    return span


Traced = tuple[ServiceThread, InMemorySpanExporter]


def test_a_finished_request(traced: Traced) -> None:
    service, exporter = traced
    body = BODY | {"temperature": 0, "seed": 0}
    response = CLIENT.post(service.url + CHAT, json=body, headers={"traceparent": PARENT})
    span = only_span(exporter)
    assert span.name == f"chat {service.model}" and span.kind is SpanKind.SERVER
    assert span.parent is not None and f"{span.parent.span_id:016x}" == PARENT.split("-")[2]
    assert f"{span.context.trace_id:032x}" == PARENT.split("-")[1]
    assert response.headers["traceparent"].split("-")[1:3] == [PARENT.split("-")[1], f"{span.context.span_id:016x}"]
    attributes = dict(span.attributes or {})
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "diptych",
        "gen_ai.request.model": service.model,
        "gen_ai.request.stream": False,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.seed": 0,
        "gen_ai.request.max_tokens": 4,
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.response.id": response.json()["id"],
        "gen_ai.usage.input_tokens": response.json()["usage"]["prompt_tokens"],
        "gen_ai.usage.output_tokens": 4,
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": CHAT,
    }
    assert {name: attributes.get(name) for name in expected} == expected
    for name in ("diptych.time_in_queue", "diptych.time_to_first_token", "diptych.time_in_decode"):
        assert attributes[name] >= 0.0, name
    assert {event.name for event in span.events} >= {"diptych.admitted", "diptych.first_token"}
    assert span.status.status_code is StatusCode.UNSET and "error.type" not in attributes


def test_outputs_that_were_drawn_and_not_given_count(traced: Traced) -> None:
    service, exporter = traced
    answer = CLIENT.post(service.url + CHAT, json=BODY | {"n": 2, "best_of": 3}).json()
    attributes = dict(only_span(exporter).attributes or {})
    assert attributes["gen_ai.usage.output_tokens"] == answer["usage"]["completion_tokens"] == 12


def test_a_stream(traced: Traced) -> None:
    service, exporter = traced
    CLIENT.post(service.url + CHAT, json=BODY | {"stream": True})
    attributes = dict(only_span(exporter).attributes or {})
    assert attributes["gen_ai.request.stream"] is True and attributes["gen_ai.usage.output_tokens"] == 4


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_whose_client_left(traced: Traced, stream: bool) -> None:
    service, exporter = traced
    before = service.stats().generation_tokens
    with RawClient(service.port) as client:
        client.post(CHAT, BODY | {"max_tokens": 1500, "stream": stream})
        if stream:
            client.read_until(b"data: ")
        # Some tokens later than the first: the core counts them before their frames arrive.
        wait_until(lambda: service.stats().generation_tokens > before + 64)
    span = only_span(exporter)
    attributes = dict(span.attributes or {})
    assert attributes["error.type"] == "aborted" and attributes["gen_ai.response.finish_reasons"] == ("abort",)
    assert span.status.status_code is StatusCode.ERROR
    assert attributes["gen_ai.request.model"] == service.model
    assert attributes.get("http.response.status_code") == (200 if stream else None)
    for part in ("tokeniser", "queue", "prefill", "decode"):
        assert attributes[f"diptych.time_in_{part}"] >= 0.0
    names = [event.name.removeprefix("diptych.") for event in span.events]
    assert names.count("decision") == 2
    assert [name for name in names if name != "decision"] == ["tokenised", "admitted", "first_token", "aborted"]
    assert not any(queue.mailboxes for queue in service.engine._queues._queues.values())


def test_children_of_a_request_whose_client_left_are_complete(traced: Traced) -> None:
    service, exporter = traced
    with RawClient(service.port) as client:
        client.post("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 1500, "ignore_eos": True})
        wait_until(lambda: service.stats().requests_running == 2 and service.stats().generation_tokens > 1)
    wait_until(lambda: len(exporter.get_finished_spans()) == 3, what="three spans")
    children = [span for span in exporter.get_finished_spans() if span.kind is SpanKind.INTERNAL]
    exporter.clear()
    assert len(children) == 2
    for child in children:
        assert {"diptych.time_in_queue", "diptych.time_total"} <= dict(child.attributes or {}).keys()
        assert "diptych.admitted" in [event.name for event in child.events]


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ("{", 400, "invalid_json"),
        (json.dumps(BODY | {"max_tokens": 10**6}), 400, "context_length_exceeded"),
        (json.dumps(BODY | {"temperature": -1}), 400, "invalid_parameter"),
        (json.dumps(BODY | {"model": "nobody"}), 404, "model_not_found"),
    ],
)
def test_a_refused_request(traced: Traced, body: str, status: int, kind: str) -> None:
    service, exporter = traced
    assert CLIENT.post(service.url + CHAT, content=body).status_code == status
    span = only_span(exporter)
    attributes = dict(span.attributes or {})
    assert attributes["error.type"] == kind and attributes["http.response.status_code"] == status
    # A client's error leaves the status of a server span unset, by the HTTP conventions.
    assert span.status.status_code is StatusCode.UNSET


def test_several_prompts_are_children_of_one_server_span(traced: Traced) -> None:
    service, exporter = traced
    service.complete(["a", "b"], 3)
    wait_until(lambda: len(exporter.get_finished_spans()) == 3)
    *children, server = sorted(exporter.get_finished_spans(), key=lambda span: span.kind is SpanKind.SERVER)
    exporter.clear()
    assert server.kind is SpanKind.SERVER and [child.kind for child in children] == [SpanKind.INTERNAL] * 2
    assert {child.parent.span_id for child in children if child.parent} == {server.context.span_id}
    assert dict(server.attributes or {})["gen_ai.usage.output_tokens"] == 6


async def test_a_server_span_of_the_hosts_instrumentation_is_used(model_folder: Path) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("instrumentation")

    @web.middleware
    async def instrument(request: web.Request, handler: Handler) -> web.StreamResponse:
        with tracer.start_as_current_span("POST /v1", kind=SpanKind.SERVER):
            return await handler(request)

    engine = AsyncEngine(
        EngineConfig(model=str(model_folder), worker="scripted", max_running=4), tracer_provider=provider
    )
    async with engine:
        app = create_app(engine)
        # As instrumentation of aiohttp does.
        app.middlewares.insert(0, instrument)
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with httpx.AsyncClient() as client:
            await client.post(url + CHAT, json=BODY)
        await runner.cleanup()
    span = only_span(exporter)
    assert span.name == "POST /v1" and dict(span.attributes or {})["gen_ai.usage.output_tokens"] == 4
    provider.shutdown()


def test_probes_and_models_have_no_span(traced: Traced) -> None:
    service, exporter = traced
    for path in ("/health", "/metrics", "/v1/models", "/nothing"):
        CLIENT.get(service.url + path)
    assert not exporter.get_finished_spans()
