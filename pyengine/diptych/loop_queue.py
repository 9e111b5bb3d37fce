"""One frame queue per event loop: its descriptor in the loop's selector, one drain per wake for all streams."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from diptych.errors import EngineClosedError
from diptych.mailbox import Mailbox

if TYPE_CHECKING:
    from diptych_core.engine import FrameQueue


def _closed_error() -> EngineClosedError:
    return EngineClosedError("the engine was closed while the request was running")


class LoopQueue:
    """The frame queue of one loop. Everything but `close_from_anywhere` runs in that loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, frames: FrameQueue) -> None:
        self._frames: FrameQueue | None = frames
        self.mailboxes: dict[int, Mailbox] = {}
        self._loop = weakref.ref(loop)
        loop.add_reader(frames.fileno(), self._drain)

    @property
    def frames(self) -> FrameQueue:
        """The native queue. Raises `EngineClosedError` once it was closed."""
        if self._frames is None:
            raise EngineClosedError("the engine is closed")
        return self._frames

    def close_from_anywhere(self) -> None:
        """Detach in the queue's own loop; at once if that is the running one or if it is closed already."""
        loop = self._loop()
        if loop is None or loop.is_closed():
            self._close(None)
        elif loop is _running_loop():
            self._close(loop)
        else:
            try:
                loop.call_soon_threadsafe(self._close, loop)
            except RuntimeError:  # closed in between
                self._close(None)

    def belongs_to_closed_loop(self) -> bool:
        loop = self._loop()
        return loop is None or loop.is_closed()

    def _drain(self) -> None:
        mailboxes = self.mailboxes
        for frame in self.frames.drain():
            mailbox = mailboxes.get(frame.request)
            if mailbox is None:
                continue  # its reader has left, it is being aborted, and nobody records it
            mailbox.push(frame)
            if mailbox.ended:
                # Once for each request: a failed one may have more frames of its choices.
                del mailboxes[frame.request]

    def _close(self, loop: asyncio.AbstractEventLoop | None) -> None:
        if self._frames is None:
            return
        if loop is not None:
            self._drain()
            loop.remove_reader(self._frames.fileno())
        self._frames.close()
        self._frames = None  # its descriptor is open as long as it is
        mailboxes, self.mailboxes = self.mailboxes, {}
        for mailbox in mailboxes.values():
            # A reader cannot be woken in a closed loop; where it has left, its record still ends.
            if loop is not None or mailbox.left:
                mailbox.fail(_closed_error())


class LoopQueues:
    """The queues of all loops that use one engine. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopQueue] = weakref.WeakKeyDictionary()
        self._all: list[LoopQueue] = []
        self._closed = False

    def of_running_loop(self, make: Callable[[], FrameQueue]) -> LoopQueue:
        """The running loop's queue, made at first use; queues of loops that were closed since are closed with it."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._closed:
                raise EngineClosedError("the engine is closed")
            self._sweep()
            queue = self._queues.get(loop)
            if queue is None:
                queue = self._queues[loop] = LoopQueue(loop, make())
                self._all.append(queue)
            return queue

    def sweep(self) -> None:
        """Close the queues of closed loops, which aborts the requests that nobody can read any more."""
        with self._lock:
            self._sweep()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            queues, self._all = self._all, []
            self._queues.clear()
        for queue in queues:
            queue.close_from_anywhere()

    def _sweep(self) -> None:
        gone = [queue for queue in self._all if queue.belongs_to_closed_loop()]
        if not gone:
            return
        self._all = [queue for queue in self._all if queue not in gone]
        for queue in gone:
            queue.close_from_anywhere()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
