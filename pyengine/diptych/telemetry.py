"""Spans through opentelemetry-api: the host's tracer, one span a request, nothing built that nobody records.

Attribute names are those of the GenAI semantic conventions; what they lack stands under `diptych.`. Times are seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import msgspec
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, TracerProvider

from diptych.errors import DiptychError, OverloadedError, RequestError
from diptych.explanation import Explanation
from diptych.output import Timings
from diptych.params import SamplingParams
from diptych.record import RequestRecord

PROVIDER = "diptych"
_ABORTED = (GeneratorExit, asyncio.CancelledError, KeyboardInterrupt)


def make_tracer(provider: TracerProvider | None = None) -> Tracer:
    """The library's tracer of `provider`, or of the host's global one, whenever that is set."""
    from diptych import __version__

    return trace.get_tracer("diptych", __version__, tracer_provider=provider)


def open_span(tracer: Tracer, operation: str, model: str, arrived_ns: int) -> Span:
    """A span of the current context that began when the request arrived. Costs about a microsecond without an SDK."""
    return tracer.start_span(f"{operation} {model}", kind=SpanKind.INTERNAL, start_time=_wall_offset_ns() + arrived_ns)


class HeldSpan:
    """A span that ends once its owner is done with it and the core has told the times of what filled it.

    An aborted request's come with the core's own end of it, a step after its stream was left.
    """

    __slots__ = ("_ended", "_holds", "span")

    def __init__(self, span: Span) -> None:
        self.span = span
        self._holds = 0
        self._ended = False

    def hold(self) -> None:
        """The span stays open until `release`."""
        self._holds += 1

    def release(self, record: RequestRecord) -> None:
        """Fill the span from a complete record, and end it if its owner has."""
        fill_span(self.span, record)
        self._holds -= 1
        if self._ended and self._holds == 0:
            self.span.end()

    def end(self) -> None:
        """The owner's last word."""
        self._ended = True
        if self._holds == 0:
            self.span.end()


def fill_span(span: Span, record: RequestRecord) -> None:
    """Everything known of an ended request: attributes, events at their times, the status. Does not end the span."""
    if span.is_recording():
        _fill(span, record)
    record.error = None  # its traceback holds the frame of the stream, which holds the record


def _fill(span: Span, record: RequestRecord) -> None:
    span.set_attributes(request_attributes(record.operation, record.model, record.params))
    span.set_attributes(dict(_response_attributes(record)))
    offset = _wall_offset_ns()
    events: list[tuple[int, str, dict[str, Any]]] = [(moment, name, {}) for moment, name in sorted(_events(record))]
    if record.explanation is not None:
        span.set_attributes(dict(explanation_attributes(record.explanation)))
        events += [(moment, "diptych.decision", told) for moment, told in _decisions(record.explanation)]
    for moment, name, attributes in sorted(events, key=lambda event: event[0]):
        span.add_event(name, attributes, timestamp=offset + moment)
    _set_status(span, record.error)


def request_attributes(operation: str, model: str, params: SamplingParams) -> dict[str, Any]:
    """What was asked for. A value that is absent is left out; one that is 0 or false is not."""
    asked: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": model,
        "gen_ai.output.type": "text",
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.top_k": params.top_k,
        "gen_ai.request.presence_penalty": params.presence_penalty,
        "gen_ai.request.frequency_penalty": params.frequency_penalty,
        "gen_ai.request.seed": params.seed,
        "gen_ai.request.stop_sequences": list(params.stop) or None,
        "diptych.request.priority": params.priority,
        "diptych.request.tenant": params.tenant,
        "diptych.request.timeout": params.timeout,
        "diptych.request.ttft_timeout": params.ttft_timeout,
    }
    return {name: value for name, value in asked.items() if value is not None}


def error_type(error: BaseException) -> str:
    """The low-cardinality name of an ending that was not regular."""
    if isinstance(error, _ABORTED):
        return "aborted"
    return error.kind if isinstance(error, DiptychError) else type(error).__qualname__


