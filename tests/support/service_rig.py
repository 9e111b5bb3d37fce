"""The service for tests: in a thread with an event loop of its own, or as a process; always over real sockets."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

import httpx
import psutil
import uvloop
from aiohttp import web

from diptych import AsyncEngine, EngineConfig
from diptych_service import ServiceConfig, create_app
from diptych_service.protocol import answer_in_json
from diptych_service.server import listen

# A connection per request, as the services come and go; one client for all, as making one is slow.
CLIENT = httpx.Client(timeout=60, verify=False, limits=httpx.Limits(max_connections=None, max_keepalive_connections=0))

SMALL = {"max_running": 64, "max_batched_tokens": 512}


def wait_until(condition: Any, limit: float = 10.0, what: str = "the condition") -> None:
    """Polls until `condition()` holds."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, f"{what} did not come about within {limit} s"
        time.sleep(0.01)


class ServiceThread:
    """One engine and one application in a thread. Use as a context manager."""

    def __init__(self, model: Path, service: dict[str, Any] | None = None, **engine: Any) -> None:
        self._config = EngineConfig(model=str(model), **{"worker": "scripted", **SMALL, **engine})
        self._service = ServiceConfig(**(service or {}))
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="service-under-test")
        self.engine: AsyncEngine
        self.app: web.Application
        self.loop: asyncio.AbstractEventLoop
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def model(self) -> str:
        return self.engine.model_name

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait(60)
        if self._error is not None:
            raise self._error
        assert self.port, "the service did not start within 60 s"
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        assert not self._thread.is_alive(), "the service did not stop within 30 s"
        if self._error is not None:
            raise self._error

    def stats(self) -> Any:
        return self.engine.stats()

    def wait_idle(self, limit: float = 10.0) -> None:
        """Nothing runs or waits and no block is in use."""

        def idle() -> bool:
            stats = self.stats()
            return not (stats.requests_running or stats.requests_waiting or stats.kv_blocks_used)

        wait_until(idle, limit, "an idle engine")

    def complete(self, prompt: Any, max_tokens: int = 8, **fields: Any) -> dict[str, Any]:
        body = {"prompt": prompt, "max_tokens": max_tokens, "return_token_ids": True, **fields}
        response = CLIENT.post(f"{self.url}/v1/completions", json=body, timeout=30)
        assert response.status_code == 200, response.text
        result: dict[str, Any] = response.json()
        return result

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with AsyncEngine(self._config) as self.engine:
            self.app = create_app(self.engine, self._service)
            runner = web.AppRunner(self.app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
            await runner.setup()
            answer_in_json(runner)
            await web.SockSite(runner, listen(ServiceConfig(port=0))).start()
            self.port = runner.addresses[0][1]
            self._started.set()
            await self._stop.wait()
            await runner.cleanup()


class ServiceProcess:
    """`python -m diptych_service serve` in a process group of its own."""

    def __init__(self, model: Path, *arguments: str, environment: dict[str, str] | None = None) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("DIPTYCH_", "OTEL_"))}
        self.process = subprocess.Popen(
            [
                sys.executable,
                *("-W", "error", "-m", "diptych_service", "serve", "--model", str(model), "--port", "0"),
                *("--worker", "scripted", *arguments),
            ],
            env={**inherited, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.errors: list[str] = []
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()
        assert self.process.stdout is not None
        self.ready_line = self.process.stdout.readline()
        if " on http://" not in self.ready_line:
            self.kill()
            raise AssertionError(f"no ready line, but {self.ready_line!r} and on standard error: {self.log}")
        self.curl_line = self.process.stdout.readline()
        self.url = self.ready_line.split()[-1]
        self.port = int(self.url.rsplit(":", 1)[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return "".join(self.errors)

    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.pid).children(recursive=True)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def send_to_group(self, number: signal.Signals) -> None:
        os.killpg(self.pid, number)

    def wait(self, limit: float = 20.0) -> int:
        """The exit code."""
        code = self.process.wait(limit)
        self._reader.join(5)
        return code

    def kill(self) -> None:
        """End it whatever its state."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self._reader.join(5)
        if self.process.stdout is not None:
            self.process.stdout.close()
        if self.process.stderr is not None:
            self.process.stderr.close()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors.extend(iter(self.process.stderr.readline, ""))
