"""The whole engine over the scripted worker, whose every token is known beforehand."""

import asyncio
import gc
import os
import random
import signal
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tiny_folder import HashOracle

from diptych import LLM, AsyncEngine, EngineConfig, Output, SamplingParams, errors

LONG = SamplingParams(max_tokens=60)


async def collect(
    engine: AsyncEngine, prompt: str | list[int], params: SamplingParams = LONG
) -> tuple[str, list[int], Output]:
    text, ids, last = "", [], Output()
    async for last in engine.generate(prompt, params):
        text += last.text
        ids += last.token_ids
    return text, ids, last


async def until(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 (what is waited for knows nothing of this loop)
            await asyncio.sleep(0.005)


async def test_a_stream_gives_the_oracles_ids_and_their_text(engine: AsyncEngine, oracle: HashOracle) -> None:
    text, ids, last = await collect(engine, "The quick brown fox")
    prompt = oracle.encode("The quick brown fox")
    assert ids == oracle.continuation(prompt, 60)
    assert text == oracle.tokenizer.decode(ids)
    assert last.finish_reason == "length"
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (len(prompt), 60)
    assert last.timings is not None
    moments = last.timings
    assert 0 < moments.arrived <= moments.tokenised <= moments.admitted <= moments.first_token <= moments.finished


async def test_sixty_four_streams_at_once_are_each_their_own(engine: AsyncEngine, oracle: HashOracle) -> None:
    prompts = [[7 + number % 5, 9, 11, number % 3 + 3] * (1 + number % 6) for number in range(64)]
    results = await asyncio.gather(*(collect(engine, prompt) for prompt in prompts))
    for prompt, (_, ids, _) in zip(prompts, results, strict=True):
        assert ids == oracle.continuation(prompt, 60)
    assert engine.stats().requests_total["length"] == 64
    await until(lambda: engine.stats().kv_blocks_used == 0)


@pytest.mark.parametrize(
    ("engine_ms", "own_ms", "tiles"),
    [(None, None, False), (0.001, None, True), (None, 0.001, True), (0.001, 3_600_000.0, False)],
)
async def test_a_target_makes_prompts_small_beside_the_stream_that_has_it(
    folder: Path, oracle: HashOracle, engine_ms: float | None, own_ms: float | None, tiles: bool
) -> None:
    """No step can keep a target of a microsecond: then a prompt is computed 16 tokens at a time, else all at once."""
    settings = EngineConfig(str(folder), worker="scripted_thread", script_step_ms=10.0, target_itl_ms=engine_ms)
    async with AsyncEngine(settings) as engine:
        stream = engine.generate([5, 6, 7], SamplingParams(max_tokens=400, target_itl_ms=own_ms))
        await anext(stream)
        before = engine.stats().steps
        _, ids, _ = await collect(engine, [9] * 1600, SamplingParams(max_tokens=1))
        steps = engine.stats().steps - before
        assert ids == oracle.continuation([9] * 1600, 1)
        # Where nothing limits them four steps would do; the others are the stream's while the prompt is on its way.
        assert steps >= 100 if tiles else steps < 80
        assert engine.stats().target_itl_s == (None if engine_ms is None else pytest.approx(engine_ms / 1000))
        await stream.aclose()


async def test_streams_that_leave_free_their_blocks_and_disturb_nobody(engine: AsyncEngine, oracle: HashOracle) -> None:
    chance = random.Random(3)

    async def leave(number: int) -> None:
        stop_after = chance.randrange(8)
        count = 0
        async for _ in engine.generate([5, 6, 7, number % 9 + 3], LONG):
            count += 1
            if count > stop_after:
                break

    async def cancelled(number: int) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(chance.random() * 0.01):
                await collect(engine, [3, 4, 5, number % 9 + 3], SamplingParams(max_tokens=1500))

    staying = [asyncio.ensure_future(collect(engine, [8, 9, number % 30 + 3])) for number in range(32)]
    work: list[Awaitable[None]] = [leave(number) for number in range(16)]
    await asyncio.gather(*work, *(cancelled(number) for number in range(16)))
    for number, task in enumerate(staying):
        assert (await task)[1] == oracle.continuation([8, 9, number % 30 + 3], 60)
    gc.collect()
    await until(lambda: engine.stats().open_requests == 0)
    stats = engine.stats()
    assert (stats.kv_blocks_used, stats.requests_running, stats.requests_waiting) == (0, 0, 0)


async def test_a_script_answers_request_by_request_and_ends_with_eos(folder: Path, oracle: HashOracle) -> None:
    script = [oracle.encode("Paris is big"), oracle.encode("東京")]
    config = EngineConfig(str(folder), worker="scripted", script=script)
    async with AsyncEngine(config) as engine:
        for number in range(4):
            text, ids, last = await collect(engine, "hi")
            assert text == ("Paris is big", "東京")[number % 2]
            assert ids[: len(script[number % 2])] == script[number % 2]
            assert last.finish_reason == "stop"


async def test_a_script_file_with_an_impossible_id_is_refused_by_its_line(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("[5]\n[5, -1]\n")
    with pytest.raises(errors.ConfigError, match="line 2"):
        await AsyncEngine(EngineConfig(str(folder), worker="scripted", script=str(script))).start()


async def test_stop_strings_cut_text_and_ids_at_the_same_token(folder: Path, oracle: HashOracle) -> None:
    ids = oracle.encode("one two three four")
    async with AsyncEngine(EngineConfig(str(folder), worker="scripted", script=[ids])) as engine:
        text, seen, last = await collect(engine, "hi", SamplingParams(max_tokens=50, stop=["thr"]))
    assert (text, last.finish_reason, last.stop_reason) == ("one two ", "stop", "thr")
    assert last.usage is not None and last.usage.completion_tokens == len(seen)
    assert "thr" in oracle.tokenizer.decode(seen)
    assert "thr" not in oracle.tokenizer.decode(seen[:-1])


async def test_chat_is_rendered_by_the_models_template(folder: Path, oracle: HashOracle) -> None:
    async with AsyncEngine(EngineConfig(str(folder), worker="scripted")) as engine:
        params = SamplingParams(max_tokens=3, return_prompt_ids=True)
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
        outputs = [output async for output in engine.chat(messages, params)]
        with pytest.raises(errors.InvalidPromptError, match="role"):
            await anext(engine.chat([{"content": "hi"}], params))
    rendered = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert outputs[0].prompt_ids == oracle.encode(rendered)
    assert [token for output in outputs for token in output.token_ids] == oracle.continuation(
        oracle.encode(rendered), 3
    )


@pytest.mark.parametrize(
    ("prompt", "params", "raised"),
    [
        ("", LONG, errors.InvalidPromptError),
        ([], LONG, errors.InvalidPromptError),
        ([10**6], LONG, errors.InvalidPromptError),
        ([-1], LONG, errors.InvalidPromptError),
        ([2**40], LONG, errors.InvalidPromptError),
        ("half \ud83d", LONG, errors.InvalidPromptError),
        ([5] * 2048, LONG, errors.ContextLengthError),
        ([5] * 10, SamplingParams(max_tokens=2039), errors.ContextLengthError),
    ],
)
async def test_a_wrong_request_is_refused_and_the_engine_goes_on(
    engine: AsyncEngine,
    oracle: HashOracle,
    prompt: str | list[int],
    params: SamplingParams,
    raised: type[errors.DiptychError],
) -> None:
    with pytest.raises(raised) as caught:
        await collect(engine, prompt, params)
    if raised is errors.ContextLengthError:
        assert "This model's maximum context length is 2048 tokens" in str(caught.value)
        assert caught.value.details["max_model_len"] == 2048
    assert (await collect(engine, [5, 6]))[1] == oracle.continuation([5, 6], 60)


async def test_the_whole_context_can_be_used_and_no_max_tokens_means_what_is_left(
    engine: AsyncEngine, oracle: HashOracle
) -> None:
    assert len((await collect(engine, [5] * 2000, SamplingParams(max_tokens=48)))[1]) == 48
    _, ids, last = await collect(engine, [5] * 2020, SamplingParams(max_tokens=None))
    assert (len(ids), last.finish_reason) == (28, "length")
    assert last.usage is not None and last.usage.cached_tokens >= 1996


async def test_a_full_queue_refuses_with_a_time_to_come_back(folder: Path) -> None:
    config = EngineConfig(str(folder), worker="scripted", script_step_ms=20.0, max_running=1, max_queued_requests=2)
    async with AsyncEngine(config) as engine:
        tasks = [asyncio.ensure_future(collect(engine, [5, 6], SamplingParams(max_tokens=5))) for _ in range(12)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
    refused = [result for result in results if isinstance(result, errors.OverloadedError)]
    assert len(refused) >= 6
    assert len(refused) + sum(isinstance(result, tuple) for result in results) == 12
    assert all(1 <= error.retry_after_s <= 120 for error in refused)


async def test_a_request_ends_at_its_timeout_with_what_it_has(folder: Path, oracle: HashOracle) -> None:
    config = EngineConfig(str(folder), worker="scripted", script_step_ms=20.0, max_running=1)
    async with AsyncEngine(config) as engine:
        cut_off = SamplingParams(max_tokens=1000, ignore_eos=True, timeout=0.5)
        _, ids, last = await collect(engine, [5, 6], cut_off)
        assert last.finish_reason == "timeout"
        assert 2 <= len(ids) <= 40
        assert ids == oracle.continuation([5, 6], len(ids))
        running = asyncio.ensure_future(collect(engine, [5, 6], SamplingParams(max_tokens=100, ignore_eos=True)))
        await until(lambda: engine.stats().requests_running == 1)
        for field in ("timeout", "ttft_timeout"):
            with pytest.raises(errors.RequestTimeoutError) as raised:
                await collect(engine, [7], SamplingParams(**{field: 0.2}))
            assert raised.value.kind == field
        running.cancel()
        assert engine.stats().requests_expired == {"waiting": 2, "running": 1}


async def test_an_urgent_request_is_served_first(folder: Path) -> None:
    config = EngineConfig(str(folder), worker="scripted", script_step_ms=5.0, max_running=1)
    async with AsyncEngine(config) as engine:
        low = asyncio.ensure_future(collect(engine, [5], SamplingParams(max_tokens=60, ignore_eos=True, priority=9)))
        await until(lambda: engine.stats().requests_running == 1)
        await collect(engine, [6], SamplingParams(max_tokens=5, priority=2))
        assert not low.done()
        assert len((await low)[1]) == 60


@pytest.mark.parametrize("overlap", [0, 1])
async def test_steps_are_planned_ahead_where_they_may_be(folder: Path, oracle: HashOracle, overlap: int) -> None:
    config = EngineConfig(str(folder), worker="scripted", script_step_ms=1.0, overlap=overlap)
    async with AsyncEngine(config) as engine:
        assert (await collect(engine, [5, 6]))[1] == oracle.continuation([5, 6], 60)
        stats = engine.stats()
        assert (stats.steps_ahead > 30) == (overlap > 0)
        assert stats.histograms["step_gap"].count > 30
        # A row whose next token needs the one before cannot be planned ahead.
        before = stats.steps_ahead
        penalised = SamplingParams(max_tokens=60, frequency_penalty=0.5)
        assert (await collect(engine, [5, 6], penalised))[1] == oracle.continuation([5, 6], 60)
        assert engine.stats().steps_ahead == before


@pytest.mark.parametrize("overlap", [0, 1, 2])
async def test_a_killed_worker_costs_a_pause_and_no_token(folder: Path, oracle: HashOracle, overlap: int) -> None:
    config = EngineConfig(str(folder), worker="scripted", script_step_ms=2.0, overlap=overlap)
    async with AsyncEngine(config) as engine:
        params = SamplingParams(max_tokens=200)
        tasks = [asyncio.ensure_future(collect(engine, [9, number + 3], params)) for number in range(8)]
        await until(lambda: engine.stats().generation_tokens > 100)
        pid = engine.worker_pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        for number, task in enumerate(tasks):
            assert (await task)[1] == oracle.continuation([9, number + 3], 200)
        assert engine.stats().worker_restarts == 1
        assert engine.worker_pid() not in (None, pid)
        assert "signal: 9" in (engine.stats().last_worker_error or "")


async def test_preempted_requests_give_the_same_ids(folder: Path, oracle: HashOracle) -> None:
    block = 4 * 16
    tight = {"kv_cache_bytes": 24 * block, "max_model_len": 200, "admission": "whole_prompt"}
    config = EngineConfig(str(folder), worker="scripted", **tight)
    async with AsyncEngine(config) as engine:
        prompts = [[number + 3, 5, 7] for number in range(6)]
        results = await asyncio.gather(*(collect(engine, prompt, SamplingParams(max_tokens=120)) for prompt in prompts))
        for prompt, (_, ids, _) in zip(prompts, results, strict=True):
            assert ids == oracle.continuation(prompt, 120)
        assert engine.stats().preemptions > 0


async def test_two_engines_live_in_one_process(folder: Path, oracle: HashOracle) -> None:
    config = EngineConfig(str(folder), worker="scripted")
    async with AsyncEngine(config) as one, AsyncEngine(config) as two:
        assert one.worker_pid() != two.worker_pid()
        results = await asyncio.gather(*(collect(engine, [5, 6]) for engine in (one, two) for _ in range(8)))
        await one.close()
        results.append(await collect(two, [5, 6]))
    assert all(ids == oracle.continuation([5, 6], 60) for _, ids, _ in results)


async def test_several_loops_use_one_engine(engine: AsyncEngine, oracle: HashOracle) -> None:
    found: list[list[int]] = []

    async def several() -> None:
        for _, ids, _ in await asyncio.gather(*(collect(engine, [5, 6]) for _ in range(8))):
            found.append(ids)

    threads = [threading.Thread(target=asyncio.run, args=(several(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    await several()
    await until(lambda: not any(thread.is_alive() for thread in threads))
    assert found == [oracle.continuation([5, 6], 60)] * 32


async def test_the_requests_of_a_loop_that_was_closed_are_aborted(engine: AsyncEngine) -> None:
    def abandon() -> None:
        loop = asyncio.new_event_loop()
        stream = engine.generate([5, 6], SamplingParams(max_tokens=2000))
        loop.run_until_complete(anext(stream))
        kept.append(stream)
        loop.close()

    kept: list[object] = []
    thread = threading.Thread(target=abandon)
    thread.start()
    await until(lambda: not thread.is_alive())
    await until(lambda: engine.stats().open_requests == 0)
    assert engine.stats().requests_total.get("length", 0) == 0
    kept.clear()


def test_batches_equal_the_oracle_and_each_other(folder: Path, oracle: HashOracle) -> None:
    with LLM(str(folder), worker="scripted_thread", max_queued_requests=64) as llm:
        prompts = [[3 + number % 50, 4, 5 + number // 50] for number in range(300)]
        results = llm.generate(prompts, SamplingParams(max_tokens=10))
        assert [result.token_ids for result in results] == [oracle.continuation(prompt, 10) for prompt in prompts]
        assert llm.stats().open_requests == 0
        assert llm.generate("Köln")[0].text == oracle.tokenizer.decode(
            oracle.continuation(oracle.encode("Köln"), 16), skip_special_tokens=True
        )


def test_sixteen_threads_mix_all_calls_on_one_engine(folder: Path) -> None:
    with LLM(str(folder), worker="scripted_thread") as llm:
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                for turn in range(30):
                    llm.stats()
                    assert len(llm.generate([[3 + number, 4 + turn]], SamplingParams(max_tokens=2))[0].token_ids) == 2
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert failures == []


async def test_a_long_prompt_is_tokenised_beside_the_loop(engine: AsyncEngine) -> None:
    worst = 0.0

    async def heartbeat() -> None:
        nonlocal worst
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(0.001)
            worst = max(worst, loop.time() - before)

    beating = asyncio.ensure_future(heartbeat())
    prompt = "The quick brown fox jumps over the lazy dog. " * 60_000
    with pytest.raises(errors.ContextLengthError):
        await collect(engine, prompt)
    beating.cancel()
    assert worst < 0.25


async def test_many_short_requests_leave_no_objects_behind(folder: Path) -> None:
    async with AsyncEngine(EngineConfig(str(folder), worker="scripted_thread")) as engine:

        async def batch() -> None:
            once = SamplingParams(max_tokens=1)
            for _ in range(10):
                await asyncio.gather(*(collect(engine, [3, 4, number], once) for number in range(3, 103)))

        await batch()
        gc.collect()
        before = len(gc.get_objects())
        await batch()
        gc.collect()
        assert len(gc.get_objects()) - before < 100
