"""`LLM`: whole batches of prompts, without an event loop."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from diptych.config import EngineConfig
from diptych.errors import (
    ContextLengthError,
    DiptychError,
    EngineFailure,
    InvalidParameterError,
    OverloadedError,
    from_kind,
)
from diptych.gathered import Gathered
from diptych.handle import EngineHandle
from diptych.output import Completion
from diptych.params import SamplingParams, params_json
from diptych.ranking import best_of
from diptych.requests import ChatExtras, Prompt, chat_prompt
from diptych.stats import EngineStats
from diptych.tool_calls import joined_tool_calls

if TYPE_CHECKING:
    from diptych_core.engine import Accepted, Frame, FrameQueue

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
        tool_choice: str | Mapping[str, Any] | None = None,
        documents: Sequence[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[Completion]:
        """Answer each conversation, a list of messages; the rest as in `generate`.

        `tools`, `tool_choice` and `documents`, for all of them, are those of `AsyncEngine.chat`.
        """
        extras = ChatExtras(tools, documents, chat_template_kwargs, tool_choice)
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
        self._gathered = [[Gathered() for _ in range(each.num_drawn)] for each in params]
        self._accepted: list[Accepted | None] = [None] * len(prompts)
        self._limit = handle.config.max_queued_requests

    def run(self) -> list[Completion]:
        while self._pending or self._open:
            self._fill()
            if self._queue.wait(WAIT_S):
                for frame in self._queue.drain():
                    self._take(frame)
        return [completion for index in range(len(self._prompts)) for completion in self._completions(index)]

    def _completions(self, index: int) -> list[Completion]:
        accepted = self._accepted[index]
        assert accepted is not None
        drawn = [
            Completion(
                **each.fields(),
                tool_calls=joined_tool_calls(each.calls.take()),
                prompt_ids=accepted.prompt_ids,
                prompt_text=accepted.prompt_text,
                choice=choice,
            )
            for choice, each in enumerate(self._gathered[index])
        ]
        return best_of(drawn, self._params[index])

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
        self._accepted[index] = frame.accepted or self._accepted[index]
        self._gathered[index][frame.choice].add(frame)
        if frame.failure is not None:
            del self._open[frame.request]
            error = from_kind(frame.failure.kind, frame.failure.message, frame.failure.details)
            if isinstance(error, ContextLengthError) and self._params[index].max_tokens is None:
                error = error.without_max_tokens()
            self._failed(index, error)
        elif frame.finished is not None:
            if frame.finished.reason == "abort":
                raise EngineFailure("the request was aborted", kind="aborted")
            if all(each.finished is not None for each in self._gathered[index]):
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
