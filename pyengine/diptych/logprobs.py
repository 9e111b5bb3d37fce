"""Log probabilities from the tuples in which they cross."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from msgspec.structs import replace

from diptych.output import TokenLogprob, TokenLogprobs

Named: TypeAlias = tuple[int, float, bytes]
Crossing: TypeAlias = tuple[Named, int, list[Named]]


def read_logprobs(crossed: Iterable[Crossing]) -> list[TokenLogprobs]:
    """For each token that, the characters before it, and the likeliest ones."""
    return [
        TokenLogprobs(TokenLogprob(*token), offset, [TokenLogprob(*other) for other in likeliest])
        for token, offset, likeliest in crossed
    ]


def read_prompt_logprobs(crossed: Iterable[Crossing]) -> list[TokenLogprobs]:
    """As `read_logprobs`, of a prompt."""
    entries = read_logprobs(crossed)
    return [replace(entry, is_first=index == 0) for index, entry in enumerate(entries)]
