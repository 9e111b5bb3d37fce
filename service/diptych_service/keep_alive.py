"""Comments in silent streams, so that nothing on the way takes their connections for dead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from aiohttp import web

from diptych.chunks import KEEP_ALIVE
from diptych_service.stall import StallWatch


@dataclass(slots=True)
class _Silence:
    """Bytes that a stream's connection had been given when it was last looked at, and since when it was no more."""

    transport: asyncio.Transport
    written: int
    since: float


class KeepAlive:
    """Sends a comment to every stream that sent nothing for `interval` seconds; with 0 to none.

    One task looks at all streams, so that a chunk costs no timer.
    """

    def __init__(self, interval: float, stall_watch: StallWatch) -> None:
        self.interval = interval
        self._stall_watch = stall_watch
        self._streams: dict[web.StreamResponse, _Silence] = {}

    def begin(self, transport: asyncio.Transport | None, response: web.StreamResponse) -> None:
        """The headers of a stream have been sent."""
        if transport is not None and self.interval > 0:
            now = asyncio.get_running_loop().time()
            self._streams[response] = _Silence(transport, self._stall_watch.written(transport), now)

    def end(self, response: web.StreamResponse) -> None:
        """What is sent from now on is the end of the stream, if it ever began."""
        self._streams.pop(response, None)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(1.0, self.interval / 4))
            await self.check(loop.time())

    async def check(self, now: float) -> None:
        """Send what is due at `now`."""
        for response, silence in list(self._streams.items()):
            written = self._stall_watch.written(silence.transport)
            if written != silence.written:
                silence.written, silence.since = written, now
            elif now - silence.since >= self.interval and response in self._streams:
                silence.since = now
                await self._comment(response, silence)

    async def _comment(self, response: web.StreamResponse, silence: _Silence) -> None:
        # With bytes that wait for the peer the connection is not silent, and writing might wait too.
        if silence.transport.get_write_buffer_size():
            return
        self._stall_watch.wrote(silence.transport, len(KEEP_ALIVE))
        silence.written = self._stall_watch.written(silence.transport)
        try:
            await response.write(KEEP_ALIVE)
        except ConnectionError:
            # The peer is gone, which cancels the stream's handler.
            self.end(response)


KEEP_ALIVE_KEY = web.AppKey("keep_alive", KeepAlive)


async def keep_alive_context(app: web.Application) -> AsyncIterator[None]:
    """Keeps silent streams alive while the application runs."""
    keep_alive = app[KEEP_ALIVE_KEY]
    if not keep_alive.interval:
        yield
        return
    task = asyncio.create_task(keep_alive.run(), name="diptych-keep-alive")
    yield
    task.cancel()
    await asyncio.wait([task])
