"""`LLM`: whole batches of prompts, without an event loop."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from diptych.config import EngineConfig
from diptych.errors import (
    ContextLengthError,
    DiptychError,
    EngineFailure,
    InvalidParameterError,
    OverloadedError,
    from_kind,
)
from diptych.handle import EngineHandle
from diptych.logprobs import Crossing, read_logprobs, read_prompt_logprobs
from diptych.mailbox import usage_of
from diptych.output import Completion, FinishReason, Timings
from diptych.params import SamplingParams, params_json
from diptych.ranking import best_completions
from diptych.requests import ChatExtras, Prompt, chat_prompt
from diptych.stats import EngineStats
from diptych.tool_calls import ToolCallPieces, joined_tool_calls

if TYPE_CHECKING:
    from diptych_core.engine import Finished, Frame, FrameQueue

CLOSE_LIMIT_S = 5.0
# Python handles signals between two waits, so Ctrl-C is answered within this time.
WAIT_S = 0.2
FULL_PAUSE_S = 0.02
DEFAULT_PARAMS = SamplingParams()


class LLM:
    """One model for scripts and notebooks. Starting it blocks until the worker is ready.

        with LLM("smollm2-135m") as llm:
            for result in llm.generate(["2 + 2 =", "3 + 3 ="], SamplingParams(max_tokens=8)):
                print(result.text)

    Calls block their thread, work in any thread, and need no event loop; made inside a running one they finish all the
    same, but nothing else runs in that loop meanwhile: use `AsyncEngine` there.
    """

    def __init__(self, model: str | EngineConfig, **settings: Any) -> None:
        """`settings` are fields of `EngineConfig`. Raises `ConfigError` or `EngineStartError`."""
        if isinstance(model, EngineConfig) and settings:
            raise TypeError(f"settings {sorted(settings)} beside an EngineConfig: put them into it")
        config = model if isinstance(model, EngineConfig) else EngineConfig(model, **settings)
        self._handle = EngineHandle(config)
        self._finalizer = weakref.finalize(self, self._handle.close, CLOSE_LIMIT_S)

    @property
    def config(self) -> EngineConfig:
        return self._handle.config

    @property
    def model_name(self) -> str:
        return self._handle.model_name

    def stats(self) -> EngineStats:
        return self._handle.stats()

    def close(self) -> None:
        """End the worker and give everything back; a second call waits for it. Batches in other threads fail."""
        self._handle.close(CLOSE_LIMIT_S)
        self._finalizer.detach()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] = DEFAULT_PARAMS,
        *,
        add_special_tokens: bool = True,
    ) -> list[Completion]:
        """Continue each prompt (text or token ids); results in the prompts' order, the choices of one side by side.

        `params` for all, or one for each. Raises the first error met and aborts the others.
        """
        batch: list[str | Sequence[int]] = [prompts] if isinstance(prompts, str) else list(prompts)
        return self._run([Prompt(prompt, add_special_tokens) for prompt in batch], params)

    def chat(
        self,
        conversations: Sequence[Sequence[dict[str, Any]]],
        params: SamplingParams | Sequence[SamplingParams] = DEFAULT_PARAMS,
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        documents: Sequence[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[Completion]:
        """Answer each conversation, a list of messages; the rest as in `generate`.

        `tools` and `documents`, for all of them, are those of `AsyncEngine.chat`.
        """
        extras = ChatExtras(tools, documents, chat_template_kwargs)
        prompts = [chat_prompt(messages, extras) for messages in conversations]
        return self._run(prompts, params)

    def _run(self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams]) -> list[Completion]:
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        if len(each) != len(prompts):
            raise InvalidParameterError(f"{len(each)} params for {len(prompts)} prompts: give one, or one for each")
        for item in {id(item): item for item in each}.values():
            item.validate(self._handle.model.vocabulary, self._handle.config.max_running)
        queue = self._handle.frame_queue()
        try:
            return _Batch(self._handle, queue, prompts, each).run()
        finally:
            queue.close()  # aborts what is left


@dataclass(slots=True)
class _Partial:
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: ToolCallPieces = field(default_factory=ToolCallPieces)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Crossing] = field(default_factory=list)
    prompt_logprobs: list[Crossing] = field(default_factory=list)
    prompt_text: str | None = None
    prompt_ids: list[int] | None = None
    finished: Finished | None = None


class _Batch:
    """Keeps as many requests in the engine as its queue takes, until all have ended.

    The number open grows by one with each that finishes, and falls back when the queue turns out to be full.
    """

    def __init__(
        self, handle: EngineHandle, queue: FrameQueue, prompts: Sequence[Prompt], params: Sequence[SamplingParams]
    ) -> None:
        self._handle, self._queue, self._prompts, self._params = handle, queue, prompts, params
        self._pending = deque(range(len(prompts)))
        self._open: dict[int, int] = {}
        self._partials = [[_Partial() for _ in range(each.num_drawn)] for each in params]
        self._limit = handle.config.max_queued_requests

    def run(self) -> list[Completion]:
        while self._pending or self._open:
            self._fill()
            if self._queue.wait(WAIT_S):
                for frame in self._queue.drain():
                    self._take(frame)
        results = []
        for partials, params in zip(self._partials, self._params, strict=True):
            drawn = [_completion(choice, partial) for choice, partial in enumerate(partials)]
            results += best_completions(drawn, params)
        return results

    def _fill(self) -> None:
        while self._pending and len(self._open) < self._limit:
            index = self._pending.popleft()
            prompt = self._prompts[index]
            encoded = params_json(self._params[index], prompt)
            number = self._handle.submit(self._queue, prompt.content, encoded, time.monotonic_ns(), chat=prompt.chat)
            self._open[number] = index

    def _take(self, frame: Frame) -> None:
        index = self._open.get(frame.request)
        if index is None:
            return  # another choice has failed, and the request with it
        partial = self._partials[index][frame.choice]
        if frame.accepted is not None:
            partial.prompt_ids = frame.accepted.prompt_ids
            partial.prompt_text = frame.accepted.prompt_text
        partial.text.append(frame.text)
        partial.reasoning.append(frame.reasoning)
        partial.calls.add(frame.calls)
        partial.token_ids += frame.token_ids
        partial.logprobs += frame.logprobs
        partial.prompt_logprobs += frame.prompt_logprobs
        if frame.failure is not None:
            del self._open[frame.request]
            error = from_kind(frame.failure.kind, frame.failure.message, frame.failure.details)
            if isinstance(error, ContextLengthError) and self._params[index].max_tokens is None:
                error = error.without_max_tokens()
            self._failed(index, error)
        elif frame.finished is not None:
            if frame.finished.reason == "abort":
                raise EngineFailure("the request was aborted", kind="aborted")
            partial.finished = frame.finished
            if all(partial.finished is not None for partial in self._partials[index]):
                del self._open[frame.request]
                self._limit += 1

    def _failed(self, index: int, error: DiptychError) -> None:
        """The queue belongs to other threads too: what found it full is sent again. Any other error ends the batch."""
        if not isinstance(error, OverloadedError):
            raise error
        self._pending.appendleft(index)
        self._limit = max(1, len(self._open))
        if not self._open:
            time.sleep(FULL_PAUSE_S)


def _completion(choice: int, partial: _Partial) -> Completion:
    finished = partial.finished
    assert finished is not None
    return Completion(
        text="".join(partial.text),
        token_ids=partial.token_ids,
        finish_reason=cast("FinishReason", finished.reason),
        stop_reason=finished.stop_string if finished.stop_string is not None else finished.stop_token,
        usage=usage_of(finished),
        timings=Timings(*finished.timings),
        prompt_ids=partial.prompt_ids,
        preemptions=finished.preemptions,
        choice=choice,
        mean_logprob=finished.mean_logprob,
        reasoning="".join(partial.reasoning),
        tool_calls=joined_tool_calls(partial.calls.take()),
        logprobs=read_logprobs(partial.logprobs),
        prompt_logprobs=read_prompt_logprobs(partial.prompt_logprobs),
        prompt_text=partial.prompt_text,
    )
