"""Requests that nobody waits for any more: what they cost, and what their client is told."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from raw_client import RawClient, events
from service_rig import CLIENT, ServiceThread, wait_until

PATH = "/v1/completions"


@pytest.fixture(scope="module")
def busy_service(model_folder: Path) -> Iterator[ServiceThread]:
    """One request at a time, 20 ms a token."""
    with ServiceThread(model_folder, max_running=1, script_step_ms=20.0) as service:
        yield service


@pytest.fixture
def occupied(busy_service: ServiceThread) -> Iterator[ServiceThread]:
    """The only row is taken until the test is over."""
    with RawClient(busy_service.port) as client:
        client.post(PATH, {"prompt": [5], "max_tokens": 1500, "stream": True, "ignore_eos": True}).read_until(b"data: ")
        yield busy_service
    busy_service.wait_idle()


def ask(service: ServiceThread, **fields: Any) -> httpx.Response:
    return CLIENT.post(service.url + PATH, json={"prompt": [7, 8], "max_tokens": 5, **fields})


@pytest.mark.parametrize("field", ["timeout", "ttft_timeout"])
def test_a_request_that_is_late_in_the_queue_is_told_so_and_computed_never(occupied: ServiceThread, field: str) -> None:
    before = occupied.stats()
    begun = time.monotonic()
    answer = ask(occupied, **{field: 0.3})
    assert 0.3 <= time.monotonic() - begun < 3.0
    assert answer.status_code == 504 and answer.json()["error"]["code"] == field
    assert answer.json()["error"]["type"] == "server_error"
    assert answer.headers["x-should-retry"] == "false"
    stats = occupied.stats()
    assert stats.requests_waiting == 0
    assert stats.requests_expired["waiting"] == before.requests_expired["waiting"] + 1
    assert stats.requests_total[field] == before.requests_total.get(field, 0) + 1


def test_a_stream_that_is_late_in_the_queue_ends_with_an_error_and_the_terminator(occupied: ServiceThread) -> None:
    """Case C20."""
    with RawClient(occupied.port) as client:
        body = {"prompt": [7], "max_tokens": 5, "stream": True, "timeout": 0.3}
        status, content = client.post(PATH, body).read_response()
    if status == 200:
        *_, error, done = events(content)
        assert done == "[DONE]" and error["error"]["code"] == "timeout"
    else:
        assert status == 504 and json.loads(content)["error"]["code"] == "timeout"


def test_output_that_is_cut_off_by_the_timeout_has_that_reason(busy_service: ServiceThread) -> None:
    answer = ask(busy_service, max_tokens=1000, ignore_eos=True, timeout=0.5, return_token_ids=True)
    assert answer.status_code == 200
    (choice,) = answer.json()["choices"]
    assert choice["finish_reason"] == "timeout"
    assert 3 <= len(choice["token_ids"]) == answer.json()["usage"]["completion_tokens"] <= 30
    with RawClient(busy_service.port) as client:
        body = {"prompt": [7], "max_tokens": 1000, "ignore_eos": True, "stream": True, "timeout": 0.5}
        status, content = client.post(PATH, body).read_response()
    *_, last, done = events(content)
    assert status == 200 and done == "[DONE]"
    assert last["choices"][0]["finish_reason"] == "timeout"
    busy_service.wait_idle()


def test_a_generous_timeout_changes_nothing(busy_service: ServiceThread) -> None:
    (choice,) = ask(busy_service, timeout=60, ttft_timeout=60.0, ignore_eos=True).json()["choices"]
    assert choice["finish_reason"] == "length"


@pytest.mark.parametrize("value", [0, -1, 1e10, "1"])
def test_a_timeout_that_is_none_is_refused_by_name(busy_service: ServiceThread, value: Any) -> None:
    for field in ("timeout", "ttft_timeout"):
        answer = ask(busy_service, **{field: value})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == field


def test_the_official_client_does_not_ask_again(occupied: ServiceThread) -> None:
    before = occupied.stats().requests_total.get("timeout", 0)
    with (
        openai.OpenAI(base_url=occupied.url + "/v1", api_key="none", max_retries=2) as client,
        pytest.raises(openai.InternalServerError) as raised,
    ):
        client.completions.create(model=occupied.model, prompt="x", extra_body={"timeout": 0.2})
    assert raised.value.status_code == 504
    assert occupied.stats().requests_total["timeout"] == before + 1


def test_whoever_gives_up_in_the_queue_is_not_computed(occupied: ServiceThread) -> None:
    """Case C13."""
    with RawClient(occupied.port) as client:
        client.post(PATH, {"prompt": [9], "max_tokens": 5})
        wait_until(lambda: occupied.stats().requests_waiting == 1)
    wait_until(lambda: occupied.stats().requests_waiting == 0, 1.0)
