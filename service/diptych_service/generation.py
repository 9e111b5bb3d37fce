"""The two endpoints that generate: one flow, from the bytes of a request to its last frame."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import NamedTuple, TypeVar

from aiohttp import web

from diptych import AsyncEngine, Output, SamplingParams
from diptych.errors import RequestError
from diptych.params import MAX_CHOICES
from diptych_service import tracing
from diptych_service.answers import Answer, chat_body, completion_body, usages_of
from diptych_service.body import read_request
from diptych_service.chunks import ChunkKind, Chunks, Identity, View, failed
from diptych_service.echo import echoed
from diptych_service.errors import ApiError, BadRequest, from_exception, model_not_found, shutting_down
from diptych_service.fields import CHAT_FIELDS, COMPLETION_FIELDS, FieldTable
from diptych_service.keep_alive import KEEP_ALIVE_KEY
from diptych_service.lifecycle import LIFECYCLE
from diptych_service.logprobs import wanted_logprobs, wanted_prompt_logprobs
from diptych_service.merge import Merge
from diptych_service.messages import template_messages
from diptych_service.prompts import prompts_of
from diptych_service.receive import receive_body
from diptych_service.sampling import sampling_params
from diptych_service.schema import ChatRequest, CompletionRequest, SamplingFields, StreamOptions
from diptych_service.stall import STALL_WATCH
from diptych_service.tenants import caller_of
from diptych_service.tools import checked_tools

Request = TypeVar("Request", bound=SamplingFields)
Source = AsyncGenerator[Output, None]

# Completions without max_tokens get this many, as in the OpenAI API; chat gets what the context leaves.
COMPLETION_MAX_TOKENS = 16
EXPLAIN_HEADER = "x-diptych-explain"


class Sources(NamedTuple):
    """One stream for each prompt of a request, with the outputs of its `choices`."""

    streams: Sequence[Source]
    choices: int

    @classmethod
    def of(cls, streams: Sequence[Source], params: SamplingParams) -> Sources:
        """With a number of choices that the engine will refuse, once the streams are read, nothing is made ready."""
        return cls(streams, params.n if 1 <= params.n <= MAX_CHOICES else 1)


class Endpoint(NamedTuple):
    """What differs between the endpoints once the engine has the request."""

    id_prefix: str
    prompt_field: str
    chunks: ChunkKind
    body: Callable[..., bytes]


CHAT = Endpoint("chatcmpl-", "messages", "chat", chat_body)
COMPLETIONS = Endpoint("cmpl-", "prompt", "completions", completion_body)


class Generation:
    """Handlers of /v1/completions and /v1/chat/completions over one engine."""

    def __init__(self, engine: AsyncEngine, model_name: Callable[[], str]) -> None:
        self._engine = engine
        self._model_name = model_name

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body, ignored, arrived = await self._read(request, CompletionRequest, COMPLETION_FIELDS)
        prompts = await prompts_of(body.prompt)
        max_tokens = COMPLETION_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        caller, explain = caller_of(request, ignored), wants_explanation(request)
        params = sampling_params(body, self._engine.model.default_sampling, max_tokens, caller, explain=explain)
        self._check_room(len(prompts), params)
        span = tracing.span_for_sources(request, len(prompts))
        sources = [
            self._engine.generate(
                prompt,
                params,
                arrived_ns=arrived,
                add_special_tokens=body.add_special_tokens is not False,
                span=span,
            )
            for prompt in prompts
        ]
        if body.echo:
            sources = [echoed(source, params.logprobs or 0) for source in sources]
        return await self._answer(request, body, ignored, COMPLETIONS, Sources.of(sources, params))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body, ignored, arrived = await self._read(request, ChatRequest, CHAT_FIELDS)
        messages, ignored_in_messages = template_messages(body.messages)
        tools = checked_tools(body.tools)
        if body.add_generation_prompt and body.continue_final_message:
            message = "add_generation_prompt and continue_final_message exclude each other."
            raise BadRequest(message, param="continue_final_message", code="invalid_parameter")
        continues = bool(body.continue_final_message)
        caller, explain = caller_of(request, ignored), wants_explanation(request)
        most = chat_max_tokens(body)
        params = sampling_params(body, self._engine.model.default_sampling, most, caller, explain=explain)
        source = self._engine.chat(
            messages,
            params,
            arrived_ns=arrived,
            add_generation_prompt=not continues if body.add_generation_prompt is None else body.add_generation_prompt,
            continue_final_message=continues,
            tools=tools,
            tool_choice=body.tool_choice,
            parallel_tool_calls=body.parallel_tool_calls is not False,
            documents=body.documents,
            chat_template_kwargs=body.chat_template_kwargs,
            span=tracing.span_for_sources(request, 1),
        )
        return await self._answer(request, body, ignored + ignored_in_messages, CHAT, Sources.of([source], params))

    def _check_room(self, prompts: int, params: SamplingParams) -> None:
        """Refuses outputs that could not all run or wait even alone, before anything is made ready for them."""
        config = self._engine.config
        room, outputs = config.max_running + config.max_queued_requests, prompts * params.num_drawn
        # Numbers that are none at all the engine refuses by itself.
        if outputs <= room or not 1 < params.num_drawn <= MAX_CHOICES:
            return
        name = "n" if params.best_of is None else "best_of"
        message = (
            f"{name}={params.num_drawn}: with {prompts} prompts that makes {outputs} outputs, and at most {room} "
            f"(max_running + max_queued_requests) can run or wait: ask for fewer, or send fewer prompts at once"
        )
        raise BadRequest(message, param=name, code="never_fits")

    async def _read(
        self, request: web.Request, struct: type[Request], table: FieldTable
    ) -> tuple[Request, list[str], int]:
        """The checked request, its fields without effect, and when its last byte had arrived."""
        raw = await receive_body(request)
        arrived = time.monotonic_ns()
        body, ignored = read_request(raw, struct, table)
        # Not whether the worker is alive: while it is restarted, requests wait in the queue.
        model = self._model_name()
        tracing.name_model(request, model, bool(body.stream))
        if body.model is not None and body.model != model:
            raise model_not_found(body.model)
        if body.stream:
            _refuse_streaming(body)
        if body.stream_options is not None and not body.stream:
            message = "stream_options is only allowed when stream is true."
            raise BadRequest(message, param="stream_options", code="invalid_parameter")
        return body, ignored, arrived

    async def _answer(
        self,
        request: web.Request,
        body: SamplingFields,
        ignored: list[str],
        endpoint: Endpoint,
        sources: Sources,
    ) -> web.StreamResponse:
        identity = Identity(endpoint.id_prefix + secrets.token_hex(16), int(time.time()), self._model_name())
        tracing.name_response(request, identity.id)
        headers = {"x-diptych-ignored": ", ".join(sorted(ignored))} if ignored else {}
        view = view_of(body)
        with request.app[LIFECYCLE].track():
            if body.stream:
                chunks = Chunks(endpoint.chunks, identity, view, len(sources.streams), sources.choices)
                return await Stream(request, chunks, headers, endpoint.prompt_field).run(sources)
            try:
                answers = await _collect(sources)
            except asyncio.CancelledError:
                if not request.app[LIFECYCLE].was_interrupted():
                    raise
                raise shutting_down() from None
            except RequestError as error:
                raise from_exception(error, endpoint.prompt_field) from None
        tracing.record_usage(request, usages_of(answers, sources.choices))
        payload = endpoint.body(identity, answers, sources.choices, view)
        return web.Response(body=payload, content_type="application/json", headers=headers)


def _refuse_streaming(body: SamplingFields) -> None:
    """Of what is known at the end only."""
    if body.use_beam_search:
        field, what = "use_beam_search", "use_beam_search=true"
    elif body.best_of is not None and body.best_of > (body.n or 1):
        field, what = "best_of", f"best_of={body.best_of} with n={body.n or 1}"
    elif body.prompt_logprobs is not None:
        message = "prompt_logprobs is told by whole answers only: leave out stream or prompt_logprobs."
        raise BadRequest(message, param="prompt_logprobs", code="invalid_parameter")
    else:
        return
    message = (
        f"{what} cannot be streamed, because which outputs are best is known at the end: leave out stream or {field}."
    )
    raise BadRequest(message, param=field, code="invalid_parameter")


def chat_max_tokens(body: ChatRequest) -> int | None:
    """`max_completion_tokens` wins over `max_tokens`. A wrong one is refused here, by the name that was sent."""
    chosen = body.max_completion_tokens
    if chosen is None:
        return body.max_tokens
    if not 1 <= chosen < 2**31:
        message = f"max_completion_tokens={str(chosen)[:40]}: expected a number from 1 to {2**31 - 1}"
        raise BadRequest(message, param="max_completion_tokens", code="invalid_parameter")
    return chosen


def wants_explanation(request: web.Request) -> bool:
    """Whether the client asks, by a header, that `usage` says why its request went as it did."""
    asked = request.headers.get(EXPLAIN_HEADER, "0").strip().lower()
    if asked in ("1", "true"):
        return True
    if asked in ("0", "false"):
        return False
    message = f"{EXPLAIN_HEADER}: {asked[:40]!r} is neither 1 nor 0."
    raise BadRequest(message, param=EXPLAIN_HEADER, code="invalid_parameter")


def view_of(body: SamplingFields) -> View:
    options = body.stream_options or StreamOptions()
    return View(
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.continuous_usage_stats),
        token_ids=bool(body.return_token_ids),
        logprobs=wanted_logprobs(body) is not None,
        prompt_logprobs=wanted_prompt_logprobs(body),
        reasoning=not isinstance(body, ChatRequest) or body.include_reasoning is not False,
    )


async def _collect(sources: Sources) -> list[Answer]:
    """The answers, those of one prompt side by side."""
    answers = [Answer() for _ in range(len(sources.streams) * sources.choices)]
    async with Merge(sources.streams) as outputs:
        async for batch in outputs:
            for source, output in batch:
                first = source * sources.choices
                if output.accepted:
                    for answer in answers[first : first + sources.choices]:
                        answer.accept(output)
                else:
                    answers[first + output.choice].add(output)
    return answers


class Stream:
    """Answers one request with server-sent events.

    The status and headers go out when the engine has accepted every prompt, so that a refusal still has a status of its
    own. Later errors become a frame. Whatever is ready for the client goes into one write.
    """

    def __init__(self, request: web.Request, chunks: Chunks, headers: dict[str, str], prompt_field: str) -> None:
        self._request = request
        self._prompt_field = prompt_field
        self._chunks = chunks
        self._watch = request.app[STALL_WATCH]
        self._keep_alive = request.app[KEEP_ALIVE_KEY]
        self._response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",
                **headers,
            }
        )

    async def run(self, sources: Sources) -> web.StreamResponse:
        try:
            tail = await self._to_the_end(sources)
            self._watch.wrote(self._request.transport, len(tail))
            # The last frames and the end of the body leave together: some clients wait for the end.
            await self._response.write_eof(tail)
        except ConnectionError:
            # Between the peer's reset and the handler's cancellation a write already fails.
            tracing.record_disconnect(self._request)
        return self._response

    async def _to_the_end(self, sources: Sources) -> bytes:
        """Stream everything but the last write, which is returned: the end, or the error that came instead."""
        try:
            return await self._generate(sources)
        except asyncio.CancelledError:
            if not self._request.app[LIFECYCLE].was_interrupted():
                raise
            return self._failed(shutting_down())
        except ConnectionError:
            raise
        except Exception as error:
            return self._failed(from_exception(error, self._prompt_field))
        finally:
            self._keep_alive.end(self._response)

    async def _generate(self, sources: Sources) -> bytes:
        chunks = self._chunks
        unwritten: list[bytes] = []
        async with Merge(sources.streams) as outputs:
            async for batch in outputs:
                for index, output in batch:
                    unwritten.append(chunks.of(index, output))
                if not chunks.all_accepted:
                    continue
                if not self._response.prepared:
                    await self._response.prepare(self._request)
                    self._keep_alive.begin(self._request.transport, self._response)
                    tracing.record_status(self._request, self._response.status)
                if not chunks.all_finished and (data := b"".join(unwritten)):
                    unwritten.clear()
                    await self._write(data)
        tracing.record_usage(self._request, chunks.usages())
        return b"".join(unwritten) + chunks.closing()

    def _failed(self, error: ApiError) -> bytes:
        """An error after the headers: a frame with it and the terminator; before them, the answer itself."""
        if not self._response.prepared:
            raise error
        tracing.record_error(self._request, error)
        return failed(error.body())

    async def _write(self, data: bytes) -> None:
        self._watch.wrote(self._request.transport, len(data))
        await self._response.write(data)
