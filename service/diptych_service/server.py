"""The stand-alone service: one engine, one listening socket, signals."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop
from aiohttp import web

from diptych import AsyncEngine
from diptych.errors import ConfigError
from diptych_service.app import create_app
from diptych_service.config import ServiceConfig
from diptych_service.lifecycle import LIFECYCLE, Lifecycle
from diptych_service.protocol import answer_in_json
from diptych_service.settings import Settings

logger = logging.getLogger("diptych_service")

# Time for the last frames of interrupted streams to leave, and for the engine to close.
FAREWELL_SECONDS = 2.0
FLUSH_INTERVAL = 0.01
# Unsent bytes that the kernel holds for one client: what a slow reader leaves unread stays bounded and is noticed.
UNSENT_BYTES = 64 * 1024
BACKLOG = 2048
FORCED = 130
START_ABANDONED = -1

Announce = Callable[[AsyncEngine, str], None]


def run(settings: Settings, announce: Announce) -> int:
    """Serve until a signal; returns the exit code. `announce` is called with the engine and the URL once ready.

    SIGTERM and SIGINT drain; a second SIGINT ends at once.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(_serve(settings, announce))
    if code == START_ABANDONED:
        # A thread still waits for the worker, which may load for a minute. The worker ends when this process does.
        logging.shutdown()
        os._exit(0)
    return code


def listen(config: ServiceConfig) -> socket.socket:
    """The listening socket, taken before anything slow happens."""
    try:
        family, _, _, _, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigError([f"host is {config.host!r}: {error.strerror or error}"]) from None
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        where = f"{config.host}:{config.port}"
        raise ConfigError([f"cannot listen on {where}: {error.strerror}; choose another --host or --port"]) from None
    listener.setblocking(False)
    return listener


class _Signals:
    """SIGTERM and SIGINT as events: the first asks to stop, a second SIGINT to stop at once."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.force = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._received, number)

    def _received(self, number: signal.Signals) -> None:
        if self.stop.is_set() and number == signal.SIGINT:
            logger.warning("second interrupt: stopping at once")
            self.force.set()
        else:
            logger.info("%s: draining", number.name)
        self.stop.set()


async def _serve(settings: Settings, announce: Announce) -> int:
    listener = listen(settings.service)
    signals = _Signals()
    engine = AsyncEngine(settings.engine)
    app = create_app(engine, settings.service)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=FAREWELL_SECONDS)
    try:
        await runner.setup()
        answer_in_json(runner)
        # Probes are answered while the model loads.
        await web.SockSite(runner, listener, backlog=BACKLOG).start()
        if not await _unless(signals.stop, engine.start()):
            return START_ABANDONED
        announce(engine, _url(listener, settings.service))
        await signals.stop.wait()
        if not await _unless(signals.force, _drain(app[LIFECYCLE], runner, settings.service.drain_timeout)):
            _abandon(runner)
            return FORCED
        return 0
    finally:
        await _close(engine, runner)


async def _unless(event: asyncio.Event, work: Coroutine[Any, Any, object]) -> bool:
    """Run `work`, or cancel it when the event comes first; whether it was completed."""
    task = asyncio.create_task(work)
    watch = asyncio.create_task(event.wait())
    try:
        await asyncio.wait([task, watch], return_when=asyncio.FIRST_COMPLETED)
    finally:
        watch.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
    if task.cancelled():
        return False
    task.result()
    return True


async def _drain(lifecycle: Lifecycle, runner: web.AppRunner, limit: float) -> None:
    """Refuse new requests, let the open ones end, and interrupt those that outlast the limit."""
    lifecycle.draining = True
    if lifecycle.num_open:
        logger.info("waiting up to %g s for %d open requests", limit, lifecycle.num_open)
    if not await lifecycle.wait_idle(limit):
        logger.warning("the drain limit is over: %d open requests end with an error", lifecycle.interrupt())
        await lifecycle.wait_idle(FAREWELL_SECONDS)
    await _flush(runner)


async def _flush(runner: web.AppRunner) -> None:
    """Give the kernel what is still buffered for clients that read."""
    assert runner.server is not None
    for _ in range(int(FAREWELL_SECONDS / FLUSH_INTERVAL)):
        transports = [connection.transport for connection in runner.server.connections]
        if not any(transport is not None and transport.get_write_buffer_size() for transport in transports):
            return
        await asyncio.sleep(FLUSH_INTERVAL)


def _abandon(runner: web.AppRunner) -> None:
    """Drop all connections, which cancels their handlers."""
    assert runner.server is not None
    for connection in runner.server.connections:
        if connection.transport is not None:
            connection.transport.abort()


async def _close(engine: AsyncEngine, runner: web.AppRunner) -> None:
    try:
        await runner.cleanup()
    finally:
        await engine.close()


def _url(listener: socket.socket, config: ServiceConfig) -> str:
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
