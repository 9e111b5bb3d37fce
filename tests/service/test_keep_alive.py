"""Streams that are silent: who gets a comment, and that clients skip it."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import openai
import pytest
from aiohttp import web
from raw_client import RawClient, events
from service_rig import ServiceThread

from diptych.errors import ConfigError
from diptych_service import ServiceConfig
from diptych_service.keep_alive import KeepAlive
from diptych_service.stall import StallWatch

COMMENT = b": keep-alive\n\n"


class FakeTransport:
    pending = 0

    def get_write_buffer_size(self) -> int:
        return self.pending


class FakeResponse(web.StreamResponse):
    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.error: Exception | None = None

    async def write(self, data: Any) -> None:
        if self.error is not None:
            raise self.error
        self.sent.append(data)


class Rig:
    """One stream, begun at `now`, under an interval of ten seconds."""

    def __init__(self, interval: float = 10.0) -> None:
        self.stall_watch = StallWatch(30.0)
        self.keep_alive = KeepAlive(interval, self.stall_watch)
        self.transport = FakeTransport()
        self.response = FakeResponse()
        self.now = asyncio.get_running_loop().time()

    async def begin(self) -> "Rig":
        await self.stall_watch.on_prepare(cast(Any, SimpleNamespace(transport=self.transport)), self.response)
        self.keep_alive.begin(cast(Any, self.transport), self.response)
        return self

    async def comments_at(self, seconds: float) -> int:
        await self.keep_alive.check(self.now + seconds)
        return len(self.response.sent)

    def write(self) -> None:
        self.stall_watch.wrote(cast(Any, self.transport), 100)


async def test_a_silent_stream_gets_a_comment_each_interval() -> None:
    rig = await Rig().begin()
    assert [await rig.comments_at(second) for second in (5, 9, 11, 12, 20, 22, 33)] == [0, 0, 1, 1, 1, 2, 3]
    assert set(rig.response.sent) == {COMMENT}


async def test_a_stream_that_sends_gets_none() -> None:
    rig = await Rig().begin()
    for second in range(5, 100, 5):
        rig.write()
        assert await rig.comments_at(second) == 0
    assert [await rig.comments_at(second) for second in (104, 106)] == [0, 1]


async def test_a_peer_with_bytes_to_read_gets_none() -> None:
    rig = await Rig().begin()
    rig.transport.pending = 1
    assert await rig.comments_at(50) == 0
    rig.transport.pending = 0
    assert await rig.comments_at(61) == 1


async def test_a_stream_that_has_ended_gets_none() -> None:
    rig = await Rig().begin()
    rig.keep_alive.end(rig.response)
    assert await rig.comments_at(50) == 0


async def test_a_peer_that_is_gone_is_left_to_its_handler() -> None:
    rig = await Rig().begin()
    rig.response.error = ConnectionResetError("gone")
    assert await rig.comments_at(50) == 0
    rig.response.error = None
    assert await rig.comments_at(100) == 0


async def test_none_without_an_interval() -> None:
    rig = await Rig(0.0).begin()
    assert await rig.comments_at(1000) == 0


@pytest.mark.parametrize("interval", [-1.0, float("nan"), float("inf")])
def test_an_interval_that_is_none_is_refused(interval: float) -> None:
    with pytest.raises(ConfigError, match="keep_alive_interval"):
        ServiceConfig(keep_alive_interval=interval)


def test_clients_skip_the_comments_of_a_slow_stream(model_folder: Path) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "stream": True, "ignore_eos": True}
    with ServiceThread(model_folder, {"keep_alive_interval": 0.02}, script_step_ms=400.0) as service:
        with RawClient(service.port) as client:
            status, content = client.post("/v1/chat/completions", body).read_response()
        assert status == 200 and content.count(COMMENT) >= 3
        assert content.endswith(b"data: [DONE]\n\n")
        chunks = events(content.replace(COMMENT, b""))
        with openai.OpenAI(api_key="-", base_url=f"{service.url}/v1") as library:
            stream = library.chat.completions.create(
                model=service.model,
                messages=[{"role": "user", "content": "Hi"}],
                max_tokens=3,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1]) != ""
