"""Frames of one request between the event loop's drain and the coroutine that reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from diptych.errors import DiptychError
from diptych.explanation import Explanation, read_explanation
from diptych.logprobs import Crossing, read_logprobs, read_prompt_logprobs
from diptych.output import FinishReason, Output, Timings, Usage
from diptych.record import RequestRecord
from diptych.tool_calls import ToolCallPieces

if TYPE_CHECKING:
    from diptych_core.engine import Accepted, Failure, Finished, Frame


@dataclass(slots=True)
class _Part:
    """What a choice has that its reader has not taken."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: ToolCallPieces = field(default_factory=ToolCallPieces)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Crossing] = field(default_factory=list)
    prompt_logprobs: list[Crossing] = field(default_factory=list)
    finished: Finished | None = None
    explanation: Explanation | None = None
    has_news: bool = False

    def add(self, frame: Frame) -> None:
        self.text.append(frame.text)
        self.reasoning.append(frame.reasoning)
        self.calls.add(frame.calls)
        self.token_ids += frame.token_ids
        self.logprobs += frame.logprobs
        self.prompt_logprobs += frame.prompt_logprobs
        self.finished = frame.finished
        self.has_news = self.has_news or bool(
            frame.text or frame.reasoning or frame.calls or frame.token_ids or frame.prompt_logprobs
        )

    def news(self) -> dict[str, Any]:
        return {
            "text": "".join(self.text),
            "reasoning": "".join(self.reasoning),
            "tool_calls": self.calls.take(),
            "token_ids": self.token_ids,
            "logprobs": read_logprobs(self.logprobs),
            "prompt_logprobs": read_prompt_logprobs(self.prompt_logprobs),
        }


class Mailbox:
    """Merges what its reader has not taken yet, so that a slow reader costs its own text and nothing more.

    One reader, in the loop that also calls `push` and `fail`.
    """

    __slots__ = (
        "_accepted",
        "_error",
        "_failure",
        "_on_end",
        "_open",
        "_parts",
        "_request",
        "_until_end",
        "_waiter",
        "ended",
        "record",
    )

    def __init__(self, record: RequestRecord) -> None:
        self.record = record
        self.ended = False
        self._waiter: asyncio.Future[None] | None = None
        self._until_end = False
        self._on_end: Callable[[], None] | None = None
        self._accepted: Accepted | None = None
        self._open = record.params.num_drawn
        self._parts: dict[int, _Part] = {}
        self._request: int | None = None
        self._failure: Failure | None = None
        self._error: DiptychError | None = None

    def push(self, frame: Frame) -> None:
        self.record.saw(frame)
        self._open -= frame.finished is not None
        over = self._open == 0 or frame.failure is not None
        if self._on_end is not None:
            if over:
                self._end_unread()
            return
        self._accepted = frame.accepted or self._accepted
        self._request = frame.request
        part = self._parts.get(frame.choice, _Part())
        part.add(frame)
        if part.has_news or frame.finished is not None:
            self._parts[frame.choice] = part
            if frame.explanation is not None and self.record.params.explain:
                part.explanation = read_explanation(frame.explanation)
        self._failure = frame.failure
        self.ended = over
        self._wake()

    def fail(self, error: DiptychError) -> None:
        """End the stream with `error` after what was already pushed."""
        if self._on_end is not None:
            self._end_unread()
            return
        self.ended = True
        self._error = error
        self._wake()

    def leave(self, on_end: Callable[[], None]) -> None:
        """The reader is gone: from now on only the record is kept, and `on_end` is called once it is complete."""
        self._on_end = on_end
        self._accepted, self._parts = None, {}

    @property
    def left(self) -> bool:
        return self._on_end is not None

    async def wait(self, *, until_end: bool = False) -> None:
        """Until something was pushed since the last `take`, or with `until_end` everything was."""
        self._until_end = until_end
        is_empty = self._accepted is None and not self._parts
        if (is_empty or until_end) and not self.ended:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def take(self) -> list[Output]:
        """Everything there is, the acceptance as an output of its own; the last one of a choice has a finish reason."""
        outputs = []
        if self._accepted is not None:
            accepted, self._accepted = self._accepted, None
            first = Output(
                accepted=True,
                request=self._request,
                prompt_tokens=accepted.prompt_tokens,
                prompt_ids=accepted.prompt_ids,
                prompt_text=accepted.prompt_text,
            )
            outputs.append(first)
        parts, self._parts = self._parts, {}
        for choice, part in parts.items():
            finished = part.finished
            if finished is not None and finished.reason != "abort":
                outputs.append(_last(choice, part, finished))
            elif part.has_news:
                outputs.append(Output(**part.news(), choice=choice))
        return outputs

    def failure(self) -> Failure | DiptychError | None:
        """What ended the stream, if it was no regular end; to be asked when `take` gave all there was."""
        return self._error or self._failure

    def _end_unread(self) -> None:
        on_end, self._on_end = self._on_end, None
        self.ended = True
        if on_end is not None:
            on_end()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done() and (self.ended or not self._until_end):
            self._waiter.set_result(None)


def _last(choice: int, part: _Part, finished: Finished) -> Output:
    reason = finished.stop_string if finished.stop_string is not None else finished.stop_token
    return Output(
        **part.news(),
        finish_reason=cast("FinishReason", finished.reason),
        stop_reason=reason,
        usage=usage_of(finished),
        timings=Timings(*finished.timings),
        preemptions=finished.preemptions,
        explanation=part.explanation,
        choice=choice,
        mean_logprob=finished.mean_logprob,
    )


def usage_of(finished: Finished) -> Usage:
    return Usage(
        finished.prompt_tokens,
        finished.completion_tokens,
        finished.cached_tokens,
        reasoning_tokens=finished.reasoning_tokens,
    )
