"""What is known of one request, from its submission to its end; the source of its span."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diptych.explanation import Explanation, read_explanation
from diptych.output import Timings
from diptych.params import SamplingParams

if TYPE_CHECKING:
    from diptych_core.engine import Frame


@dataclass(slots=True)
class RequestRecord:
    """Counts are what this process has seen, of all choices together; `timings` are those of the choice that the core
    ended last. Times: monotonic ns."""

    operation: str
    model: str
    params: SamplingParams
    arrived_ns: int
    prompt_tokens: int | None = None
    completion_tokens: int = 0
    cached_tokens: int | None = None
    tokenised_ns: int = 0
    first_token_ns: int = 0
    finished_ns: int = 0
    timings: Timings | None = None
    finish_reason: str | None = None
    preemptions: int = 0
    events: list[tuple[int, str]] = field(default_factory=list)
    error: BaseException | None = None
    explanation: Explanation | None = None

    def saw(self, frame: Frame) -> None:
        if frame.accepted is not None:
            self.prompt_tokens = frame.accepted.prompt_tokens
            self.tokenised_ns = time.monotonic_ns()
        if frame.token_ids:
            if not self.first_token_ns:
                self.first_token_ns = time.monotonic_ns()
            self.completion_tokens += len(frame.token_ids)
        # Of several choices the first: it computes the prompt for all.
        if frame.explanation is not None and frame.choice == 0:
            self.explanation = read_explanation(frame.explanation)
        end = frame.finished or frame.failure
        if end is not None:
            self.timings = Timings(*end.timings)
            self.prompt_tokens = end.prompt_tokens or self.prompt_tokens
            if self.params.num_drawn == 1:
                self.completion_tokens = end.completion_tokens
        if frame.finished is not None:
            self.cached_tokens = frame.finished.cached_tokens
            self.finish_reason = frame.finished.reason
            self.preemptions += frame.finished.preemptions
            self.events = [*self.events, *frame.finished.events]
