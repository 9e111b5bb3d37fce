"""Clients that stopped reading."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import cast

from aiohttp import web

logger = logging.getLogger("diptych_service")


class _Progress:
    """Bytes given to one connection, and when it last accepted any."""

    __slots__ = ("accepted", "since", "written")

    def __init__(self, now: float) -> None:
        self.written = 0
        self.accepted = 0
        self.since = now


class StallWatch:
    """Aborts connections whose peer accepted no byte for `limit` seconds while there were bytes to send.

    One task looks at all connections that are being answered, so that a write costs no timer. An aborted connection
    cancels its handler, which aborts the generation.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._period = min(1.0, limit / 4)
        self._watched: dict[asyncio.Transport, _Progress] = {}

    async def on_prepare(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Signal handler of the application: an answer starts."""
        transport = request.transport
        if transport is not None and transport not in self._watched:
            self._watched[transport] = _Progress(asyncio.get_running_loop().time())

    def wrote(self, transport: asyncio.BaseTransport | None, size: int) -> None:
        """A streaming handler gave `size` more bytes to the transport."""
        progress = self._watched.get(cast(asyncio.Transport, transport))
        if progress is not None:
            progress.written += size

    def written(self, transport: asyncio.BaseTransport) -> int:
        """Bytes that streaming handlers gave to the transport; 0 once it is not watched."""
        progress = self._watched.get(cast(asyncio.Transport, transport))
        return 0 if progress is None else progress.written

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._period)
            self.check(loop.time())

    def check(self, now: float) -> None:
        """Abort every connection that made no progress since `limit` seconds before `now`."""
        for transport, progress in list(self._watched.items()):
            pending = transport.get_write_buffer_size()
            accepted = progress.written - pending
            if pending == 0 or accepted != progress.accepted:
                progress.accepted, progress.since = accepted, now
                # An idle keep-alive connection is watched again from its next answer on.
                if transport.is_closing() and pending == 0:
                    del self._watched[transport]
            elif now - progress.since >= self._limit:
                logger.info("a client accepted no byte for %g s: its connection is aborted", self._limit)
                transport.abort()
                del self._watched[transport]

    def abort_all(self) -> None:
        """Drop what peers have not accepted yet."""
        for transport in self._watched:
            transport.abort()
        self._watched.clear()


STALL_WATCH = web.AppKey("stall_watch", StallWatch)


async def stall_watch_context(app: web.Application) -> AsyncIterator[None]:
    """Runs the watch while the application runs; afterwards no connection waits for a peer any more."""
    task = asyncio.create_task(app[STALL_WATCH].run(), name="diptych-stall-watch")
    yield
    task.cancel()
    await asyncio.wait([task])
    app[STALL_WATCH].abort_all()
    # Once around the loop, for the transports to tell their protocols.
    await asyncio.sleep(0)
