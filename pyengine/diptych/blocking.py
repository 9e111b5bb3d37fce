"""Blocking work beside an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

Result = TypeVar("Result")


async def in_thread(work: Callable[[], Result], on_orphan: Callable[[Result], object] | None = None) -> Result:
    """Await blocking work in a thread of its own: a thread of the loop's executor would stay when the engine is closed.

    If the waiting is cancelled the work goes on; `on_orphan` then gets its result.
    """
    return await _Blocking(work, on_orphan).result()


class _Blocking(Generic[Result]):
    def __init__(self, work: Callable[[], Result], on_orphan: Callable[[Result], object] | None) -> None:
        self._work, self._on_orphan = work, on_orphan
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[Result] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="diptych-blocking")

    async def result(self) -> Result:
        self._thread.start()
        future = self._future
        try:
            return await future
        except asyncio.CancelledError:
            # The work may be done, and the task cancelled before it could run again.
            if future.done() and not future.cancelled() and future.exception() is None:
                self._abandon(future.result())
            raise
        finally:
            if future.done() and not future.cancelled():
                self._thread.join()

    def _run(self) -> None:
        try:
            result = self._work()
        except BaseException as error:
            self._tell(partial(self._fail, error))
            return
        if not self._tell(partial(self._give, result)) and self._on_orphan is not None:
            self._on_orphan(result)

    def _tell(self, settle: Callable[[], None]) -> bool:
        try:
            self._loop.call_soon_threadsafe(settle)
        except RuntimeError:  # the loop was closed meanwhile
            return False
        return True

    def _give(self, result: Result) -> None:
        if self._future.cancelled():
            self._abandon(result)
        else:
            self._future.set_result(result)

    def _fail(self, error: BaseException) -> None:
        if not self._future.cancelled():
            self._future.set_exception(error)

    def _abandon(self, result: Result) -> None:
        if self._on_orphan is not None:
            threading.Thread(target=self._on_orphan, args=(result,), name="diptych-orphan").start()
