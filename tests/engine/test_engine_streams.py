"""AsyncEngine's streams over a native engine whose frames the test writes."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import fake_engine
import pytest
from fake_engine import Accepted, Failure, Finished, answer_at_once, answer_soon

from diptych import AsyncEngine, EngineConfig, Output, SamplingParams, errors
from diptych.blocking import in_thread

PARAMS = SamplingParams(max_tokens=4)


@pytest.fixture(autouse=True)
def native(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("diptych_core.engine.Engine", fake_engine.Engine)
    yield
    fake_engine.Engine.made.clear()


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[AsyncEngine]:
    async with AsyncEngine(EngineConfig(str(folder), worker="scripted")) as engine:
        yield engine


def core() -> fake_engine.Engine:
    return fake_engine.Engine.made[-1]


async def collect(engine: AsyncEngine, prompt: Any = "hi", params: SamplingParams = PARAMS) -> list[Output]:
    return [output async for output in engine.generate(prompt, params)]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (what is waited for knows nothing of this loop)
            await asyncio.sleep(0.001)


async def submitted() -> None:
    await until(lambda: bool(core().submitted))


async def test_a_stream_is_acceptance_then_deltas_then_the_end(engine: AsyncEngine) -> None:
    core().on_submit = answer_soon
    outputs = await collect(engine)
    assert outputs[0] == Output(accepted=True, request=0, prompt_tokens=3)
    assert "".join(output.text for output in outputs) == "ab"
    assert [token for output in outputs for token in output.token_ids] == [5, 6]
    last = outputs[-1]
    assert (last.finish_reason, last.stop_reason) == ("length", None)
    assert last.usage is not None and (last.usage.prompt_tokens, last.usage.completion_tokens) == (3, 2)
    assert last.timings is not None and last.timings.finished - last.timings.arrived == 4_000_000
    assert all(output.finish_reason is None for output in outputs[:-1])
    assert core().aborted == []


async def test_the_acceptance_is_an_output_of_its_own_even_if_everything_came_in_one_frame(engine: AsyncEngine) -> None:
    content = {"text": "x", "token_ids": [9], "finished": Finished("stop", stop_token=9)}
    core().on_submit = lambda native, number: native.emit(number, accepted=Accepted(prompt_ids=[1, 2, 3]), **content)
    first, last = await collect(engine)
    assert (first.accepted, first.text, first.prompt_ids) == (True, "", [1, 2, 3])
    assert (last.text, last.finish_reason, last.stop_reason) == ("x", "stop", 9)


async def test_what_a_slow_reader_has_not_taken_is_one_output(engine: AsyncEngine) -> None:
    stream = engine.generate("hi", PARAMS)
    reading = asyncio.ensure_future(anext(stream))
    await submitted()
    core().emit(0, accepted=Accepted())
    assert (await reading).accepted
    for number in range(500):
        core().emit(0, text="é", token_ids=[number])
    await asyncio.sleep(0.05)
    output = await anext(stream)
    assert output.text == "é" * 500
    assert output.token_ids == list(range(500))
    await stream.aclose()


async def test_ids_without_text_are_not_held_back(engine: AsyncEngine) -> None:
    stream = engine.generate("hi", PARAMS)
    reading = asyncio.ensure_future(anext(stream))
    await submitted()
    core().emit(0, token_ids=[7])
    assert (await reading) == Output(text="", token_ids=[7])
    await stream.aclose()


async def test_one_queue_serves_all_streams_of_a_loop_and_each_gets_its_own(engine: AsyncEngine) -> None:
    def answer(native: fake_engine.Engine, number: int) -> None:
        native.emit(number, text=str(number), finished=Finished())

    core().on_submit = answer
    texts = await asyncio.gather(*(collect(engine, [number + 1]) for number in range(200)))
    assert len(core().queues) == 1
    for outputs, request in zip(texts, core().submitted, strict=True):
        assert outputs[-1].text == str(request["prompt"][0] - 1)


@pytest.mark.parametrize("way", ["aclose", "cancel", "drop", "raise"])
async def test_leaving_a_stream_in_any_way_aborts_it_exactly_once(engine: AsyncEngine, way: str) -> None:
    core().on_submit = lambda native, number: native.emit(number, accepted=Accepted())
    stream = engine.generate("hi", PARAMS)
    await anext(stream)
    if way == "aclose":
        await stream.aclose()
        await stream.aclose()
    elif way == "cancel":
        task = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    elif way == "raise":
        with pytest.raises(RuntimeError, match="mine"):
            await stream.athrow(RuntimeError("mine"))
    del stream
    gc.collect()
    await asyncio.sleep(0.01)
    assert core().aborted == [0]
    core().emit(0, text="late", token_ids=[1], finished=Finished())
    await asyncio.sleep(0.01)
    core().on_submit = answer_at_once
    assert len(await collect(engine)) >= 2


async def test_a_stream_that_was_never_begun_submits_nothing(engine: AsyncEngine) -> None:
    stream = engine.generate("hi", PARAMS)
    await stream.aclose()
    del stream
    gc.collect()
    assert core().submitted == []


@pytest.mark.parametrize(
    ("kind", "raised", "details"),
    [
        ("invalid_prompt", errors.InvalidPromptError, {}),
        ("context_length", errors.ContextLengthError, {"prompt_tokens": 9, "max_tokens": 4, "max_model_len": 8}),
        ("never_fits", errors.NeverFitsError, {"blocks": 9}),
        ("template", errors.TemplateError, {}),
        ("invalid_parameter", errors.InvalidParameterError, {}),
        ("nan_logits", errors.EngineFailure, {}),
        ("bad_token", errors.EngineFailure, {}),
        ("worker_died", errors.EngineFailure, {}),
        ("engine_panicked", errors.EngineFailure, {}),
        ("tokenizer", errors.EngineFailure, {}),
        ("engine_closed", errors.EngineClosedError, {}),
    ],
)
async def test_failures_are_raised_after_the_text_before_them(
    engine: AsyncEngine, kind: str, raised: type[errors.DiptychError], details: dict[str, int]
) -> None:
    import json

    failure = Failure(kind, "what happened", json.dumps(details))
    core().on_submit = lambda native, number: native.emit(number, text="so far", token_ids=[1], failure=failure)
    outputs = []
    with pytest.raises(raised, match="what happened") as caught:
        async for output in engine.generate("hi", PARAMS):
            outputs.append(output)
    assert "".join(output.text for output in outputs) == "so far"
    assert (caught.value.kind, caught.value.details) == (kind, details)
    ours = raised in (errors.EngineFailure, errors.EngineClosedError)
    assert isinstance(caught.value, errors.RequestError) != ours
    assert core().aborted == []


async def test_a_full_queue_says_when_to_come_back_by_the_backlog(engine: AsyncEngine) -> None:
    core().on_submit = lambda native, number: native.emit(number, failure=Failure("queue_full"))
    with pytest.raises(errors.OverloadedError) as caught:
        await collect(engine)
    assert caught.value.retry_after_s == 1
    histogram = {"buckets": [1.0], "counts": [5, 5], "sum": 40.0}
    waited = {"buckets": [1.0], "counts": [10, 0], "sum": 10.0}
    core().stats_now |= {
        "requests_waiting": 24,
        "requests_running": 8,
        "histograms": {"e2e_request_latency": histogram, "queue_time": waited},
    }
    with pytest.raises(errors.OverloadedError) as caught:
        await collect(engine)
    assert caught.value.retry_after_s == 9  # 24 waiting × 3 s in service ÷ 8 at once
    assert caught.value.details["retry_after_s"] == 9


async def test_params_are_checked_before_anything_is_submitted(engine: AsyncEngine) -> None:
    with pytest.raises(errors.InvalidParameterError, match="temperature=-1"):
        await collect(engine, params=SamplingParams(temperature=-1))
    with pytest.raises(errors.InvalidParameterError, match="stop_token_ids"):
        await collect(engine, params=SamplingParams(stop_token_ids=[10**6]))
    assert core().submitted == []


async def test_chat_is_handed_to_the_core_as_a_template_request(engine: AsyncEngine) -> None:
    import json

    core().on_submit = answer_at_once
    messages = [{"role": "user", "content": "hé"}]
    outputs = [output async for output in engine.chat(messages, PARAMS, chat_template_kwargs={"thinking": False})]
    assert outputs[-1].finish_reason == "length"
    request = core().submitted[0]
    assert request["chat"] is True
    assert request["params"]["add_special_tokens"] is False
    assert json.loads(request["prompt"]) == {
        "messages": messages,
        "add_generation_prompt": True,
        "continue_final_message": False,
        "tools": None,
        "documents": None,
        "chat_template_kwargs": {"thinking": False},
    }
    for wrong, told in (([], "messages is empty"), ([{"role": "user", "content": "\ud800"}], "JSON")):
        with pytest.raises(errors.InvalidPromptError, match=told):
            await anext(engine.chat(wrong, PARAMS))
    with pytest.raises(errors.InvalidParameterError, match="exclude each other"):
        await anext(engine.chat(messages, PARAMS, continue_final_message=True))


async def test_closing_fails_what_is_running_and_what_comes_after(folder: Path) -> None:
    engine = AsyncEngine(EngineConfig(str(folder), worker="scripted"))
    with pytest.raises(errors.EngineClosedError, match="not started"):
        await collect(engine)
    assert not engine.ready
    await engine.start()
    assert engine.ready
    with pytest.raises(errors.EngineClosedError, match="started before"):
        await engine.start()
    running = asyncio.ensure_future(collect(engine))
    await submitted()
    await engine.close()
    await engine.close()
    with pytest.raises(errors.EngineClosedError, match="while the request was running"):
        await running
    with pytest.raises(errors.EngineClosedError):
        await collect(engine)
    with pytest.raises(errors.EngineClosedError):
        engine.stats()
    assert not engine.ready
    assert core().closed == 1
    assert all(queue.closed for queue in core().queues)


async def test_each_loop_has_its_own_queue_and_a_closed_loops_requests_end_with_it(engine: AsyncEngine) -> None:
    core().on_submit = answer_soon
    results: list[list[Output]] = []

    def elsewhere() -> None:
        results.append(asyncio.run(collect(engine)))

    threads = [threading.Thread(target=elsewhere) for _ in range(4)]
    for thread in threads:
        thread.start()
    here = await collect(engine)
    await until(lambda: not any(thread.is_alive() for thread in threads))
    assert len(core().queues) == 5
    assert all([output.text for output in result] for result in results) and len(results) == 4
    assert here[-1].finish_reason == "length"
    await collect(engine)
    assert sorted(queue.closed for queue in core().queues) == [False, True, True, True, True]


async def test_an_engine_that_is_dropped_is_closed(folder: Path) -> None:
    engine = AsyncEngine(EngineConfig(str(folder), worker="scripted"))
    await engine.start()
    core().on_submit = answer_at_once
    await collect(engine)
    del engine
    gc.collect()
    await asyncio.sleep(0)
    assert core().closed == 1
    assert all(queue.closed for queue in core().queues)


async def test_a_start_that_is_cancelled_closes_what_it_started(folder: Path) -> None:
    engine = AsyncEngine(EngineConfig(str(folder), worker="scripted"))
    starting = asyncio.ensure_future(engine.start())
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await until(lambda: bool(fake_engine.Engine.made) and core().closed == 1)


@pytest.mark.parametrize("early", [True, False])
async def test_closing_while_it_starts_ends_the_start_and_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    monkeypatch.setattr(fake_engine.Engine, "starts_after_s", 60.0 if early else 0.05)
    engine = AsyncEngine(EngineConfig(str(folder), worker="scripted"))
    starting = asyncio.ensure_future(engine.start())
    await until(lambda: bool(fake_engine.Engine.made))
    async with asyncio.timeout(10):
        await engine.close()
    assert core().closed == 1
    with pytest.raises(errors.EngineClosedError, match="while it started"):
        await starting
    assert not engine.ready


async def test_a_result_that_comes_with_the_cancellation_is_not_lost() -> None:
    orphans: list[int] = []
    task = asyncio.ensure_future(in_thread(lambda: 7, on_orphan=orphans.append))
    future: asyncio.Future[int] | None = None
    while future is None or not future.done():
        await asyncio.sleep(0)
        future = task._fut_waiter  # type: ignore[attr-defined]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: orphans == [7])


async def test_a_second_close_waits_for_the_first(engine: AsyncEngine) -> None:
    core().closes_after_s = 0.2
    first = asyncio.ensure_future(engine.close())
    await until(lambda: not engine.ready)
    await engine.close()
    assert core().closed == 1
    await first


async def test_any_time_to_wait_can_be_given_to_close_and_nothing_else(engine: AsyncEngine) -> None:
    for limit_s in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="limit_s"):
            await engine.close(limit_s)
    assert engine.ready
    await engine.close(float("inf"))
    assert core().closed == 1


@pytest.mark.parametrize("arrived_ns", [-1, 2**64])
async def test_an_impossible_arrival_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch, arrived_ns: int) -> None:
    monkeypatch.undo()
    async with AsyncEngine(EngineConfig(str(folder), worker="scripted_thread")) as engine:
        with pytest.raises(errors.InvalidParameterError, match="arrived_ns"):
            [_ async for _ in engine.generate("hi", PARAMS, arrived_ns=arrived_ns)]
        with pytest.raises(errors.InvalidPromptError, match="bytes"):
            await collect(engine, b"hi")


async def test_secrets_stay_out_of_the_worker(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = ["HF_TOKEN", "DIPTYCH_API_KEYS", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"]
    secret += ["OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "github_token"]
    plain = ["TOKENIZERS_PARALLELISM", "OTEL_SERVICE_NAME", "PATH", "OMP_NUM_THREADS", "KEYBOARD"]
    for name in secret + plain:
        monkeypatch.setenv(name, "value")
    async with AsyncEngine(EngineConfig(str(folder), worker="scripted")):
        removed = set(core().options["worker"]["environment_remove"])
    assert set(secret) <= removed
    assert not removed & set(plain)
