"""Several outputs of one prompt: each with its own ids, text, stop search and end."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tiny_folder import HashOracle

from diptych import LLM, AsyncEngine, EngineConfig, Output, SamplingParams, errors

PROMPT = [7, 9, 11, 13, 15, 17]


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[AsyncEngine]:
    async with AsyncEngine(EngineConfig(str(folder), worker="scripted", block_size=4, max_running=8)) as engine:
        yield engine


async def collect(
    engine: AsyncEngine, params: SamplingParams, prompt: list[int] | None = None
) -> tuple[list[list[int]], list[str], list[Output | None]]:
    ids: list[list[int]] = [[] for _ in range(params.n)]
    texts = [""] * params.n
    lasts: list[Output | None] = [None] * params.n
    accepted = 0
    async for output in engine.generate(prompt or PROMPT, params):
        accepted += output.accepted
        assert lasts[output.choice] is None, "an output of a choice after its last"
        ids[output.choice] += output.token_ids
        texts[output.choice] += output.text
        if output.finish_reason is not None:
            lasts[output.choice] = output
    assert accepted == 1
    return ids, texts, lasts


@pytest.mark.parametrize("length", [3, 4, 6, 8])
async def test_each_choice_has_its_own_ids_and_text(engine: AsyncEngine, oracle: HashOracle, length: int) -> None:
    prompt = list(range(20, 20 + length))
    ids, texts, lasts = await collect(engine, SamplingParams(max_tokens=30, n=4), prompt)
    assert ids == [oracle.continuation(prompt, 30, choice) for choice in range(4)]
    assert texts == [oracle.tokenizer.decode(of_choice) for of_choice in ids]
    for last in lasts:
        assert last is not None and last.usage is not None and last.finish_reason == "length"
        assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (length, 30)
    stats = engine.stats()
    assert stats.prompt_tokens == length and stats.requests_total["length"] == 1
    assert stats.kv_blocks_used == 0


async def test_each_choice_stops_for_itself(engine: AsyncEngine, oracle: HashOracle) -> None:
    expected = [oracle.continuation(PROMPT, 30, choice) for choice in range(3)]
    stop_id = expected[1][4]
    stop_text = oracle.tokenizer.decode([expected[2][10]])
    params = SamplingParams(max_tokens=30, n=3, stop_token_ids=[stop_id], stop=[stop_text])
    alone = []
    ids, texts, lasts = await collect(engine, params)
    for choice, last in enumerate(lasts):
        assert last is not None
        assert ids[choice] == expected[choice][: len(ids[choice])]
        assert stop_text not in texts[choice]
        alone.append((last.finish_reason, last.stop_reason))
    assert alone[1][0] == "stop" and alone[2][0] == "stop" and len(ids[1]) <= 5


async def test_many_groups_beside_each_other_survive_preemption(folder: Path, oracle: HashOracle) -> None:
    config = EngineConfig(
        str(folder), worker="scripted", block_size=4, max_running=8, max_model_len=64, kv_cache_bytes=24 * 16
    )
    async with AsyncEngine(config) as engine:
        prompts = [[30 + number, 9, 11, number % 3 + 3, 5] for number in range(10)]
        params = SamplingParams(max_tokens=25, n=3)
        results = await asyncio.gather(*(collect(engine, params, prompt) for prompt in prompts))
        for prompt, (ids, _, _) in zip(prompts, results, strict=True):
            assert ids == [oracle.continuation(prompt, 25, choice) for choice in range(3)]


async def test_every_choice_goes_on_after_the_worker_was_killed(folder: Path, oracle: HashOracle) -> None:
    config = EngineConfig(str(folder), worker="scripted", block_size=4, max_running=8, script_step_ms=5)
    async with AsyncEngine(config) as engine:
        stream = asyncio.ensure_future(collect(engine, SamplingParams(max_tokens=60, n=4)))
        await asyncio.sleep(0.1)
        pid = engine.worker_pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        ids, _, _ = await stream
        assert engine.stats().worker_restarts == 1
    assert ids == [oracle.continuation(PROMPT, 60, choice) for choice in range(4)]


async def test_leaving_the_stream_frees_all_choices(engine: AsyncEngine) -> None:
    stream = engine.generate(PROMPT, SamplingParams(max_tokens=1000, n=5))
    async for output in stream:
        if output.token_ids:
            break
    await stream.aclose()
    async with asyncio.timeout(10):
        while engine.stats().kv_blocks_used or engine.stats().requests_total != {"abort": 1}:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert engine.stats().requests_running == 0


@pytest.mark.parametrize("wrong", [0, -1, 129])
async def test_a_number_of_choices_out_of_range_is_refused(engine: AsyncEngine, wrong: int) -> None:
    with pytest.raises(errors.InvalidParameterError, match="n="):
        await collect(engine, SamplingParams(n=wrong))


async def test_more_choices_than_can_run_are_refused(engine: AsyncEngine) -> None:
    with pytest.raises(errors.RequestError, match="max_running = 8"):
        async for _ in engine.generate(PROMPT, SamplingParams(n=9)):
            pass


def test_a_batch_gives_the_choices_of_a_prompt_side_by_side(folder: Path, oracle: HashOracle) -> None:
    with LLM(EngineConfig(str(folder), worker="scripted", block_size=4)) as llm:
        results = llm.generate([[5, 6, 7], [8, 9]], [SamplingParams(n=2), SamplingParams(n=3)])
    expected = [([5, 6, 7], 0), ([5, 6, 7], 1), ([8, 9], 0), ([8, 9], 1), ([8, 9], 2)]
    assert [result.choice for result in results] == [choice for _, choice in expected]
    assert [result.token_ids for result in results] == [
        oracle.continuation(prompt, 16, choice) for prompt, choice in expected
    ]


def mean_logprob(oracle: HashOracle, prompt: list[int], ids: list[int]) -> float:
    return sum(oracle.logprobs_of(prompt, ids)) / len(ids)


@pytest.mark.parametrize("given", [1, 2, 4])
async def test_best_of_gives_the_likeliest_outputs_first(engine: AsyncEngine, oracle: HashOracle, given: int) -> None:
    params = SamplingParams(max_tokens=12, n=given, best_of=5)
    drawn = [oracle.continuation(PROMPT, 12, choice) for choice in range(5)]
    ranked = sorted(drawn, key=lambda ids: -mean_logprob(oracle, PROMPT, ids))
    ids, texts, lasts = await collect(engine, params)
    assert ids == ranked[:given]
    assert texts == [oracle.tokenizer.decode(of_choice) for of_choice in ids]
    for rank, last in enumerate(lasts):
        assert last is not None and last.usage is not None and last.mean_logprob is not None
        assert abs(last.mean_logprob - mean_logprob(oracle, PROMPT, ids[rank])) < 1e-5
        assert last.usage.discarded_tokens == (12 * (5 - given) if rank == 0 else 0)


async def test_what_is_ranked_is_one_output_a_choice_however_long_it_takes(folder: Path) -> None:
    config = EngineConfig(str(folder), worker="scripted", max_running=8, script_step_ms=1.0)
    async with AsyncEngine(config) as engine:
        params = SamplingParams(max_tokens=50, n=2, best_of=4)
        outputs = [output async for output in engine.generate(PROMPT, params)]
    accepted, *ranked = outputs
    assert accepted.accepted and [output.choice for output in ranked] == [0, 1]
    assert all(len(output.token_ids) == 50 and output.finish_reason == "length" for output in ranked)


async def test_nothing_is_ranked_where_all_outputs_are_given(engine: AsyncEngine, oracle: HashOracle) -> None:
    ids, _, lasts = await collect(engine, SamplingParams(max_tokens=6, n=3, best_of=3))
    assert ids == [oracle.continuation(PROMPT, 6, choice) for choice in range(3)]
    assert all(last is not None and last.mean_logprob is None for last in lasts)


@pytest.mark.parametrize(("n", "best_of"), [(3, 2), (1, 0), (1, 129)])
async def test_a_best_of_that_contradicts_is_refused(engine: AsyncEngine, n: int, best_of: int) -> None:
    with pytest.raises(errors.InvalidParameterError, match="best_of="):
        await collect(engine, SamplingParams(n=n, best_of=best_of))


def test_a_batch_gives_the_best_of_each_prompt(folder: Path, oracle: HashOracle) -> None:
    with LLM(EngineConfig(str(folder), worker="scripted", block_size=4)) as llm:
        results = llm.generate([[5, 6, 7], [8, 9]], SamplingParams(max_tokens=9, n=1, best_of=4))
    expected = []
    for prompt in ([5, 6, 7], [8, 9]):
        drawn = [oracle.continuation(prompt, 9, choice) for choice in range(4)]
        expected.append(max(drawn, key=lambda ids: mean_logprob(oracle, prompt, ids)))
    assert [result.token_ids for result in results] == expected
    assert [result.usage.discarded_tokens for result in results] == [27, 27]
