"""Who is disconnected for not reading, by counting bytes and without waiting."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from aiohttp import web

from diptych_service.stall import StallWatch


class FakeTransport:
    def __init__(self) -> None:
        self.pending = 0
        self.aborted = False
        self.closing = False

    def get_write_buffer_size(self) -> int:
        return self.pending

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.aborted = True


async def watched(limit: float) -> tuple[StallWatch, Any, float]:
    watch = StallWatch(limit)
    transport = FakeTransport()
    await watch.on_prepare(cast(Any, SimpleNamespace(transport=transport)), web.StreamResponse())
    return watch, transport, asyncio.get_running_loop().time()


async def test_a_peer_that_accepts_nothing_is_aborted_at_the_limit() -> None:
    watch, transport, now = await watched(10.0)
    watch.wrote(transport, 100)
    transport.pending = 100
    watch.check(now + 9.0)
    assert not transport.aborted
    watch.check(now + 11.0)
    assert transport.aborted


async def test_a_slow_peer_that_accepts_something_stays() -> None:
    watch, transport, now = await watched(10.0)
    for second in range(0, 100, 5):
        # Written faster than read: the backlog grows, and yet bytes are accepted.
        watch.wrote(transport, 100)
        transport.pending += 90
        watch.check(now + second)
    assert not transport.aborted


async def test_an_idle_connection_stays() -> None:
    watch, transport, now = await watched(10.0)
    watch.check(now + 100.0)
    watch.wrote(transport, 100)
    transport.pending = 100
    watch.check(now + 105.0)
    assert not transport.aborted
    watch.check(now + 120.0)
    assert transport.aborted
