"""GET /v1/kv_events: what the prefix cache holds, for a router. Served only with keys of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from aiohttp import web

from diptych import AsyncEngine
from diptych.errors import RequestError
from diptych.kv_events import KvEvent, KvSnapshot, vllm_events
from diptych.options import likely_device
from diptych_service.errors import BadRequest
from diptych_service.middleware import check_key, hash_keys

LARGEST_PAGE = 10_000


class KvEventsApi:
    """Answers with the fields of vLLM's event batches, and with `core` and `next` to go on from."""

    def __init__(self, engine: AsyncEngine, keys: Sequence[str]) -> None:
        self._engine = engine
        self._hashes = hash_keys(keys)

    async def events(self, request: web.Request) -> web.Response:
        """`?start=N&limit=M`: a batch of events; without `start` a snapshot of everything, as `BlockStored` events."""
        check_key(request, self._hashes)
        limit = _number(request, "limit", 1000, LARGEST_PAGE)
        if "start" not in request.query:
            snapshot = await self._engine.kv_snapshot()
            # As many blocks as the cache has: streams must not wait for their being written down.
            return await asyncio.to_thread(lambda: self._answer(snapshot.core, snapshot.next, _as_events(snapshot)))
        start = _number(request, "start", 0, 2**63)
        try:
            told = await self._engine.kv_events(start, limit)
        except RequestError as error:
            raise BadRequest(str(error), param="start", code="kv_events_gone") from None
        return await asyncio.to_thread(self._answer, told.core, told.next, told.events)

    def _answer(self, core: int, following: int, events: list[KvEvent]) -> web.Response:
        offset = time.time_ns() - time.monotonic_ns()
        config = self._engine.config
        body: dict[str, Any] = {
            "core": core,
            "next": following,
            "ts": (events[-1].at + offset) / 1e9 if events else time.time(),
            "events": vllm_events(events, config.block_size, "GPU" if likely_device(config) == "cuda" else "CPU"),
            "data_parallel_rank": None,
        }
        return web.Response(body=msgspec.json.encode(body), content_type="application/json")


def _as_events(snapshot: KvSnapshot) -> list[KvEvent]:
    now = time.monotonic_ns()
    return [
        KvEvent(0, now, "stored", block.hash, block.parent, block.namespace, block.tokens) for block in snapshot.blocks
    ]


def _number(request: web.Request, name: str, default: int, most: int) -> int:
    given = request.query.get(name)
    if given is None:
        return default
    if not (given.isascii() and given.isdecimal()) or len(given) > 20 or int(given) > most:
        raise BadRequest(f"{name}={given[:40]!r}: expected a number from 0 to {most}", param=name)
    return int(given)
