"""Metrics for Prometheus, read from the engine's own counters at each scrape. No global registry is touched."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from diptych import AsyncEngine
from diptych.errors import OVERLOADS, EngineClosedError
from diptych.stats import EngineStats, Histogram

_GAUGES = {
    "requests_running": "Requests that hold KV blocks.",
    "requests_waiting": "Accepted requests that wait to be admitted or, preempted, to come back.",
    "tokens_waiting": "Prompt tokens of waiting requests that the prefix cache does not have.",
    "worker_alive": "1 while the worker answers, 0 while it is being restarted.",
}
_COUNTERS = {
    "prefix_cache_queries": "Prompt tokens looked up in the prefix cache, at a request's first admission only.",
    "prefix_cache_hits": "Prompt tokens found in the prefix cache, at a request's first admission only.",
    "prompt_tokens": "Prompt tokens of admitted requests, cached ones included.",
    "generation_tokens": "Tokens generated, each counted once however often its request was preempted or restarted.",
    "preemptions": "Times a request was preempted and later computed again.",
    "paced_tokens": "Tokens of requests with a target for the gap between tokens, first ones left out.",
    "late_tokens": "Those of the paced tokens that came later than as many targets after the first token.",
    "steps": "Steps planned for the worker.",
    "steps_ahead": "Those of the steps that were planned while another ran.",
    "worker_restarts": "Times the worker was lost and started again.",
}
_HISTOGRAMS = {
    "time_to_first_token": "TTFT: last request byte in to first token's frame out.",
    "inter_token_latency": "ITL: each gap between two tokens of a request. "
    "(TPOT is another figure: (E2E - TTFT) / (tokens - 1), seconds per token.)",
    "e2e_request_latency": "E2E: last request byte in to last frame out, finished requests only.",
    "queue_time": "Last request byte in to first admission by the scheduler.",
    "step_gap": "Time that the worker did nothing between two steps although there was work.",
}


class EngineCollector(Collector):
    """Families of one engine, labelled with the served model's name."""

    def __init__(self, engine: AsyncEngine, model_name: Callable[[], str]) -> None:
        self._engine = engine
        self._model_name = model_name

    def describe(self) -> Iterable[Metric]:
        """Nothing beforehand: a registry must not ask an engine that has not started."""
        return []

    def collect(self) -> Iterable[Metric]:
        try:
            stats = self._engine.stats()
        except EngineClosedError:
            # Not started yet, or closed: there is nothing to tell, and the scrape is fine.
            return
        labels = [self._model_name()]
        for name, text in _GAUGES.items():
            yield _gauge(name, text, labels, float(getattr(stats, name)))
        yield _gauge(
            "kv_cache_usage_ratio",
            "KV blocks in use by requests / all blocks; cached blocks that nobody uses do not count.",
            labels,
            stats.kv_cache_usage_ratio,
        )
        for name, text in _COUNTERS.items():
            counter = CounterMetricFamily(f"diptych_{name}", text, labels=["model_name"])
            counter.add_metric(labels, getattr(stats, name))
            yield counter
        yield from _inter_token_latency(stats, labels)
        yield _requests_total(stats.requests_total, labels)
        yield from _queue(stats, labels)
        for name, text in _HISTOGRAMS.items():
            yield _histogram(name, text, labels, stats.histograms[name])


def registry_for(engine: AsyncEngine, model_name: Callable[[], str]) -> CollectorRegistry:
    """A registry of its own with one collector."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(EngineCollector(engine, model_name))
    return registry


def _gauge(name: str, text: str, labels: list[str], value: float) -> Metric:
    gauge = GaugeMetricFamily(f"diptych_{name}", text, labels=["model_name"])
    gauge.add_metric(labels, value)
    return gauge


def _inter_token_latency(stats: EngineStats, labels: list[str]) -> Iterable[Metric]:
    """The achieved quantiles and the target, which is left out where the engine has none."""
    text = "ITL that a share of the last few thousand gaps between tokens did not exceed."
    achieved = GaugeMetricFamily("diptych_itl_achieved_seconds", text, labels=["model_name", "quantile"])
    achieved.add_metric([*labels, "0.5"], stats.itl_p50_s)
    achieved.add_metric([*labels, "0.99"], stats.itl_p99_s)
    yield achieved
    if stats.target_itl_s is not None:
        yield _gauge("itl_target_seconds", "The engine's target_itl_ms.", labels, stats.target_itl_s)


def _requests_total(by_reason: dict[str, int], labels: list[str]) -> Metric:
    text = "Requests that ended, by reason: stop, length, timeout, abort, or the kind of the error."
    counter = CounterMetricFamily("diptych_requests", text, labels=["model_name", "reason"])
    for reason, count in sorted(by_reason.items()):
        counter.add_metric([*labels, reason], count)
    return counter


def _queue(stats: EngineStats, labels: list[str]) -> Iterable[Metric]:
    text = "Waiting requests by priority, lower first."
    waiting = GaugeMetricFamily("diptych_requests_waiting_by_priority", text, labels=["model_name", "priority"])
    for priority, backlog in sorted(stats.waiting_by_priority.items()):
        waiting.add_metric([*labels, str(priority)], backlog.requests)
    yield waiting
    text = "Requests that were refused because of what waited already, by reason."
    refused = CounterMetricFamily("diptych_requests_refused", text, labels=["model_name", "reason"])
    for reason in sorted(OVERLOADS):
        refused.add_metric([*labels, reason], stats.requests_total.get(reason, 0))
    yield refused
    text = "Requests whose timeout or ttft_timeout passed, by whether they waited or ran."
    expired = CounterMetricFamily("diptych_requests_expired", text, labels=["model_name", "state"])
    for state, count in sorted(stats.requests_expired.items()):
        expired.add_metric([*labels, state], count)
    yield expired


def _histogram(name: str, text: str, labels: list[str], data: Histogram) -> Metric:
    """From per-bucket counts, the last one above all bounds, to Prometheus' cumulative ones."""
    family = HistogramMetricFamily(f"diptych_{name}_seconds", text, labels=["model_name"])
    cumulative = 0
    buckets = []
    for bound, count in zip([*map(str, map(float, data.buckets)), "+Inf"], data.counts, strict=True):
        cumulative += count
        buckets.append((bound, cumulative))
    family.add_metric(labels, buckets, data.sum)
    return family
