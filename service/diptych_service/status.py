"""Endpoints that say what is served and how it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from diptych import AsyncEngine
from diptych_service import __version__
from diptych_service.errors import ApiError, model_not_found, shutting_down
from diptych_service.lifecycle import LIFECYCLE


class StatusApi:
    """Handlers beside those that generate."""

    def __init__(self, engine: AsyncEngine, model_name: Callable[[], str], registry: CollectorRegistry) -> None:
        self._engine = engine
        self._model_name = model_name
        self._registry = registry
        self._created = int(time.time())

    async def models(self, _request: web.Request) -> web.Response:
        return _json({"object": "list", "data": [self._model()]})

    async def model(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        model = self._model()
        if name != model["id"]:
            raise model_not_found(name)
        return _json(model)

    async def live(self, _request: web.Request) -> web.Response:
        """200 as long as the event loop answers."""
        return web.Response(text="ok\n")

    async def ready(self, request: web.Request) -> web.Response:
        """200 when a request sent now would be worked on, else 503 with the reason."""
        if request.app[LIFECYCLE].draining:
            raise shutting_down()
        self._model_name()
        if not self._engine.ready:
            message = "The worker is being restarted."
            raise ApiError(503, message, code="worker_restarting", headers={"Retry-After": "5"})
        return web.Response(text="ok\n")

    async def version(self, _request: web.Request) -> web.Response:
        return _json({"version": __version__})

    async def metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(self._registry), headers={"Content-Type": content_type})

    def _model(self) -> dict[str, Any]:
        name = self._model_name()
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "diptych",
            "root": name,
            "parent": None,
            "max_model_len": self._engine.model.max_model_len,
        }


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
