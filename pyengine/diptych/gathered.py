"""What the frames of one choice bring, until somebody takes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from diptych.logprobs import Crossing, read_logprobs, read_prompt_logprobs
from diptych.output import FinishReason, Timings, Usage
from diptych.tool_calls import ToolCallPieces

if TYPE_CHECKING:
    from diptych_core.engine import Finished, Frame


@dataclass(slots=True)
class Gathered:
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: ToolCallPieces = field(default_factory=ToolCallPieces)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Crossing] = field(default_factory=list)
    prompt_logprobs: list[Crossing] = field(default_factory=list)
    finished: Finished | None = None

    def add(self, frame: Frame) -> None:
        self.text.append(frame.text)
        self.reasoning.append(frame.reasoning)
        self.calls.add(frame.calls)
        self.token_ids += frame.token_ids
        self.logprobs += frame.logprobs
        self.prompt_logprobs += frame.prompt_logprobs
        self.finished = frame.finished or self.finished

    @property
    def is_complete(self) -> bool:
        """Whether it has ended, and not by abort."""
        return self.finished is not None and self.finished.reason != "abort"

    def fields(self) -> dict[str, Any]:
        """What outputs and completions say of it alike; of one that is complete, its end as well."""
        fields: dict[str, Any] = {
            "text": "".join(self.text),
            "reasoning": "".join(self.reasoning),
            "token_ids": self.token_ids,
            "logprobs": read_logprobs(self.logprobs),
            "prompt_logprobs": read_prompt_logprobs(self.prompt_logprobs),
        }
        finished = self.finished
        if finished is None or not self.is_complete:
            return fields
        return fields | {
            "finish_reason": cast("FinishReason", finished.reason),
            "stop_reason": finished.stop_string if finished.stop_string is not None else finished.stop_token,
            "usage": Usage(
                finished.prompt_tokens,
                finished.completion_tokens,
                finished.cached_tokens,
                reasoning_tokens=finished.reasoning_tokens,
            ),
            "timings": Timings(*finished.timings),
            "preemptions": finished.preemptions,
            "mean_logprob": finished.mean_logprob,
        }
