"""Why a request went as it did, told by the engine, in spans and in an event log that replays."""

import asyncio
import os
import signal
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import xxhash
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from diptych import AsyncEngine, EngineConfig, Explanation, Output, SamplingParams, errors
from diptych.kv_events import KvEvent, vllm_events
from diptych.replay import replay_log
from diptych_service.cli import main

PROMPT = list(range(10, 32))
ASKED = SamplingParams(max_tokens=3, explain=True)


def config(folder: Path, **changes: Any) -> EngineConfig:
    return EngineConfig(str(folder), worker="scripted", block_size=4, **changes)


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[AsyncEngine]:
    async with AsyncEngine(config(folder, kv_events=64)) as engine:
        yield engine


async def outputs(engine: AsyncEngine, params: SamplingParams = ASKED, prompt: list[int] = PROMPT) -> list[Output]:
    return [output async for output in engine.generate(prompt, params)]


async def explanation(engine: AsyncEngine, params: SamplingParams = ASKED) -> Explanation:
    told = (await outputs(engine, params))[-1].explanation
    assert told is not None
    return told


async def test_the_last_output_explains_what_was_asked_to_be(engine: AsyncEngine) -> None:
    first = await explanation(engine)
    assert first.cache is not None
    assert (first.cache.cached, first.cache.end.reason) == (0, "never_stored")
    assert [decision.kind for decision in first.decisions] == ["admitted", "chunk"]
    assert (first.chunks[0].limit, first.chunks[0].tokens) == ("prompt", len(PROMPT))
    second = await explanation(engine)
    assert second.cache is not None
    assert (second.cache.cached, second.cache.end.reason) == (20, "complete")
    assert (await outputs(engine, SamplingParams(max_tokens=3)))[-1].explanation is None


async def test_a_stop_string_is_explained_with_the_cores_own_end(engine: AsyncEngine) -> None:
    last = await outputs(engine, SamplingParams(max_tokens=40))
    text = "".join(output.text for output in last)
    stopping = SamplingParams(max_tokens=40, stop=[text[8:10]], explain=True)
    given = await outputs(engine, stopping)
    assert given[-1].finish_reason == "stop"
    assert "".join(output.text for output in given) == text[: text.index(text[8:10])]
    assert given[-1].explanation is not None
    assert given[-1].explanation.ended is not None


async def test_open_and_ended_requests_are_explained_by_number(folder: Path) -> None:
    async with AsyncEngine(config(folder, script_step_ms=5.0)) as engine:
        stream = engine.generate(PROMPT, SamplingParams(max_tokens=50))
        first = await anext(stream)
        assert first.accepted and first.request is not None
        told = await engine.explain(first.request)
        assert told is not None and told.ended is None
        async for _ in stream:
            pass
        told = await engine.explain(first.request)
        assert told is not None and told.ended is not None
        assert await engine.explain(first.request + 99) is None


async def test_a_recorded_span_has_waits_and_decisions(folder: Path) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with AsyncEngine(config(folder), tracer_provider=provider) as engine:
        await outputs(engine, SamplingParams(max_tokens=3))
    (span,) = exporter.get_finished_spans()
    attributes = dict(span.attributes or {})
    assert attributes["diptych.cache.match_end"] == "never_stored"
    assert attributes["diptych.chunks.prompt"] == 1
    (admitted, chunk) = [event for event in span.events if event.name == "diptych.decision"]
    assert dict(admitted.attributes or {}) == {"diptych.step": 1, "diptych.kind": "admitted", "diptych.cached": 0}
    told = dict(chunk.attributes or {})
    assert (told["diptych.tokens"], told["diptych.limit"], told["diptych.budget"]) == (len(PROMPT), "prompt", 512)
    assert span.start_time is not None and admitted.timestamp >= span.start_time
    provider.shutdown()


