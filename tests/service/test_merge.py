"""Many generations of one request beside the requests of others."""

import asyncio
from collections.abc import AsyncGenerator

from diptych import Output
from diptych_service.merge import STARTED_AT_ONCE, Merge


async def test_other_requests_have_their_turn_while_many_prompts_are_submitted() -> None:
    turn = 0
    started_in: dict[int, int] = {}

    async def turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def source() -> AsyncGenerator[Output, None]:
        started_in[turn] = started_in.get(turn, 0) + 1
        yield Output(text="a", finish_reason="stop")

    others = asyncio.create_task(turns())
    count = 0
    async with Merge([source() for _ in range(1024)]) as outputs:
        async for batch in outputs:
            count += len(batch)
    others.cancel()
    assert count == 1024
    assert max(started_in.values()) <= STARTED_AT_ONCE


async def test_sources_that_were_not_started_are_closed_too() -> None:
    started: list[int] = []

    async def source(index: int) -> AsyncGenerator[Output, None]:
        started.append(index)
        try:
            yield Output(text="a")
            await asyncio.sleep(60)
        finally:
            started.remove(index)

    async with Merge([source(index) for index in range(1000)]) as outputs:
        await anext(outputs)
        assert 0 < len(started) < 1000
    assert not started
