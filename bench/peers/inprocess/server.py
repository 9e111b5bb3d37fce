"""The least HTTP server over an engine that has none: /v1/completions with token ids, streamed, greedy.

Runs in the engine's own environment, so it uses nothing but aiohttp. An adapter gives a `Backend`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

#: Called with the text of new tokens, their number, and an error that ends the request.
Deliver = Callable[[str, int, str], None]


class Backend(Protocol):
    """An engine with a thread of its own."""

    def submit(self, key: int, ids: list[int], output_tokens: int, deliver: Deliver) -> None: ...

    def cancel(self, key: int) -> None: ...


class ThreadedBackend:
    """A backend whose thread takes requests from one queue and those that nobody wants any more from another."""

    def __init__(self) -> None:
        self.arrived: queue.SimpleQueue[tuple[int, list[int], int, Deliver]] = queue.SimpleQueue()
        self.unwanted: queue.SimpleQueue[int] = queue.SimpleQueue()

    def submit(self, key: int, ids: list[int], output_tokens: int, deliver: Deliver) -> None:
        self.arrived.put((key, ids, output_tokens, deliver))

    def cancel(self, key: int) -> None:
        self.unwanted.put(key)


class Server:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._keys = itertools.count()
        self.app = web.Application(client_max_size=1 << 24)
        self.app.router.add_post("/v1/completions", self._completions)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        ids, wanted = body["prompt"], body["max_tokens"]
        loop = asyncio.get_running_loop()
        parts: asyncio.Queue[tuple[str, int, str]] = asyncio.Queue()

        def deliver(text: str, tokens: int, error: str) -> None:
            loop.call_soon_threadsafe(parts.put_nowait, (text, tokens, error))

        key = next(self._keys)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self._backend.submit(key, ids, wanted, deliver)
        done = 0
        try:
            while done < wanted:
                text, tokens, error = await parts.get()
                if error:
                    await response.write(_event({"error": error}))
                    return response
                done += tokens
                await response.write(_event({"choices": [{"index": 0, "text": text}]}))
        finally:
            if done < wanted:
                self._backend.cancel(key)
        usage = {"prompt_tokens": len(ids), "completion_tokens": done}
        await response.write(_event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        return response


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def arguments(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("model", type=Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def serve(backend: Backend, port: int) -> None:
    web.run_app(Server(backend).app, host="127.0.0.1", port=port, print=None, handler_cancellation=True)
