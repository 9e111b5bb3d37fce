"""Several generations as one sequence of batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Self

from diptych import Output

Batch = list[tuple[int, Output]]

STARTED_AT_ONCE = 64


class Merge:
    """Outputs of all sources, each with the index of its source, in batches of whatever is ready.

    One source is read directly; several have a task each. The first error of any source is raised after the outputs
    before it. Leaving the context closes every source, which aborts what still runs.
    """

    def __init__(self, sources: Sequence[AsyncGenerator[Output, None]]) -> None:
        self._sources = sources
        self._ready: Batch = []
        self._wake = asyncio.Event()
        self._error: Exception | None = None
        self._open = len(sources)
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        if len(self._sources) > 1:
            self._tasks = [asyncio.create_task(self._pump(index)) for index in range(len(self._sources))]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for source in self._sources:
            await source.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        if not self._tasks:
            return [(0, await anext(self._sources[0]))]
        while not self._ready:
            if self._error is not None:
                raise self._error
            if self._open == 0:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        batch, self._ready = self._ready, []
        return batch

    async def _pump(self, index: int) -> None:
        try:
            # Starting a source submits its prompt: a thousand at once would hold all other streams.
            for _ in range(index // STARTED_AT_ONCE):
                await asyncio.sleep(0)
            async with aclosing(self._sources[index]) as source:
                async for output in source:
                    self._ready.append((index, output))
                    self._wake.set()
        except Exception as error:
            # Raised again to whoever reads the batches: the first one decides.
            self._error = self._error or error
        finally:
            self._open -= 1
            self._wake.set()
