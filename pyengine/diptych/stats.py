"""The engine's counters, and what can be told from them."""

from __future__ import annotations

import math

import msgspec

MAX_RETRY_AFTER_S = 120  # common clients give up instead of waiting longer


class Histogram(msgspec.Struct, frozen=True):
    """`counts[i]` observations at or below `buckets[i]` and above the bucket before; the last count is beyond all."""

    buckets: list[float]
    counts: list[int]
    sum: float

    @property
    def count(self) -> int:
        return sum(self.counts)


class Restart(msgspec.Struct, frozen=True):
    """Seconds that the parts of the last restart of the worker took."""

    detect_s: float
    spawn_s: float
    hello_s: float
    ready_s: float


class StepModel(msgspec.Struct, frozen=True):
    """What the engine has learnt about the time of steps, in nanoseconds for a unit of each kind of work.

    A step takes the constant of its kind (it decodes, prefills, or does both), and for its prefill a token, a query-key
    pair and a chunk each, for its decoding a row and a token of context each, and for each row of logits.
    `mixed_margin`: what 19 of 20 mixed steps take at most, over what is predicted. `observations`: steps seen, by kind.
    """

    decode_step: float
    prefill_step: float
    mixed_step: float
    prefill_token: float
    prefill_pair: float
    prefill_row: float
    decode_row: float
    decode_context: float
    logit_row: float
    mixed_margin: float
    observations: tuple[int, int, int]


class Backlog(msgspec.Struct, frozen=True):
    """What waits: requests, and their prompt tokens that the prefix cache does not have."""

    requests: int
    tokens: int


class EventLogStats(msgspec.Struct, frozen=True):
    """How far the event log has come; `ended` says why nothing more is written, if so."""

    path: str
    records: int
    ended: str | None


class EngineStats(msgspec.Struct, frozen=True):
    """Counters since the engine's start, and its state now. Histograms in seconds, prefix cache counts in tokens.

    `itl_p50_s`, `itl_p99_s`: the last few thousand gaps between tokens, beside the engine's `target_itl_s`; 0 before
    there was one. Of the `paced_tokens` of requests with a target, `late_tokens` came later than as many targets after
    the first token as there were tokens.
    `steps_ahead` of the `steps` were planned while another ran. The histogram `step_gap` is how long the worker did
    nothing between two steps although there was work.
    """

    requests_running: int
    requests_waiting: int
    kv_blocks_total: int
    kv_blocks_used: int
    kv_blocks_cached: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    prompt_tokens: int
    generation_tokens: int
    preemptions: int
    requests_total: dict[str, int]
    worker_restarts: int
    epoch: int
    steps: int
    steps_ahead: int
    worker_alive: bool
    open_requests: int
    histograms: dict[str, Histogram]
    itl_p50_s: float = 0.0
    itl_p99_s: float = 0.0
    paced_tokens: int = 0
    late_tokens: int = 0
    target_itl_s: float | None = None
    step_model: StepModel | None = None
    last_restart: Restart | None = None
    last_worker_error: str | None = None
    tokens_waiting: int = 0
    waiting_by_priority: dict[int, Backlog] = {}
    requests_expired: dict[str, int] = {}
    event_log: EventLogStats | None = None

    @property
    def kv_cache_usage_ratio(self) -> float:
        """Blocks in use by requests over all blocks; cached blocks nobody uses do not count."""
        return self.kv_blocks_used / self.kv_blocks_total if self.kv_blocks_total else 0.0


def retry_after_s(stats: EngineStats) -> int:
    """Seconds until today's queue will have been served, if requests go on taking what they took so far.

    Waiting requests × mean time in service ÷ requests served at once, at least 1; 1 before anything has finished.
    """
    whole = stats.histograms.get("e2e_request_latency")
    queued = stats.histograms.get("queue_time")
    if whole is None or queued is None or whole.count == 0:
        return 1
    service = max(whole.sum / whole.count - queued.sum / max(queued.count, 1), 0.0)
    seconds = stats.requests_waiting * service / max(stats.requests_running, 1)
    return max(1, min(MAX_RETRY_AFTER_S, math.ceil(seconds)))
