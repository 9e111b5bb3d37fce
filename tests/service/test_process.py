"""The stand-alone service as a process: signals, deaths, and what is left afterwards."""

import concurrent.futures
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from raw_client import RawClient, events
from service_rig import CLIENT, ServiceProcess, wait_until
from tiny_folder import HashOracle

PATH = "/v1/completions"
STREAM: dict[str, Any] = {"prompt": "A story", "stream": True, "return_token_ids": True}


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def ids_of(content: bytes) -> list[int]:
    chunks = events(content)
    assert chunks[-1] == "[DONE]" and "error" not in chunks[-2], chunks[-2]
    return [token for chunk in chunks[:-1] for token in chunk["choices"][0]["token_ids"]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_service_ends_at_once(model_folder: Path, number: signal.Signals) -> None:
    with ServiceProcess(model_folder) as service:
        workers = service.workers()
        assert workers
        with RawClient(service.port) as idle:
            idle.post(PATH, {"prompt": "a", "max_tokens": 1}).read_response()
            begun = time.monotonic()
            service.send(number)
            assert service.wait() == 0, service.log
        assert time.monotonic() - begun < 5.0
        assert all(gone(worker) for worker in workers)
        assert "Traceback" not in service.log


@pytest.mark.parametrize("to_group", [False, True])
def test_open_streams_end_before_the_service_does(model_folder: Path, oracle: HashOracle, to_group: bool) -> None:
    with ServiceProcess(model_folder, "--script-step-ms", "20") as service, RawClient(service.port) as client:
        client.post(PATH, STREAM | {"max_tokens": 60}).read_until(b"data: ")
        if to_group:
            service.send_to_group(signal.SIGINT)
        else:
            service.send(signal.SIGTERM)
        wait_until(lambda: CLIENT.get(service.url + "/readyz").status_code == 503)
        refused = CLIENT.post(service.url + PATH, json={"prompt": "a"})
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "shutting_down"
        assert "retry-after" in refused.headers
        assert CLIENT.get(service.url + "/livez").status_code == 200
        _, content = client.read_response()
        assert ids_of(content) == oracle.continuation(oracle.encode("A story"), 60)
        assert service.wait() == 0, service.log
        assert "Traceback" not in service.log


def test_streams_that_outlast_the_drain_end_with_an_error_frame(model_folder: Path) -> None:
    arguments = ("--script-step-ms", "20", "--drain-timeout", "0.5")
    with ServiceProcess(model_folder, *arguments) as service, RawClient(service.port) as client:
        client.post(PATH, STREAM | {"max_tokens": 1500}).read_until(b"data: ")
        with RawClient(service.port) as whole:
            whole.post(PATH, {"prompt": "b", "max_tokens": 1500})
            time.sleep(0.2)
            begun = time.monotonic()
            service.send(signal.SIGTERM)
            status, content = client.read_response()
            *_, error, done = events(content)
            assert status == 200 and done == "[DONE]" and error["error"]["code"] == "shutting_down"
            status, content = whole.read_response()
            assert status == 503 and json.loads(content)["error"]["code"] == "shutting_down"
        assert service.wait() == 0, service.log
        assert 0.4 < time.monotonic() - begun < 8.0
        assert "Traceback" not in service.log


def test_a_second_interrupt_ends_the_drain(model_folder: Path) -> None:
    with ServiceProcess(model_folder, "--script-step-ms", "20") as service, RawClient(service.port) as client:
        workers = service.workers()
        client.post(PATH, STREAM | {"max_tokens": 1500}).read_until(b"data: ")
        service.send(signal.SIGINT)
        wait_until(lambda: CLIENT.get(service.url + "/readyz").status_code == 503)
        begun = time.monotonic()
        service.send(signal.SIGINT)
        assert service.wait() == 130, service.log
        assert time.monotonic() - begun < 10.0
        assert all(gone(worker) for worker in workers)


def test_a_signal_while_the_model_loads_ends_the_service(model_folder: Path, tmp_path: Path) -> None:
    endless = tmp_path / "python"
    endless.write_text("#!/bin/sh\nexec sleep 60\n")
    endless.chmod(0o755)
    arguments = ["serve", "--model", str(model_folder), "--worker", "scripted", "--port", "0", "--worker-python"]
    command = [sys.executable, "-m", "diptych_service", *arguments, str(endless)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as service:
        wait_until(lambda: bool(psutil.Process(service.pid).children()), what="a worker that never gets ready")
        (worker,) = psutil.Process(service.pid).children()
        begun = time.monotonic()
        service.send_signal(signal.SIGTERM)
        assert service.wait(20) == 0
        assert time.monotonic() - begun < 5.0
        # A true worker would have noticed; this one does not look.
        worker.kill()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
@pytest.mark.parametrize("slow", ["aiohttp", "diptych"])
def test_a_signal_while_the_service_is_imported_ends_it(
    tmp_path: Path, number: signal.Signals, code: int, slow: str
) -> None:
    (tmp_path / f"{slow}.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "diptych_service", "serve", "--model", "m"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(number)
        assert process.wait(20) == code
        assert process.stderr.read() == ""


def test_no_worker_outlives_a_killed_service(model_folder: Path) -> None:
    with ServiceProcess(model_folder, "--script-step-ms", "20") as service, RawClient(service.port) as client:
        client.post(PATH, STREAM | {"max_tokens": 1500}).read_until(b"data: ")
        workers = service.workers()
        service.send(signal.SIGKILL)
        service.wait()
        wait_until(lambda: all(gone(worker) for worker in workers), 5.0, "the end of the worker")


def test_streams_go_on_exactly_when_the_worker_is_killed(model_folder: Path, oracle: HashOracle) -> None:
    with ServiceProcess(model_folder, "--script-step-ms", "5") as service:

        def stream(number: int) -> tuple[list[int], list[int]]:
            with RawClient(service.port) as client:
                body = STREAM | {"prompt": f"story number {number}", "max_tokens": 400}
                _, content = client.post(PATH, body).read_response()
            return ids_of(content), oracle.continuation(oracle.encode(f"story number {number}"), 400)

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            futures = [pool.submit(stream, number) for number in range(8)]
            for _ in range(3):
                time.sleep(0.5)
                wait_until(lambda: len(service.workers()) == 1)
                service.workers()[0].kill()
            for future in futures:
                got, expected = future.result(60)
                assert got == expected
        metrics = CLIENT.get(service.url + "/metrics").text
        (restarts,) = [line for line in metrics.splitlines() if line.startswith("diptych_worker_restarts_total{")]
        assert float(restarts.split()[-1]) == 3.0
        assert CLIENT.get(service.url + "/health").status_code == 200
        service.send(signal.SIGTERM)
        assert service.wait() == 0


def resources(service: ServiceProcess) -> list[tuple[int, int, int]]:
    """Threads, descriptors and shared mappings of the service and its worker."""
    processes = [psutil.Process(service.pid), *service.workers()]
    return [
        (process.num_threads(), process.num_fds(), Path(f"/proc/{process.pid}/maps").read_text().count("memfd:"))
        for process in processes
    ]


def no_more(now: list[tuple[int, int, int]], before: list[tuple[int, int, int]]) -> bool:
    """Whether no count of any process has grown."""
    counts = zip(now, before, strict=True)
    return all(count <= limit for process in counts for count, limit in zip(*process, strict=True))


def test_nothing_is_left_of_streams_whose_clients_disconnect(model_folder: Path) -> None:
    with ServiceProcess(model_folder, "--script-step-ms", "5", "--max-running", "64") as service:

        def stream(number: int, leave: float | None) -> None:
            with RawClient(service.port) as client:
                client.post(PATH, STREAM | {"prompt": f"story {number}", "max_tokens": 150})
                if leave is None:
                    assert len(ids_of(client.read_response()[1])) == 150
                else:
                    time.sleep(leave)

        def idle() -> bool:
            lines = CLIENT.get(service.url + "/metrics").text.splitlines()
            values = {line.split("{")[0]: line.split()[-1] for line in lines if not line.startswith("#")}
            names = ("requests_running", "requests_waiting", "kv_cache_usage_ratio")
            return all(float(values[f"diptych_{name}"]) == 0 for name in names)

        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            list(pool.map(lambda number: stream(number, None), range(16)))
            wait_until(idle)
            time.sleep(0.2)
            before = resources(service)
            source = random.Random(5)
            moments = [source.uniform(0.0, 1.0) if number % 2 else None for number in range(64)]
            list(pool.map(stream, range(64), moments))
        wait_until(idle)
        # Not "equal": the last connections before the baseline may still have been closing.
        wait_until(lambda: no_more(resources(service), before), what=f"{before} instead of {resources(service)}")


def test_the_ready_line_comes_with_a_command_that_works(model_folder: Path) -> None:
    with ServiceProcess(model_folder) as service:
        assert f"on {service.url}" in service.ready_line
        command = service.curl_line.partition(": ")[2].strip()
        assert command.startswith("curl -N ") and '"temperature": 0,' in command
        answer = subprocess.run(command.replace("curl -N", "curl -sN"), shell=True, capture_output=True, text=True)
        assert answer.stdout.endswith("data: [DONE]\n\n"), answer
