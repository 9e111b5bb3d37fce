"""Which requests are open, whether new ones are taken, and what ends those that outlast the drain."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web


class Lifecycle:
    """State of one application. `draining` refuses new work; `interrupt` ends what is open with an error."""

    def __init__(self) -> None:
        self.draining = False
        self._open: set[asyncio.Task[object]] = set()
        self._interrupted: set[asyncio.Task[object]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num_open(self) -> int:
        return len(self._open)

    @contextmanager
    def track(self) -> Iterator[None]:
        """Count the current task as an open request."""
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        self._idle.clear()
        try:
            yield
        finally:
            self._open.discard(task)
            self._interrupted.discard(task)
            if not self._open:
                self._idle.set()

    async def wait_idle(self, limit: float) -> bool:
        """Wait until no request is open, at most `limit` seconds; whether that came about."""
        try:
            async with asyncio.timeout(limit):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def interrupt(self) -> int:
        """Cancel all open requests so that each answers with an error; how many there were."""
        for task in self._open:
            self._interrupted.add(task)
            task.cancel()
        return len(self._open)

    def was_interrupted(self) -> bool:
        """Whether the current task was cancelled by `interrupt`; that is then taken back, and the task goes on."""
        task = asyncio.current_task()
        if task is None or task not in self._interrupted:
            return False
        self._interrupted.discard(task)
        task.uncancel()
        return True


LIFECYCLE = web.AppKey("lifecycle", Lifecycle)
