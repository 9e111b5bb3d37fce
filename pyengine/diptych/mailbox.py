"""Frames of one request between the event loop's drain and the coroutine that reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diptych.errors import DiptychError
from diptych.explanation import Explanation, read_explanation
from diptych.gathered import Gathered
from diptych.output import Output
from diptych.ranking import best_of
from diptych.record import RequestRecord

if TYPE_CHECKING:
    from diptych_core.engine import Accepted, Failure, Frame


@dataclass(slots=True)
class _Part(Gathered):
    """What a choice has that its reader has not taken."""

    explanation: Explanation | None = None
    has_news: bool = False

    def add(self, frame: Frame) -> None:
        Gathered.add(self, frame)
        self.has_news = self.has_news or bool(
            frame.text or frame.reasoning or frame.calls or frame.token_ids or frame.prompt_logprobs
        )

    def output(self, choice: int) -> Output:
        return Output(**self.fields(), tool_calls=self.calls.take(), explanation=self.explanation, choice=choice)


class Mailbox:
    """Merges what its reader has not taken yet, so that a slow reader costs its own text and nothing more. Outputs that
    are to be ranked are of no use before all of them are there: until then they stay here.

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
        "_waiter",
        "ended",
        "record",
    )

    def __init__(self, record: RequestRecord) -> None:
        self.record = record
        self.ended = False
        self._waiter: asyncio.Future[None] | None = None
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

    async def wait(self) -> None:
        """Until `take` has something, or the end is there."""
        if not self._has_something():
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def take(self) -> list[Output]:
        """Everything that is to be read, the acceptance as an output of its own; the last one of a choice has a finish
        reason."""
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
        if self._are_ripe():
            parts, self._parts = self._parts, {}
            drawn = [part.output(choice) for choice, part in parts.items() if part.is_complete or part.has_news]
            outputs += best_of(drawn, self.record.params)
        return outputs

    def failure(self) -> Failure | DiptychError | None:
        """What ended the stream, if it was no regular end; to be asked when `take` gave all there was."""
        return self._error or self._failure

    def _are_ripe(self) -> bool:
        """Whether the choices may be read."""
        if not self.record.params.ranks:
            return True
        return self._open == 0 and all(part.is_complete for part in self._parts.values())

    def _has_something(self) -> bool:
        return self.ended or self._accepted is not None or (bool(self._parts) and self._are_ripe())

    def _end_unread(self) -> None:
        on_end, self._on_end = self._on_end, None
        self.ended = True
        if on_end is not None:
            on_end()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done() and self._has_something():
            self._waiter.set_result(None)
