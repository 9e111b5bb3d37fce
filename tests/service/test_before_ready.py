"""While the model loads the service already answers: probes as they are, everything else with a 503."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from aiohttp import web

from diptych import AsyncEngine, EngineConfig
from diptych_service import create_app


@pytest.fixture
async def loading(model_folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    engine = AsyncEngine(EngineConfig(model=str(model_folder), worker="scripted", max_running=4))
    runner = web.AppRunner(create_app(engine), handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{runner.addresses[0][1]}") as client:
        yield client
    await runner.cleanup()


async def test_liveness_and_metrics_answer(loading: httpx.AsyncClient) -> None:
    assert (await loading.get("/livez")).status_code == 200
    assert (await loading.get("/version")).json()["version"]
    assert (await loading.get("/metrics")).status_code == 200


@pytest.mark.parametrize("path", ["/readyz", "/health", "/ping", "/v1/models", "/v1/models/x"])
async def test_readiness_and_models_are_refused(loading: httpx.AsyncClient, path: str) -> None:
    response = await loading.get(path)
    assert response.status_code == 503 and response.json()["error"]["code"] == "not_ready"
    assert int(response.headers["retry-after"]) > 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/completions", {"prompt": "a", "stream": True}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ],
)
async def test_requests_are_refused(loading: httpx.AsyncClient, path: str, body: dict[str, object]) -> None:
    response = await loading.post(path, json=body)
    assert response.status_code == 503 and response.json()["error"]["code"] == "not_ready"
