"""`best_of`: of the outputs drawn from a prompt, those whose tokens were likeliest."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from diptych.output import Completion, Output, ToolCallDelta
from diptych.params import SamplingParams
from diptych.tool_calls import joined_tool_calls


def order(scores: Sequence[float | None]) -> list[int]:
    """Indexes by score, the highest first; the first of equal ones. An output without tokens has no score: last."""
    return sorted(range(len(scores)), key=lambda index: -(float("-inf") if (it := scores[index]) is None else it))


class BestOf:
    """Holds a stream's outputs back until all choices have ended, then gives the best, numbered anew."""

    def __init__(self, params: SamplingParams) -> None:
        self.is_accepted = False
        self._given = params.n
        self._drawn: list[list[Output]] = [[] for _ in range(params.num_drawn)]

    def take(self, outputs: Sequence[Output]) -> list[Output]:
        given = [output for output in outputs if output.accepted]
        self.is_accepted = self.is_accepted or bool(given)
        for output in outputs:
            if not output.accepted:
                self._drawn[output.choice].append(output)
        has_ended = all(pieces and pieces[-1].finish_reason is not None for pieces in self._drawn)
        return given + self._ranked() if has_ended else given

    def _ranked(self) -> list[Output]:
        whole = [_joined(pieces) for pieces in self._drawn]
        best = order([output.mean_logprob for output in whole])
        ranked = [msgspec.structs.replace(whole[index], choice=rank) for rank, index in enumerate(best[: self._given])]
        usage = ranked[0].usage
        assert usage is not None
        lost = sum(other.completion_tokens for at in best[self._given :] if (other := whole[at].usage))
        ranked[0] = msgspec.structs.replace(ranked[0], usage=msgspec.structs.replace(usage, discarded_tokens=lost))
        return ranked


def _joined(pieces: list[Output]) -> Output:
    """The whole of a choice in one output."""
    calls = joined_tool_calls(delta for piece in pieces for delta in piece.tool_calls)
    return msgspec.structs.replace(
        pieces[-1],
        text="".join(piece.text for piece in pieces),
        reasoning="".join(piece.reasoning for piece in pieces),
        tool_calls=[ToolCallDelta(index, call.id, call.name, call.arguments) for index, call in enumerate(calls)],
        token_ids=[token for piece in pieces for token in piece.token_ids],
        logprobs=[entry for piece in pieces for entry in piece.logprobs],
        prompt_logprobs=[entry for piece in pieces for entry in piece.prompt_logprobs],
    )


def best_completions(drawn: list[Completion], params: SamplingParams) -> list[Completion]:
    """The completions to give of those drawn from one prompt."""
    if not params.ranks:
        return drawn
    best = order([completion.mean_logprob for completion in drawn])
    lost = sum(drawn[index].usage.completion_tokens for index in best[params.n :])
    given = [msgspec.structs.replace(drawn[index], choice=rank) for rank, index in enumerate(best[: params.n])]
    usage = msgspec.structs.replace(given[0].usage, discarded_tokens=lost)
    return [msgspec.structs.replace(given[0], usage=usage), *given[1:]]
