"""Why a request went as it did: what it waited for, what the prefix cache gave, what each step gave it."""

from __future__ import annotations

import msgspec


class Wait(msgspec.Struct, frozen=True):
    """What one limit cost: nanoseconds, and plans of the scheduler that were made without the request."""

    reason: str
    ns: int
    steps: int


class MatchEnd(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why no more came from the cache; `position` of the first other token, `ago_ns` since the next block was lost.

    `reason`: `complete`, `off`, `under_one_block`, `different_token`, `evicted`, `cleared` or `never_stored`. Prompts
    under another cache salt count as never stored.
    """

    reason: str
    position: int | None = None
    ago_ns: int | None = None


class CacheLookup(msgspec.Struct, frozen=True):
    """What the prefix cache gave at the first admission, in tokens of the prompt."""

    queried: int
    cached: int
    end: MatchEnd


class Chunks(msgspec.Struct, frozen=True):
    """Chunks of the prompt that one limit bounded."""

    limit: str
    chunks: int
    tokens: int


class Preemptions(msgspec.Struct, frozen=True):
    """How often the request lost its KV blocks by one cause."""

    cause: str
    count: int


class Decision(msgspec.Struct, frozen=True, omit_defaults=True):
    """One decision of the scheduler, at `at` in nanoseconds of CLOCK_MONOTONIC.

    `admitted` with `cached` tokens; `chunk` of `tokens` from `start` on, with `budget` tokens left for it and the
    `limit` that bounded it; `preempted` by `cause`, losing the KV of `computed` tokens.
    """

    step: int
    at: int
    kind: str
    cached: int | None = None
    start: int | None = None
    tokens: int | None = None
    budget: int | None = None
    limit: str | None = None
    cause: str | None = None
    computed: int | None = None


class Explanation(msgspec.Struct, frozen=True):
    """Times in nanoseconds of CLOCK_MONOTONIC; `ended` is None and `waiting_for` may be set while it is open.

    `decisions` are the newest, oldest first; `forgotten` older ones are in the counts only. `choice` counts the outputs
    that were drawn from the prompt.
    """

    submission: int
    choice: int
    submitted: int
    ended: int | None
    waiting_for: str | None
    waits: list[Wait]
    cache: CacheLookup | None
    chunks: list[Chunks]
    preemptions: list[Preemptions]
    decisions: list[Decision]
    forgotten: int


def read_explanation(json: str | bytes) -> Explanation:
    return msgspec.json.decode(json, type=Explanation)
