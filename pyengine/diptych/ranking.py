"""`best_of`: of the outputs drawn from a prompt, those whose tokens were likeliest."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from diptych.output import Completion, Output
from diptych.params import SamplingParams


def order(scores: Sequence[float | None]) -> list[int]:
    """Indexes by score, the highest first; the first of equal ones. An output without tokens has no score: last."""
    return sorted(range(len(scores)), key=lambda index: -(float("-inf") if (it := scores[index]) is None else it))


class BestOf:
    """Holds a stream's outputs back until all choices have ended, then gives the best, numbered anew."""

    def __init__(self, params: SamplingParams) -> None:
        self._given = params.n
        self._texts: list[list[str]] = [[] for _ in range(params.num_drawn)]
        self._ids: list[list[int]] = [[] for _ in range(params.num_drawn)]
        self._lasts: list[Output | None] = [None] * params.num_drawn

    def take(self, outputs: Sequence[Output]) -> list[Output]:
        given = [output for output in outputs if output.accepted]
        for output in outputs:
            self._texts[output.choice].append(output.text)
            self._ids[output.choice] += output.token_ids
            if output.finish_reason is not None:
                self._lasts[output.choice] = output
        lasts = [last for last in self._lasts if last is not None]
        return given + self._ranked(lasts) if len(lasts) == len(self._lasts) else given

    def _ranked(self, lasts: list[Output]) -> list[Output]:
        best = order([last.mean_logprob for last in lasts])
        ranked = []
        for rank, index in enumerate(best[: self._given]):
            usage = lasts[index].usage
            assert usage is not None
            if rank == 0:
                lost = sum(last.usage.completion_tokens for at in best[self._given :] if (last := lasts[at]).usage)
                usage = msgspec.structs.replace(usage, discarded_tokens=lost)
            text, ids = "".join(self._texts[index]), self._ids[index]
            ranked.append(msgspec.structs.replace(lasts[index], text=text, token_ids=ids, choice=rank, usage=usage))
        return ranked


def best_completions(drawn: list[Completion], params: SamplingParams) -> list[Completion]:
    """The completions to give of those drawn from one prompt."""
    if not params.ranks:
        return drawn
    best = order([completion.mean_logprob for completion in drawn])
    lost = sum(drawn[index].usage.completion_tokens for index in best[params.n :])
    given = [msgspec.structs.replace(drawn[index], choice=rank) for rank, index in enumerate(best[: params.n])]
    usage = msgspec.structs.replace(given[0].usage, discarded_tokens=lost)
    return [msgspec.structs.replace(given[0], usage=usage), *given[1:]]
