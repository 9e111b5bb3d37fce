"""What /metrics says, and that it adds up."""

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from raw_client import RawClient
from service_rig import CLIENT, ServiceThread

PATH = "/v1/completions"
NAMES = {
    "diptych_requests_running": "gauge",
    "diptych_requests_waiting": "gauge",
    "diptych_tokens_waiting": "gauge",
    "diptych_requests_waiting_by_priority": "gauge",
    "diptych_requests_refused": "counter",
    "diptych_requests_expired": "counter",
    "diptych_worker_alive": "gauge",
    "diptych_kv_cache_usage_ratio": "gauge",
    "diptych_prefix_cache_queries": "counter",
    "diptych_prefix_cache_hits": "counter",
    "diptych_prompt_tokens": "counter",
    "diptych_generation_tokens": "counter",
    "diptych_preemptions": "counter",
    "diptych_steps": "counter",
    "diptych_steps_ahead": "counter",
    "diptych_worker_restarts": "counter",
    "diptych_paced_tokens": "counter",
    "diptych_late_tokens": "counter",
    "diptych_itl_achieved_seconds": "gauge",
    "diptych_requests": "counter",
    "diptych_time_to_first_token_seconds": "histogram",
    "diptych_inter_token_latency_seconds": "histogram",
    "diptych_e2e_request_latency_seconds": "histogram",
    "diptych_queue_time_seconds": "histogram",
    "diptych_step_gap_seconds": "histogram",
}


def families(service: ServiceThread) -> dict[str, Any]:
    text = CLIENT.get(service.url + "/metrics").text
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(service: ServiceThread, name: str, **labels: str) -> float:
    """The sum of the samples of that name with those labels."""
    samples = [sample for family in families(service).values() for sample in family.samples]
    return sum(sample.value for sample in samples if sample.name == name and labels.items() <= sample.labels.items())


def test_names_types_and_label(service: ServiceThread) -> None:
    service.complete("Hello", 4)
    found = families(service)
    assert {name: family.type for name, family in found.items()} == NAMES
    for family in found.values():
        assert family.documentation
        assert all(sample.labels["model_name"] == service.model for sample in family.samples)
    definition = "TTFT: last request byte in to first token's frame out"
    assert definition in found["diptych_time_to_first_token_seconds"].documentation


def test_openmetrics_is_served_to_those_who_ask(service: ServiceThread) -> None:
    response = CLIENT.get(service.url + "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert response.text.endswith("# EOF\n")


def test_every_request_is_counted_once(model_folder: Path) -> None:
    with ServiceThread(model_folder, script_step_ms=5.0, max_running=8) as service:
        for number in range(20):
            service.complete(f"short {number}", 1 + number % 3)
        service.complete(["a", "b", "c"], 2)
        text = service.complete("stopped", 8)["choices"][0]["text"]
        service.complete("stopped", 8, stop=[text[2:4]])
        for number in range(5):
            with RawClient(service.port) as client:
                client.post(PATH, {"prompt": f"left {number}", "max_tokens": 1500, "stream": True})
                client.read_until(b"data: ")
        for _ in range(4):
            assert CLIENT.post(service.url + PATH, json={"prompt": "long", "max_tokens": 10**6}).status_code == 400
        service.wait_idle()
        finished = value(service, "diptych_requests_total", reason="length")
        stopped = value(service, "diptych_requests_total", reason="stop")
        assert (finished, stopped) == (24.0, 1.0)
        assert value(service, "diptych_requests_total", reason="abort") == 5.0
        assert value(service, "diptych_requests_total") == 24 + 1 + 5 + 4
        assert value(service, "diptych_e2e_request_latency_seconds_count") == finished + stopped
        assert value(service, "diptych_time_to_first_token_seconds_count") == 24 + 1 + 5
        with RawClient(service.port) as client:
            client.post(PATH, {"prompt": "open", "max_tokens": 1500, "stream": True}).read_until(b"data: ")
            assert value(service, "diptych_requests_running") == 1.0
            assert 0.0 < value(service, "diptych_kv_cache_usage_ratio") <= 1.0


def test_the_achieved_gaps_stand_beside_the_target(model_folder: Path) -> None:
    with ServiceThread(model_folder, script_step_ms=2.0, target_itl_ms=500.0) as service:
        service.complete("Hello", 40)
        service.complete("Hello", 9, target_itl_ms=0.001)
        assert value(service, "diptych_itl_target_seconds") == 0.5
        median = value(service, "diptych_itl_achieved_seconds", quantile="0.5")
        assert 0.0019 <= median <= value(service, "diptych_itl_achieved_seconds", quantile="0.99") < 0.5
        assert value(service, "diptych_paced_tokens_total") == 39 + 8
        assert value(service, "diptych_late_tokens_total") == 8


def test_cached_prompts_are_seen_in_usage_and_metrics(model_folder: Path) -> None:
    with ServiceThread(model_folder) as service:
        prompt = list(range(10, 110))
        first = service.complete(prompt, 2)["usage"]["prompt_tokens_details"]["cached_tokens"]
        second = service.complete(prompt, 2)["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert (first, second) == (0, 96)
        assert value(service, "diptych_prefix_cache_queries_total") == 200.0
        assert value(service, "diptych_prefix_cache_hits_total") == 96.0


def test_broken_metrics_do_not_stop_the_service(service: ServiceThread, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise RuntimeError("no figures")

    with monkeypatch.context() as patch:
        patch.setattr(service.engine, "stats", broken)
        assert CLIENT.get(service.url + "/metrics").status_code == 500
        assert service.complete("still here", 2)["usage"]["completion_tokens"] == 2
    assert CLIENT.get(service.url + "/metrics").status_code == 200
