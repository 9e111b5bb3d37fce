"""Priorities and tenants: who is served first, and who is refused."""

import concurrent.futures
import hashlib
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from raw_client import RawClient
from service_rig import CLIENT, ServiceThread, wait_until

PATH = "/v1/completions"
TENANT = "x-diptych-tenant"


def ask(service: ServiceThread, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    body = {"prompt": [7, 8], "max_tokens": 10, "ignore_eos": True, **fields}
    return CLIENT.post(service.url + PATH, json=body, headers=headers or {})


def finished_before(service: ServiceThread, flood: dict[str, str], other: dict[str, str]) -> int:
    """How many of forty requests of the flood have ended when one of the other's, sent after them, has."""
    with concurrent.futures.ThreadPoolExecutor(41) as pool:
        many = [pool.submit(ask, service, flood, prompt=[number + 3]) for number in range(40)]
        wait_until(lambda: service.stats().requests_waiting >= 30)
        assert ask(service, other).status_code == 200
        ended = sum(future.done() for future in many)
        assert all(future.result().status_code == 200 for future in many)
    return ended


def test_a_tenant_that_floods_the_service_delays_nobody_else(model_folder: Path) -> None:
    with ServiceThread(model_folder, max_running=2, script_step_ms=5.0) as service:
        assert finished_before(service, {TENANT: "flood"}, {TENANT: "other"}) < 15
        # Nor does the same tenant get ahead of itself.
        assert finished_before(service, {TENANT: "flood"}, {TENANT: "flood"}) > 25


def test_each_api_key_is_a_tenant(model_folder: Path) -> None:
    keys = ("first", "second")
    bearer = [{"Authorization": f"Bearer {key}"} for key in keys]
    with ServiceThread(model_folder, {"api_keys": keys}, max_running=2, script_step_ms=5.0) as service:
        assert finished_before(service, bearer[0], bearer[1]) < 15
        # A header that any client could set counts for nothing beside keys, and says so.
        answer = ask(service, {**bearer[0], TENANT: "second"})
        assert answer.headers["x-diptych-ignored"] == TENANT
        assert ask(service, {"Authorization": "Bearer third"}).status_code == 401


def test_weights_are_known_by_the_name_of_the_key(model_folder: Path) -> None:
    keys = ("light", "heavy")
    name = "key-" + hashlib.sha256(b"heavy").hexdigest()[:12]
    settings: dict[str, Any] = {"max_running": 2, "script_step_ms": 5.0, "tenant_weights": {name: 9.0}}
    with ServiceThread(model_folder, {"api_keys": keys}, **settings) as service:
        headers = {key: {"Authorization": f"Bearer {key}"} for key in keys}
        with concurrent.futures.ThreadPoolExecutor(60) as pool:
            asked = [(key, pool.submit(ask, service, headers[key])) for _ in range(30) for key in keys]
            order = [key for key, _ in sorted(asked, key=lambda pair: _ended(pair[1]))]
        assert order[:30].count("heavy") >= 22


def _ended(future: concurrent.futures.Future[httpx.Response]) -> float:
    response = future.result()
    assert response.status_code == 200
    return response.elapsed.total_seconds()


@pytest.mark.parametrize("value", ["", "a b", "x" * 257, "ü"])
def test_a_header_that_names_no_tenant_is_refused(service: ServiceThread, value: str) -> None:
    answer = CLIENT.post(
        service.url + PATH, json={"prompt": "x", "max_tokens": 1}, headers={TENANT: value.encode("latin-1")}
    )
    assert answer.status_code == 400 and answer.json()["error"]["param"] == TENANT


def test_an_urgent_request_goes_before_all_others(model_folder: Path) -> None:
    """Case C7: it takes the row of one that runs."""
    with ServiceThread(model_folder, max_running=2, script_step_ms=10.0) as service:
        with RawClient(service.port) as first, RawClient(service.port) as second:
            for client in (first, second):
                body = {"prompt": [5], "max_tokens": 500, "stream": True, "ignore_eos": True, "priority": 5}
                client.post(PATH, body).read_until(b"data: ")
            begun = time.monotonic()
            assert ask(service, priority=1).status_code == 200
            assert time.monotonic() - begun < 2.0
            assert service.stats().preemptions == 1
            assert service.stats().requests_total.get("length", 0) == 1
        service.wait_idle()


@pytest.mark.parametrize("value", [-1, 256, "high", 1.5])
def test_a_priority_that_is_none_is_refused_by_name(service: ServiceThread, value: Any) -> None:
    answer = ask(service, priority=value)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "priority"


def test_the_queue_is_told_by_priority(model_folder: Path) -> None:
    with (
        ServiceThread(model_folder, max_running=1, script_step_ms=20.0) as service,
        concurrent.futures.ThreadPoolExecutor(5) as pool,
    ):
        running = pool.submit(ask, service, max_tokens=30)
        wait_until(lambda: service.stats().requests_running == 1)
        waiting = [pool.submit(ask, service, priority=priority) for priority in (0, 3, 3)]
        wait_until(lambda: service.stats().requests_waiting == 3)
        text = CLIENT.get(service.url + "/metrics").text
        samples = [line for line in text.splitlines() if line.startswith("diptych_requests_waiting_by_priority{")]
        told = {line.split('priority="')[1].split('"')[0]: float(line.split()[-1]) for line in samples}
        assert told == {"0": 1.0, "3": 2.0}
        assert all(future.result().status_code == 200 for future in (running, *waiting))


def test_too_many_tokens_in_the_queue_are_refused(model_folder: Path) -> None:
    with ServiceThread(model_folder, max_running=1, max_queued_tokens=250, script_step_ms=20.0) as service:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            running = pool.submit(ask, service, max_tokens=40)
            wait_until(lambda: service.stats().requests_running == 1)
            prompts = [[number + 3] * 100 for number in range(6)]
            answers = [future.result() for future in [pool.submit(ask, service, prompt=prompt) for prompt in prompts]]
            assert running.result().status_code == 200
        refused = [answer for answer in answers if answer.status_code != 200]
        assert len(refused) == 4
        for answer in refused:
            assert answer.status_code == 503 and answer.json()["error"]["code"] == "queued_tokens"
            assert 1 <= int(answer.headers["retry-after"]) <= 120
        refusals = [line for line in CLIENT.get(service.url + "/metrics").text.splitlines() if "refused_total" in line]
        assert [line for line in refusals if 'reason="queued_tokens"' in line and line.endswith(" 4.0")]


def test_what_would_come_too_late_is_refused_with_the_time_to_wait(model_folder: Path) -> None:
    settings: dict[str, Any] = {"max_running": 8, "max_batched_tokens": 64, "max_ttft_ms": 600.0}
    with (
        ServiceThread(model_folder, script_step_ms=50.0, **settings) as service,
        concurrent.futures.ThreadPoolExecutor(40) as pool,
    ):
        futures = []
        # Each prompt takes three steps of 50 ms.
        for number in range(25):
            futures.append(pool.submit(ask, service, prompt=[number + 3] * 180, max_tokens=1))
            time.sleep(0.03)
        answers = [future.result() for future in futures]
        refused = [answer for answer in answers if answer.status_code != 200]
        assert 5 <= len(refused) <= 22
        for answer in refused:
            assert answer.status_code == 503 and answer.json()["error"]["code"] == "too_late"
            assert 1 <= int(answer.headers["retry-after"]) <= 120
        # Whoever was taken did not wait much longer than was promised.
        slowest = max(answer.elapsed.total_seconds() for answer in answers if answer.status_code == 200)
        assert slowest < 6.0
        # With nothing before it, the next is taken.
        service.wait_idle()
        assert ask(service, prompt=[9] * 180, max_tokens=1).status_code == 200


def test_one_tenant_leaves_room_in_the_queue_for_others(model_folder: Path) -> None:
    settings: dict[str, Any] = {"max_running": 2, "max_queued_requests": 18, "script_step_ms": 20.0}
    with (
        ServiceThread(model_folder, **settings) as service,
        concurrent.futures.ThreadPoolExecutor(40) as pool,
    ):
        futures = [pool.submit(ask, service, {TENANT: "flood"}) for _ in range(30)]
        wait_until(lambda: service.stats().requests_total.get("tenant_queue_full", 0) >= 5)
        assert ask(service, {TENANT: "other"}).status_code == 200
        refused = [answer for answer in (future.result() for future in futures) if answer.status_code != 200]
        for answer in refused:
            assert answer.status_code == 429 and answer.json()["error"]["code"] == "tenant_queue_full"
            assert answer.json()["error"]["type"] == "rate_limit_error"
            assert 1 <= int(answer.headers["retry-after"]) <= 120
