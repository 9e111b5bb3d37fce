"""`AsyncEngine`: the engine for asyncio programs, in any number of event loops and threads."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import Span, TracerProvider

from diptych.blocking import in_thread
from diptych.config import EngineConfig
from diptych.errors import (
    ContextLengthError,
    DiptychError,
    EngineClosedError,
    EngineFailure,
    OverloadedError,
    from_kind,
)
from diptych.explanation import Explanation
from diptych.handle import EngineHandle, checked_limit
from diptych.kv_events import KvEvents, KvSnapshot
from diptych.loop_queue import LoopQueue, LoopQueues
from diptych.mailbox import Mailbox
from diptych.model_info import ModelInfo
from diptych.output import Output
from diptych.params import SamplingParams, params_json
from diptych.record import RequestRecord
from diptych.requests import ChatExtras, Prompt, chat_prompt
from diptych.stats import MAX_RETRY_AFTER_S, EngineStats, retry_after_s
from diptych.telemetry import HeldSpan, fill_span, make_tracer, open_span

if TYPE_CHECKING:
    from diptych_core.engine import Failure

CLOSE_LIMIT_S = 5.0


class AsyncEngine:
    """One model, served to coroutines.

        async with AsyncEngine(EngineConfig("smollm2-135m")) as engine:
            async for output in engine.generate("Once upon a time", SamplingParams(max_tokens=32)):
                print(output.text, end="")

    It installs no signal handler and touches no environment variable, logger, event-loop policy or tracer provider of
    the host's. Once started it may be used from any running event loop. Closed, or at the interpreter's exit, it gives
    back all it took. In a forked child every call raises `EngineForkedError`.
    """

    def __init__(self, config: EngineConfig, *, tracer_provider: TracerProvider | None = None) -> None:
        """Nothing is started or read yet. `tracer_provider`: instead of OpenTelemetry's global one."""
        self._config = config
        self._tracer = make_tracer(tracer_provider)
        self._handle: EngineHandle | None = None
        self._starting = False
        self._given_up = threading.Event()
        self._start_over = threading.Event()
        self._queues = LoopQueues()
        self._finalizer: weakref.finalize[[EngineHandle, LoopQueues], AsyncEngine] | None = None

    async def start(self) -> None:
        """Fetch the model if need be, start the worker, and wait until it is ready.

        Raises `EngineStartError`, or `EngineClosedError` if the engine is closed meanwhile.
        """
        if self._starting:
            raise EngineClosedError("the engine was started before; make a new one to start again")
        self._starting = True
        config, given_up = self._config, self._given_up
        try:
            handle = await in_thread(lambda: EngineHandle(config, given_up), on_orphan=lambda orphan: orphan.close(0.0))
            if given_up.is_set():
                await in_thread(lambda: handle.close(0.0))
                raise EngineClosedError("the engine was closed while it started")
            self._handle = handle
            self._finalizer = weakref.finalize(self, _shut_down, handle, self._queues)
        finally:
            if self._handle is None:
                given_up.set()
            self._start_over.set()

    async def close(self, limit_s: float = CLOSE_LIMIT_S) -> None:
        """Fail what is running, end the worker (killed after `limit_s`), give everything back. Idempotent.

        During a start, which then fails, the worker is killed at once.
        """
        limit_s = checked_limit(limit_s)
        handle = self._handle
        if handle is None:
            if self._starting:
                self._given_up.set()
                await in_thread(self._start_over.wait)
            return
        try:
            await in_thread(lambda: handle.close(limit_s))
        finally:
            self._queues.close()
            if self._finalizer is not None:
                self._finalizer.detach()

    async def __aenter__(self) -> AsyncEngine:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def config(self) -> EngineConfig:
        """The configuration; after `start`, with everything automatic decided."""
        return self._config if self._handle is None else self._handle.config

    @property
    def model_name(self) -> str:
        """The name under which the model is served."""
        return self._running().model_name

    @property
    def model(self) -> ModelInfo:
        return self._running().model

    @property
    def timings(self) -> dict[str, float]:
        """Seconds that the parts of the start took."""
        return self._running().timings

    @property
    def ready(self) -> bool:
        """Whether requests are being served now: started, not closed, and the worker alive."""
        try:
            return self._handle is not None and self._handle.stats().worker_alive
        except EngineClosedError:
            return False

    def stats(self) -> EngineStats:
        self._queues.sweep()
        return self._running().stats()

    def worker_pid(self) -> int | None:
        """The worker's process id; None where it has no process of its own, or is being restarted."""
        return self._running().worker_pid()

    async def explain(self, request: int) -> Explanation | None:
        """Why a request goes or went as it did; `request` is the number in its first output.

        None for one that the core has never had, or has forgotten: the last 64 to 1,024 (as many as `max_running`) that
        have ended are remembered.
        """
        handle = self._running()
        return await in_thread(lambda: handle.explain(request))

    async def kv_events(self, start: int = 0, limit: int = 1000) -> KvEvents:
        """At most `limit` events of the prefix cache from number `start` on; needs the setting `kv_events`.

        Raises `RequestError` for events that are not kept: begin with `kv_snapshot` then.
        """
        handle = self._running()
        return await in_thread(lambda: handle.kv_events(start, limit))

    async def kv_snapshot(self) -> KvSnapshot:
        """Every block that a prefix lookup can find now, and the number of the event that comes next."""
        handle = self._running()
        return await in_thread(handle.kv_snapshot)

    def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        *,
        arrived_ns: int | None = None,
        add_special_tokens: bool = True,
        span: Span | HeldSpan | None = None,
    ) -> AsyncGenerator[Output, None]:
        """Continue `prompt`, text or token ids. The stream begins with the request's acceptance.

        Leaving the stream early (`aclose`, cancellation, or dropping it) aborts the request. Raises `RequestError` for
        what is wrong with it, `OverloadedError` if there is too much work, `RequestTimeoutError`, `EngineFailure`,
        `EngineClosedError`.
        `arrived_ns`: CLOCK_MONOTONIC at the request's arrival. `span`: filled, not ended; None opens one of its own.
        The times of an aborted request are complete a step later: a `HeldSpan` waits for them, a bare one lacks some.
        """
        return self._stream(lambda: Prompt(prompt, add_special_tokens), "text_completion", params, arrived_ns, span)

    def chat(  # noqa: PLR0913 (what a chat request says, by keyword)
        self,
        messages: Sequence[dict[str, Any]],
        params: SamplingParams,
        *,
        arrived_ns: int | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[dict[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool = True,
        documents: Sequence[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        span: Span | HeldSpan | None = None,
    ) -> AsyncGenerator[Output, None]:
        """Answer `messages`, rendered by the model's chat template; else as `generate`. Also raises `TemplateError`.

        `tools`, in the form of OpenAI's API, may be called: the calls are in the outputs' `tool_calls`, at most one
        unless `parallel_tool_calls`. `tool_choice`, as there: "auto" (the same as None), "none" (the model is not shown
        them), "required" (the answer is calls alone, arguments by the tools' schemas), `{"type": "function",
        "function": {"name": ...}}` (one call of this function), or allowed_tools. With "auto" the arguments of
        functions that are `strict` follow their schemas. A schema that cannot be compiled is an
        `InvalidParameterError` of kind "invalid_grammar"; a forced call cannot go with structured outputs.
        Reasoning is in `reasoning`. How the model writes it and calls says the configuration.
        `documents` are for templates that show them.
        """

        def rendered() -> Prompt:
            return chat_prompt(
                messages,
                ChatExtras(tools, documents, chat_template_kwargs, tool_choice, parallel_tool_calls),
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
            )

        return self._stream(rendered, "chat", params, arrived_ns, span)

    async def _stream(
        self,
        make_prompt: Callable[[], Prompt],
        operation: str,
        params: SamplingParams,
        arrived_ns: int | None,
        span: Span | HeldSpan | None,
    ) -> AsyncGenerator[Output, None]:
        handle = self._running()
        record = RequestRecord(operation, handle.model_name, params, arrived_ns or time.monotonic_ns())
        if span is None:
            own_span = HeldSpan(open_span(self._tracer, operation, record.model, record.arrived_ns))
            span = own_span
        else:
            own_span = None
        request: tuple[LoopQueue, Mailbox, int] | None = None
        try:
            recorded = (span.span if isinstance(span, HeldSpan) else span).is_recording()
            request = self._submit(handle, make_prompt(), record, explain=recorded)
            mailbox = request[1]
            while True:
                # Asked before taking: more may arrive, and the end with it, while the reader is busy with an output.
                ended = mailbox.ended
                for output in mailbox.take():
                    yield output
                if ended:
                    break
                await mailbox.wait()
            if (failure := mailbox.failure()) is not None or record.finish_reason == "abort":
                raise self._error(failure, params)
        except BaseException as error:
            record.error = error
            raise
        finally:
            record.finished_ns = time.monotonic_ns()
            if request is None or request[1].ended:
                fill_span(span.span if isinstance(span, HeldSpan) else span, record)
            else:
                _leave(handle, request, span)
            if own_span is not None:
                own_span.end()

    def _submit(
        self, handle: EngineHandle, prompt: Prompt, record: RequestRecord, *, explain: bool
    ) -> tuple[LoopQueue, Mailbox, int]:
        params = record.params
        params.validate(handle.model.vocabulary, handle.config.max_running)
        queue = self._queues.of_running_loop(handle.frame_queue)
        encoded = params_json(params, prompt, explain=explain)
        number = handle.submit(queue.frames, prompt.content, encoded, record.arrived_ns, chat=prompt.chat)
        # No frame can be missed: this loop's drain runs in this thread, after this line.
        mailbox = queue.mailboxes[number] = Mailbox(record)
        return queue, mailbox, number

    def _error(self, failure: Failure | DiptychError | None, params: SamplingParams) -> DiptychError:
        if isinstance(failure, DiptychError):
            return failure
        if failure is None:
            return EngineFailure("the request was aborted", kind="aborted")
        error = from_kind(failure.kind, failure.message, failure.details)
        if isinstance(error, ContextLengthError) and params.max_tokens is None:
            return error.without_max_tokens()
        if isinstance(error, OverloadedError) and self._handle is not None and not self._handle.closed:
            return self._with_retry_after(error, told="retry_after_s" in failure.details)
        return error

    def _with_retry_after(self, error: OverloadedError, *, told: bool) -> OverloadedError:
        """With the core's own estimate, or one from the time that requests took so far."""
        handle = self._running()
        seconds = min(error.retry_after_s, MAX_RETRY_AFTER_S) if told else retry_after_s(handle.stats())
        return OverloadedError(error.message, kind=error.kind, retry_after_s=seconds, details=error.details)

    def _running(self) -> EngineHandle:
        if self._handle is None:
            raise EngineClosedError("the engine is not started: use `async with`, or await start()")
        return self._handle


def _leave(handle: EngineHandle, request: tuple[LoopQueue, Mailbox, int], span: Span | HeldSpan) -> None:
    """The stream's reader is gone before the request has ended: abort it. A held span waits for what the core tells."""
    queue, mailbox, number = request
    record = mailbox.record
    if isinstance(span, HeldSpan) and span.span.is_recording() and not handle.forked:
        span.hold()
        mailbox.leave(lambda: span.release(record))
    else:
        queue.mailboxes.pop(number, None)
        fill_span(span.span if isinstance(span, HeldSpan) else span, record)
    handle.abort(number)


def _shut_down(handle: EngineHandle, queues: LoopQueues) -> None:
    """For engines that were dropped, or are still open when the interpreter ends."""
    handle.close(CLOSE_LIMIT_S)
    if not handle.forked:
        queues.close()
