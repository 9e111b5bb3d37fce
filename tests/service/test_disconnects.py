"""Clients that leave, stop reading or never cared: their requests end, nobody else notices, and the log stays quiet."""

import asyncio
import gc
import json
import logging
import random
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from raw_client import RawClient, dechunk, events
from service_rig import ServiceThread, wait_until
from tiny_folder import HashOracle

from diptych_service import receive

PATH = "/v1/completions"


def long_request(**fields: Any) -> dict[str, Any]:
    return {"prompt": "A long story", "max_tokens": 1900, "ignore_eos": True, "stream": True, **fields}


def aborts(service: ServiceThread) -> int:
    count: int = service.stats().requests_total.get("abort", 0)
    return count


@pytest.mark.parametrize("leave", ["close", "reset", "half_close"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_request(slow_service: ServiceThread, leave: str, stream: bool) -> None:
    before = aborts(slow_service)
    with RawClient(slow_service.port) as client:
        client.post(PATH, long_request(stream=stream))
        if stream:
            client.read_until(b"data: ")
        else:
            wait_until(lambda: slow_service.stats().requests_running == 1)
        getattr(client, leave)()
        slow_service.wait_idle(1.0)
    assert aborts(slow_service) == before + 1


@pytest.mark.parametrize(
    ("head", "rest"),
    [
        (b"Content-Length: 100\r\n\r\n{", b'"prompt"'),
        (b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"pro\r\n', b"garbage\r\n"),
    ],
)
def test_a_body_that_never_ends_is_answered(
    service: ServiceThread, monkeypatch: pytest.MonkeyPatch, head: bytes, rest: bytes
) -> None:
    monkeypatch.setattr(receive, "IDLE_SECONDS", 0.5)
    with socket.create_connection(("127.0.0.1", service.port), timeout=10) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: test\r\n" + head)
        time.sleep(0.1)
        client.sendall(rest)
        answer = client.recv(65536)
    assert answer.startswith(b"HTTP/1.1 408 ") and b"\r\nConnection: close\r\n" in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "body_timeout"


def test_a_body_may_take_long_if_it_goes_on(service: ServiceThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive, "IDLE_SECONDS", 0.5)
    body = b'{"prompt":"a","max_tokens":1}'
    with socket.create_connection(("127.0.0.1", service.port), timeout=10) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n" % len(body))
        for start in range(0, len(body), 4):
            client.sendall(body[start : start + 4])
            time.sleep(0.1)
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_clients_of_whole_answers_that_leave_free_everything(slow_service: ServiceThread) -> None:
    clients = [RawClient(slow_service.port).post(PATH, long_request(stream=False)) for _ in range(20)]
    wait_until(lambda: slow_service.stats().requests_running == 20)
    for client in clients:
        client.close()
    slow_service.wait_idle(2.0)


def test_a_client_that_leaves_the_queue_is_never_run(model_folder: Path) -> None:
    with ServiceThread(model_folder, max_running=1, script_step_ms=5.0) as service:
        with RawClient(service.port) as first, RawClient(service.port) as second:
            first.post(PATH, long_request())
            first.read_until(b"data: ")
            second.post(PATH, long_request(prompt="B", stream=False))
            wait_until(lambda: service.stats().requests_waiting == 1)
            second.close()
            wait_until(lambda: service.stats().requests_waiting == 0, 1.0)
            prompt_tokens = service.stats().prompt_tokens
        service.wait_idle()
        third = service.complete("C", 3)
        assert third["usage"]["completion_tokens"] == 3
        # The second one was never admitted: only the third's prompt came on top.
        assert service.stats().prompt_tokens == prompt_tokens + third["usage"]["prompt_tokens"]


def test_a_client_that_stops_reading_is_disconnected_in_the_end(model_folder: Path) -> None:
    with ServiceThread(model_folder, {"write_timeout": 0.5}, script_step_ms=2.0) as service:
        with RawClient(service.port, receive_buffer=4096) as client:
            client.post(PATH, long_request())
            wait_until(lambda: aborts(service) == 1, what="the abort of a stalled client")
        service.wait_idle()
        assert service.stats().generation_tokens < 1900


def test_stalled_readers_that_reset_leave_no_noise(model_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with ServiceThread(model_folder) as service:
        standing = _num_tasks(service)
        clients = [RawClient(service.port, receive_buffer=2048) for _ in range(50)]
        for client in clients:
            client.post(PATH, long_request())
        wait_until(lambda: service.stats().generation_tokens >= 50 * 1900, 30.0)
        assert _num_tasks(service) >= 50, "the clients should be stalled, with their handlers waiting"
        for client in clients:
            client.reset()
        wait_until(lambda: _num_tasks(service) <= standing)
        service.wait_idle()
        gc.collect()
        service.complete("still alive", 1)
    noisy = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert not noisy, [record.getMessage() for record in noisy]


def _num_tasks(service: ServiceThread) -> int:
    async def count() -> int:
        return len(asyncio.all_tasks())

    return asyncio.run_coroutine_threadsafe(count(), service.loop).result(5)


def test_stalled_readers_slow_nobody_down(model_folder: Path, oracle: HashOracle) -> None:
    with ServiceThread(model_folder, script_step_ms=1.0) as service:
        service.complete("warm", 100)
        alone = _timed(service, oracle)
        stalled = [RawClient(service.port, receive_buffer=2048).post(PATH, long_request()) for _ in range(20)]
        wait_until(lambda: service.stats().requests_running == 20)
        beside = _timed(service, oracle)
        for client in stalled:
            client.close()
        service.wait_idle()
    assert beside < 10 * alone


def _timed(service: ServiceThread, oracle: HashOracle) -> float:
    begun = time.monotonic()
    choice = service.complete("a normal reader", 200)["choices"][0]
    assert choice["token_ids"] == oracle.continuation(oracle.encode("a normal reader"), 200)
    return time.monotonic() - begun


def test_a_reader_that_pauses_gets_every_token(service: ServiceThread, oracle: HashOracle) -> None:
    with RawClient(service.port, receive_buffer=2048) as client:
        client.post(PATH, long_request(return_token_ids=True))
        client.read_until(b"data: ")
        wait_until(lambda: service.stats().requests_running == 0)
        time.sleep(0.5)
        content = client.read_until(b"\r\n0\r\n\r\n").partition(b"\r\n\r\n")[2]
    chunks = events(dechunk(content))
    ids = [token for chunk in chunks[:-1] for token in chunk["choices"][0]["token_ids"]]
    assert ids == oracle.continuation(oracle.encode("A long story"), 1900)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == oracle.tokenizer.decode(ids)


async def test_the_service_outlives_clients_that_time_out(slow_service: ServiceThread, oracle: HashOracle) -> None:
    source = random.Random(3)
    # A client pool of its own for each: httpx would otherwise wait for the connections of those that were cancelled.
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=slow_service.url, timeout=30, limits=limits) as client:

        async def impatient(number: int) -> None:
            body = long_request(prompt=f"number {number}", stream=number % 2 == 0)
            try:
                async with asyncio.timeout(source.uniform(0.0, 0.4)):
                    await client.post(PATH, json=body)
            except TimeoutError:
                return
            raise AssertionError("a request of half a minute ended at once")

        async with asyncio.TaskGroup() as group:
            for number in range(200):
                group.create_task(impatient(number))
        slow_service.wait_idle()
        for number in range(20):
            body = {"prompt": f"number {number}", "max_tokens": 3, "return_token_ids": True}
            choice = (await client.post(PATH, json=body)).json()["choices"][0]
            assert choice["token_ids"] == oracle.continuation(oracle.encode(f"number {number}"), 3)
