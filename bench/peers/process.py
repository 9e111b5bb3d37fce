"""An engine as a process: started, awaited, measured, ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from .client import Client, Prompt
from .environments import PeerError
from .machine import session_seconds

#: vLLM takes up to 130 s on a quiet machine.
START_LIMIT = 600.0


class EngineProcess:
    """A session of its own, so that whatever the engine starts ends with it."""

    def __init__(self, command: list[str], variables: Mapping[str, str], log: Path) -> None:
        self._log = log
        self._begun = time.perf_counter()
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command,
                # Not here, where names of `bench` would shadow packages of the engine's.
                cwd=log.parent,
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    async def ready(self, client: Client, prompt: Prompt) -> float:
        """Seconds from the start to the first answer, of one token."""
        while True:
            sample = await client.complete(prompt, 1)
            seconds = time.perf_counter() - self._begun
            if not sample.error:
                return seconds
            if (code := self._process.poll()) is not None:
                raise PeerError(f"ended with {code} while starting: {self._tail()}")
            if seconds > START_LIMIT:
                raise PeerError(f"no answer within {START_LIMIT:.0f} s: {sample.error}; {self._tail()}")
            await asyncio.sleep(0.1)

    def cpu_seconds(self) -> float:
        return session_seconds(self._process.pid)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL for what is left of the session after 20 s."""
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _tail(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-4:])[:600]