def _response_attributes(record: RequestRecord) -> Iterator[tuple[str, Any]]:
    reason = record.finish_reason or _reason_of(record.error)
    yield "gen_ai.response.model", record.model
    yield "gen_ai.response.finish_reasons", [reason]
    yield "gen_ai.usage.output_tokens", record.completion_tokens
    yield "diptych.preemptions", record.preemptions
    if record.prompt_tokens is not None:
        yield "gen_ai.usage.input_tokens", record.prompt_tokens
    if record.cached_tokens is not None:
        yield "gen_ai.usage.cache_read.input_tokens", record.cached_tokens
    times = moments(record)
    for name, (begin, end) in {
        "diptych.time_in_prompt_queue": (times.arrived, times.prompt_taken),
        "diptych.time_in_template": (times.prompt_taken, times.rendered),
        "diptych.time_in_tokeniser": (times.rendered or times.prompt_taken or times.arrived, times.tokenised),
        "diptych.time_in_queue": (times.tokenised, times.admitted),
        "diptych.time_in_prefill": (times.admitted, times.first_token),
        "diptych.time_in_decode": (times.first_token, times.finished),
        "diptych.time_to_first_token": (times.arrived, times.first_token),
        "gen_ai.response.time_to_first_chunk": (times.arrived, times.first_token),
        "diptych.time_total": (times.arrived, times.finished),
    }.items():
        if begin and end:
            yield name, max(end - begin, 0) / 1e9


def explanation_attributes(explanation: Explanation) -> Iterator[tuple[str, Any]]:
    """What each limit cost, in seconds and steps, and where the match with the prefix cache ended."""
    for wait in explanation.waits:
        yield f"diptych.wait.{wait.reason}", wait.ns / 1e9
        yield f"diptych.wait_steps.{wait.reason}", wait.steps
    if (lookup := explanation.cache) is not None:
        yield "diptych.cache.match_end", lookup.end.reason
        if lookup.end.position is not None:
            yield "diptych.cache.match_end_position", lookup.end.position
        if lookup.end.ago_ns is not None:
            yield "diptych.cache.lost_ago", lookup.end.ago_ns / 1e9
    for chunks in explanation.chunks:
        yield f"diptych.chunks.{chunks.limit}", chunks.chunks
    for preemptions in explanation.preemptions:
        yield f"diptych.preempted_by.{preemptions.cause}", preemptions.count


def _decisions(explanation: Explanation) -> Iterator[tuple[int, dict[str, Any]]]:
    for decision in explanation.decisions:
        told = {name: value for name, value in msgspec.structs.asdict(decision).items() if value is not None}
        moment = told.pop("at")
        yield moment, {f"diptych.{name}": value for name, value in told.items()}


def moments(record: RequestRecord) -> Timings:
    """The core's moments; for a request whose end it has not told, what this process saw of it."""
    if record.timings is not None:
        return record.timings
    return Timings(record.arrived_ns, record.tokenised_ns, 0, record.first_token_ns, record.finished_ns)


def _events(record: RequestRecord) -> Iterator[tuple[int, str]]:
    times = moments(record)
    for name in ("tokenised", "admitted", "first_token"):
        if moment := getattr(times, name):
            yield moment, f"diptych.{name}"
    for moment, name in record.events:
        yield moment, f"diptych.{name}"
    if isinstance(record.error, _ABORTED):
        yield times.finished or time.monotonic_ns(), "diptych.aborted"


def _reason_of(error: BaseException | None) -> str:
    return "abort" if isinstance(error, _ABORTED) else "error"


def _set_status(span: Span, error: BaseException | None) -> None:
    if error is None:
        return
    kind = error_type(error)
    span.set_attribute("error.type", kind)
    if isinstance(error, OverloadedError):
        span.set_attribute("diptych.retry_after", error.retry_after_s)
    # HTTP's conventions leave a server's status unset when the fault is the client's.
    if getattr(span, "kind", None) is SpanKind.SERVER and isinstance(error, RequestError):
        return
    description = kind if isinstance(error, _ABORTED) else str(error)[:500]
    span.set_status(Status(StatusCode.ERROR, description))


def _wall_offset_ns() -> int:
    """What to add to a moment of CLOCK_MONOTONIC to get nanoseconds since the epoch."""
    return time.time_ns() - time.monotonic_ns()
