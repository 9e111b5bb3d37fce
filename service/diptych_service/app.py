"""The application: routes over one engine. Whoever makes the engine also starts and closes it."""

from __future__ import annotations

from aiohttp import web

from diptych import AsyncEngine
from diptych.errors import EngineClosedError
from diptych_service.config import ServiceConfig, check_together
from diptych_service.errors import not_ready
from diptych_service.generation import Generation
from diptych_service.keep_alive import KEEP_ALIVE_KEY, KeepAlive, keep_alive_context
from diptych_service.kv_events import KvEventsApi
from diptych_service.lifecycle import LIFECYCLE, Lifecycle
from diptych_service.metrics import registry_for
from diptych_service.middleware import KV_EVENTS_PATH, add_headers, answer_errors, refuse_while_draining, require_key
from diptych_service.origins import allow_origins, answer_preflights
from diptych_service.protocol import expect_handler
from diptych_service.stall import STALL_WATCH, StallWatch, stall_watch_context
from diptych_service.status import StatusApi
from diptych_service.tracing import trace_requests
from diptych_service.worker_watch import worker_watch_context


def create_app(engine: AsyncEngine, config: ServiceConfig | None = None) -> web.Application:
    """An aiohttp application that serves `engine`. Run it with `handler_cancellation=True`, so that a client that
    disconnects aborts its request also while no bytes flow. Raises `ConfigError` where the engine's settings and
    `config` contradict each other."""
    config = config or ServiceConfig()
    check_together(engine.config, config)
    # `web.Application` and a list: instrumentation of aiohttp replaces the class and inserts into the list.
    app = web.Application(
        middlewares=[
            answer_errors,
            answer_preflights(config.allowed_origins),
            trace_requests,
            require_key(config.api_keys),
            refuse_while_draining,
        ],
        client_max_size=config.max_body_bytes,
    )
    app[LIFECYCLE] = Lifecycle()
    app[STALL_WATCH] = watch = StallWatch(config.write_timeout)
    app[KEEP_ALIVE_KEY] = KeepAlive(config.keep_alive_interval, watch)
    app.on_response_prepare.append(add_headers)
    app.on_response_prepare.append(allow_origins(config.allowed_origins))
    app.on_response_prepare.append(watch.on_prepare)
    app.cleanup_ctx.append(stall_watch_context)
    app.cleanup_ctx.append(keep_alive_context)
    app.cleanup_ctx.append(worker_watch_context(engine))

    def model_name() -> str:
        try:
            return config.served_model_name or engine.model_name
        except EngineClosedError:
            raise not_ready() from None

    status = StatusApi(engine, model_name, registry_for(engine, model_name))
    generation = Generation(engine, model_name)
    app.add_routes(
        [
            web.post("/v1/chat/completions", generation.chat, expect_handler=expect_handler),
            web.post("/v1/completions", generation.completions, expect_handler=expect_handler),
            web.get("/v1/models", status.models),
            web.get("/v1/models/{name:.+}", status.model),
            web.get("/livez", status.live),
            web.get("/readyz", status.ready),
            web.get("/health", status.ready),
            web.get("/ping", status.ready),
            web.get("/version", status.version),
            web.get("/metrics", status.metrics),
        ]
    )
    if config.kv_events_keys:
        app.add_routes([web.get(KV_EVENTS_PATH, KvEventsApi(engine, config.kv_events_keys).events)])
    return app
