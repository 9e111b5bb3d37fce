"""Tells the log when the worker was lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

from aiohttp import web

from diptych import AsyncEngine, EngineStats
from diptych.errors import DiptychError

logger = logging.getLogger("diptych_service")

# Between two looks, and so at least between two lines.
PERIOD_SECONDS = 1.0
# A worker that is away for so many looks is told of before it is back.
LONG_AWAY = 10
MAX_REASON = 500


class WorkerWatch:
    """Compares the engine's counters with those of the last look."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._restarts = 0
        self._away = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            self.check()

    def check(self) -> None:
        """One warning for what happened to the worker since the last look, if anything did."""
        try:
            stats = self._engine.stats()
        except DiptychError:
            return  # not started yet, or closed
        if not stats.worker_alive:
            self._away += 1
            if self._away == LONG_AWAY:
                logger.warning("the worker is away for %g s: %s", LONG_AWAY * PERIOD_SECONDS, _reason(stats))
            return
        self._away = 0
        if stats.worker_restarts > self._restarts:
            times = "" if stats.worker_restarts == self._restarts + 1 else f" {stats.worker_restarts - self._restarts}×"
            logger.warning("the worker was restarted%s: %s (%s)", times, _reason(stats), _parts(stats))
        self._restarts = stats.worker_restarts


def worker_watch_context(engine: AsyncEngine) -> Callable[[web.Application], AsyncIterator[None]]:
    """Looks while the application runs."""

    async def context(_app: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(WorkerWatch(engine).run(), name="diptych-worker-watch")
        yield
        task.cancel()
        await asyncio.wait([task])

    return context


def _reason(stats: EngineStats) -> str:
    reason = " ".join((stats.last_worker_error or "no reason is known").split())
    return reason if len(reason) <= MAX_REASON else reason[:MAX_REASON] + "…"


def _parts(stats: EngineStats) -> str:
    times = stats.last_restart
    if times is None:
        return "its times are not known"
    return (
        f"noticed in {times.detect_s:.3f} s, started in {times.spawn_s:.3f} s, "
        f"hello {times.hello_s:.3f} s later, ready {times.ready_s:.3f} s later"
    )
