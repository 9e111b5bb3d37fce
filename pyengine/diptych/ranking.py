"""`best_of`: of the outputs drawn from a prompt, those whose tokens were likeliest."""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from diptych.output import Completion, Output
from diptych.params import SamplingParams

Drawn = TypeVar("Drawn", Output, Completion)


def best_of(drawn: list[Drawn], params: SamplingParams) -> list[Drawn]:
    """Of all outputs drawn from one prompt those to give, best first and numbered anew, of equal ones the first drawn.
    One without tokens has no score and is last. What the others cost is told with the best one."""
    if not drawn or not params.ranks:
        return drawn

    def rank(output: Drawn) -> tuple[float, int]:
        return (float("inf") if output.mean_logprob is None else -output.mean_logprob, output.choice)

    ranked = sorted(drawn, key=rank)
    given: list[Drawn] = [replace(output, choice=place) for place, output in enumerate(ranked[: params.n])]
    usage = given[0].usage
    assert usage is not None
    lost = sum(other.usage.completion_tokens for other in ranked[params.n :] if other.usage is not None)
    given[0] = replace(given[0], usage=replace(usage, discarded_tokens=lost))
    return given
