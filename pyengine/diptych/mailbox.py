"""Frames of one request between the event loop's drain and the coroutine that reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from diptych.errors import DiptychError
from diptych.output import FinishReason, Output, Timings, Usage
from diptych.record import RequestRecord

if TYPE_CHECKING:
    from diptych_core.engine import Accepted, Failure, Finished, Frame


class Mailbox:
    """Merges what its reader has not taken yet, so that a slow reader costs its own text and nothing more.

    One reader, in the loop that also calls `push` and `fail`.
    """

    __slots__ = (
        "_accepted",
        "_error",
        "_failure",
        "_finished",
        "_on_end",
        "_request",
        "_text",
        "_token_ids",
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
        self._request: int | None = None
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self._finished: Finished | None = None
        self._failure: Failure | None = None
        self._error: DiptychError | None = None

    def push(self, frame: Frame) -> None:
        self.record.saw(frame)
        if self._on_end is not None:
            if frame.finished is not None or frame.failure is not None:
                self._end_unread()
            return
        self._accepted = frame.accepted or self._accepted
        self._request = frame.request
        if frame.text:
            self._text.append(frame.text)
        self._token_ids += frame.token_ids
        self._finished, self._failure = frame.finished, frame.failure
        self.ended = self._finished is not None or self._failure is not None
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
        self._accepted, self._text, self._token_ids = None, [], []

    @property
    def left(self) -> bool:
        return self._on_end is not None

    async def wait(self) -> None:
        """Until something was pushed since the last `take`."""
        if self._accepted is None and not self._token_ids and not self._text and not self.ended:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def take(self) -> list[Output]:
        """Everything there is, the acceptance as an output of its own; the last one has a finish reason."""
        outputs = []
        if self._accepted is not None:
            accepted, self._accepted = self._accepted, None
            first = Output(
                accepted=True,
                request=self._request,
                prompt_tokens=accepted.prompt_tokens,
                prompt_ids=accepted.prompt_ids,
            )
            outputs.append(first)
        finished, self._finished = self._finished, None
        if finished is not None and finished.reason != "abort":
            outputs.append(self._last(finished))
        elif self._text or self._token_ids:
            outputs.append(Output(text="".join(self._text), token_ids=self._token_ids))
        self._text, self._token_ids = [], []
        return outputs

    def failure(self) -> Failure | DiptychError | None:
        """What ended the stream, if it was no regular end; to be asked when `take` gave all there was."""
        return self._error or self._failure

    def _last(self, finished: Finished) -> Output:
        reason = finished.stop_string if finished.stop_string is not None else finished.stop_token
        return Output(
            text="".join(self._text),
            token_ids=self._token_ids,
            finish_reason=cast("FinishReason", finished.reason),
            stop_reason=reason,
            usage=Usage(finished.prompt_tokens, finished.completion_tokens, finished.cached_tokens),
            timings=Timings(*finished.timings),
            preemptions=finished.preemptions,
            explanation=self.record.explanation if self.record.params.explain else None,
        )

    def _end_unread(self) -> None:
        on_end, self._on_end = self._on_end, None
        self.ended = True
        if on_end is not None:
            on_end()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