async def test_kv_events_follow_the_cache(engine: AsyncEngine) -> None:
    await outputs(engine)
    told = await engine.kv_events()
    assert [event.sequence for event in told.events] == list(range(told.next))
    assert {event.type for event in told.events} == {"stored"}
    first = told.events[0]
    content = first.namespace.to_bytes(8, "little") + b"".join(id.to_bytes(4, "little") for id in first.tokens)
    assert first.hash == xxhash.xxh3_64_intdigest(content)
    snapshot = await engine.kv_snapshot()
    assert {block.hash for block in snapshot.blocks} == {event.hash for event in told.events}
    with pytest.raises(errors.RequestError, match="begin with a snapshot"):
        await engine.kv_events(told.next + 1)


def test_events_map_to_vllms() -> None:
    events = [
        KvEvent(0, 5, "stored", hash=11, parent=None, tokens=[1, 2]),
        KvEvent(1, 5, "stored", hash=12, parent=11, tokens=[3, 4]),
        KvEvent(2, 6, "stored", hash=21, parent=11, namespace=9, tokens=[5, 6]),
        KvEvent(3, 7, "removed", hash=21),
        KvEvent(4, 7, "removed", hash=12),
        KvEvent(5, 8, "cleared"),
    ]
    common = {"block_size": 2, "lora_id": None, "medium": "CPU", "lora_name": None}
    assert vllm_events(events, 2, "CPU") == [
        {
            "type": "BlockStored",
            "block_hashes": [11, 12],
            "parent_block_hash": None,
            "token_ids": [1, 2, 3, 4],
            "extra_keys": [None, None],
            **common,
        },
        {
            "type": "BlockStored",
            "block_hashes": [21],
            "parent_block_hash": 11,
            "token_ids": [5, 6],
            "extra_keys": [[9]],
            **common,
        },
        {"type": "BlockRemoved", "block_hashes": [21, 12], "medium": "CPU"},
        {"type": "AllBlocksCleared"},
    ]


async def test_an_event_log_replays_to_the_same_plans(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "events"
    async with AsyncEngine(config(folder, event_log=str(log), script_step_ms=2.0)) as engine:
        streams = [outputs(engine, SamplingParams(max_tokens=20 + n), PROMPT[n:]) for n in range(4)]
        running = asyncio.gather(*streams)
        await asyncio.sleep(0.02)
        pid = engine.worker_pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await running
        stats = engine.stats()
        assert stats.event_log is not None and stats.event_log.ended is None
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    report = replay_log(log)
    assert report.identical and report.ending == "whole", report
    assert report.plans >= stats.steps > 20
    assert main(["replay", str(log)]) == 0
    assert "identical" in capsys.readouterr().out

    # A torn end is tolerated, a plan that differs is named.
    log.write_bytes(log.read_bytes()[:-3])
    assert replay_log(log).identical
    assert "torn" in replay_log(log).text
    assert main(["replay", str(tmp_path / "missing")]) == 1


async def test_an_event_log_ends_at_its_limit(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "events"
    log.write_text("of the run before")
    async with AsyncEngine(config(folder, event_log=str(log), event_log_bytes=8192)) as engine:
        for _ in range(3):
            await outputs(engine, SamplingParams(max_tokens=40))
        stats = engine.stats()
        assert stats.event_log is not None
        assert stats.event_log.ended == "event_log_bytes is reached"
    assert log.stat().st_size <= 8192
    assert (tmp_path / "events.1").read_text() == "of the run before"
    report = replay_log(log)
    assert report.identical and "event_log_bytes" in report.text


def test_settings_are_checked(folder: Path) -> None:
    with pytest.raises(errors.ConfigError, match="event_log"):
        config(folder, event_log="/nowhere/at/all")
    with pytest.raises(errors.ConfigError, match="event_log_bytes"):
        config(folder, event_log_bytes=10)
    with pytest.raises(errors.ConfigError, match="kv_events"):
        config(folder, kv_events=-1)
