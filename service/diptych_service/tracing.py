"""One SERVER span per request that generates: complete whether it finished, failed, was refused or was aborted.

The host's tracer is used, through opentelemetry-api; without an SDK nothing is recorded, and the context of the caller
is still handed on. If instrumentation of aiohttp has opened a server span already, that one is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler
from opentelemetry import propagate, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from diptych import Usage
from diptych.telemetry import HeldSpan
from diptych_service import __version__
from diptych_service.errors import ApiError, from_exception

# Paths whose requests get a span, with their `gen_ai.operation.name`.
OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}
PROVIDER = "diptych"

_SPAN = web.RequestKey("span", Span)
# Absent where instrumentation of the host's opened the span: its name and its end are the host's affair.
_HELD = web.RequestKey("held_span", HeldSpan)


@web.middleware
async def trace_requests(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Opens the span, makes it current for the handler, and ends it with the outcome."""
    operation = OPERATIONS.get(request.path)
    if operation is None or request.method != "POST":
        return await handler(request)
    current = trace.get_current_span()
    if current.is_recording() and getattr(current, "kind", None) is SpanKind.SERVER:
        span = current
    else:
        tracer = trace.get_tracer("diptych_service", __version__)
        context = propagate.extract(request.headers)
        span = tracer.start_span(operation, context=context, kind=SpanKind.SERVER)
        request[_HELD] = HeldSpan(span)
    request[_SPAN] = span
    if span.is_recording():
        span.set_attributes(_request_attributes(request, operation))
    try:
        with trace.use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
            return await _outcome(request, handler, span)
    finally:
        if (held := request.get(_HELD)) is not None:
            held.end()


async def _outcome(request: web.Request, handler: Handler, span: Span) -> web.StreamResponse:
    try:
        response = await handler(request)
    except (asyncio.CancelledError, ConnectionError):
        record_disconnect(request)
        raise
    except Exception as error:
        answer = from_exception(error)
        record_error(request, answer)
        span.set_attribute("http.response.status_code", answer.status)
        raise answer from None
    span.set_attribute("http.response.status_code", response.status)
    return response


def response_headers(request: web.BaseRequest) -> dict[str, str]:
    """The context of the request's span, for the answer."""
    span = request.get(_SPAN)
    headers: dict[str, str] = {}
    if span is not None and span.get_span_context().is_valid:
        propagate.inject(headers, trace.set_span_in_context(span))
    return headers


def span_for_sources(request: web.Request, num_sources: int) -> Span | HeldSpan | None:
    """The span that the engine shall fill: the request's own, or None for several prompts, which get one each."""
    return (request.get(_HELD) or request.get(_SPAN)) if num_sources == 1 else None


def name_model(request: web.Request, model: str, stream: bool) -> None:
    span = _recording(request)
    if span is not None:
        span.set_attributes({"gen_ai.request.model": model, "gen_ai.request.stream": stream})
        if _HELD in request:
            span.update_name(f"{OPERATIONS[request.path]} {model}")


def name_response(request: web.Request, response_id: str) -> None:
    span = _recording(request)
    if span is not None:
        span.set_attribute("gen_ai.response.id", response_id)


def record_status(request: web.Request, status: int) -> None:
    """The headers have left, whatever becomes of the rest."""
    span = _recording(request)
    if span is not None:
        span.set_attribute("http.response.status_code", status)


def record_usage(request: web.Request, usages: Sequence[Usage]) -> None:
    """Totals over all prompts of the request."""
    span = _recording(request)
    if span is not None:
        span.set_attributes(
            {
                "gen_ai.usage.input_tokens": sum(usage.prompt_tokens for usage in usages),
                "gen_ai.usage.output_tokens": sum(usage.completion_tokens + usage.discarded_tokens for usage in usages),
                "gen_ai.usage.cache_read.input_tokens": sum(usage.cached_tokens for usage in usages),
            }
        )


def record_error(request: web.Request, error: ApiError) -> None:
    """A refusal is the client's error and leaves the status of a server span unset; the kind is there for both."""
    span = _recording(request)
    if span is not None:
        span.set_attribute("error.type", error.kind)
        if error.status >= 500:
            span.set_status(Status(StatusCode.ERROR, error.message))


def record_disconnect(request: web.Request) -> None:
    span = _recording(request)
    if span is not None:
        span.set_attributes({"error.type": "aborted", "gen_ai.response.finish_reasons": ["abort"]})
        span.set_status(Status(StatusCode.ERROR, "the client disconnected before the answer was complete"))


def _recording(request: web.Request) -> Span | None:
    span: Span | None = request.get(_SPAN)
    return span if span is not None and span.is_recording() else None


def _request_attributes(request: web.Request, operation: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "http.request.method": request.method,
        "http.route": request.path,
        "url.path": request.path,
        "url.scheme": request.scheme,
    }
    agent = request.headers.get("User-Agent")
    if agent:
        attributes["user_agent.original"] = agent[:200]
    return attributes
