"""More work than fits, and requests that end while they wait."""

import concurrent.futures
import json
import time
from pathlib import Path

import httpx
from raw_client import RawClient, events
from service_rig import CLIENT, ServiceThread, wait_until

PATH = "/v1/completions"


def test_a_full_queue_refuses_at_once_and_recovers(model_folder: Path) -> None:
    with ServiceThread(model_folder, max_running=2, max_queued_requests=8, script_step_ms=20.0) as service:

        def ask(number: int) -> tuple[int, float, httpx.Response]:
            begun = time.monotonic()
            body = {"prompt": f"request {number}", "max_tokens": 20, "stream": number % 2 == 0}
            response = CLIENT.post(service.url + PATH, json=body)
            return response.status_code, time.monotonic() - begun, response

        with concurrent.futures.ThreadPoolExecutor(100) as pool:
            answers = list(pool.map(ask, range(100)))
        refused = [(seconds, response) for status, seconds, response in answers if status == 503]
        taken = [response for status, _, response in answers if status == 200]
        assert len(taken) + len(refused) == 100
        # Two run and eight wait; more are taken only as those end.
        assert 10 <= len(taken) < 60
        for _, response in refused:
            assert response.json()["error"]["code"] == "queue_full"
            assert 1 <= int(response.headers["retry-after"]) <= 120
        assert all(response.text.endswith("data: [DONE]\n\n") for response in taken if "data:" in response.text)
        service.wait_idle()
        assert service.complete("after", 2)["usage"]["completion_tokens"] == 2


def test_a_list_that_does_not_fit_the_queue_is_refused_whole(model_folder: Path) -> None:
    with ServiceThread(model_folder, max_running=2, max_queued_requests=8, script_step_ms=5.0) as service:
        for stream in (True, False):
            with RawClient(service.port) as client:
                body = {"prompt": [f"p{i}" for i in range(200)], "max_tokens": 50, "stream": stream}
                status, content = client.post(PATH, body).read_response()
            assert status == 503 and json.loads(content)["error"]["code"] == "queue_full"
            service.wait_idle(2.0)


def test_a_request_that_fails_while_it_waits_is_told_so(model_folder: Path) -> None:
    with (
        ServiceThread(model_folder, max_running=1, script_step_ms=20.0) as service,
        RawClient(service.port) as running,
        RawClient(service.port) as waiting,
    ):
        running.post(PATH, {"prompt": "a", "max_tokens": 1500, "stream": True}).read_until(b"data: ")
        waiting.post(PATH, {"prompt": "b", "max_tokens": 5, "stream": True})
        wait_until(lambda: service.stats().requests_waiting == 1)
        service.loop.call_soon_threadsafe(lambda: service.loop.create_task(service.engine.close()))
        for client in (running, waiting):
            status, content = client.read_response()
            if status == 200:
                *_, error, done = events(content)
                assert done == "[DONE]" and error["error"]["code"] == "engine_closed"
            else:
                assert status == 503 and json.loads(content)["error"]["code"] == "engine_closed"
