"""LLM: batches without an event loop, from any thread, and inside a running loop."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_engine
import pytest
from fake_engine import Accepted, Failure, Finished, answer_soon

from diptych import LLM, EngineConfig, SamplingParams, errors


@pytest.fixture
def llm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LLM]:
    monkeypatch.setattr("diptych_core.engine.Engine", fake_engine.Engine)
    with LLM(str(folder), worker="scripted", max_queued_requests=4) as llm:
        yield llm
    fake_engine.Engine.made.clear()


def core() -> fake_engine.Engine:
    return fake_engine.Engine.made[-1]


def echo(native: fake_engine.Engine, number: int) -> None:
    """Answers with the prompt, over a frame per part."""
    prompt = native.submitted[number]["prompt"]
    native.emit(number, accepted=Accepted())
    native.emit(number, text=str(prompt), token_ids=[1])
    native.emit(number, text="!", token_ids=[2], finished=Finished("stop", stop_string="?"))


def test_results_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    core().on_submit = echo
    prompts = [f"prompt {number}" for number in range(50)]
    results = llm.generate(prompts, SamplingParams(max_tokens=2))
    assert [result.text for result in results] == [f"{prompt}!" for prompt in prompts]
    assert {(result.finish_reason, result.stop_reason, len(result.token_ids)) for result in results} == {
        ("stop", "?", 2)
    }
    assert all(queue.closed for queue in core().queues)


def test_one_prompt_ids_and_params_for_each(llm: LLM) -> None:
    core().on_submit = echo
    assert llm.generate("one")[0].text == "one!"
    assert llm.generate([[1, 2]])[0].text == "[1, 2]!"
    assert llm.generate([]) == []
    llm.generate(["a", "b"], [SamplingParams(max_tokens=3), SamplingParams(max_tokens=4)])
    assert [request["params"]["max_tokens"] for request in core().submitted[-2:]] == [3, 4]
    with pytest.raises(errors.InvalidParameterError, match="1 params for 2 prompts"):
        llm.generate(["a", "b"], [SamplingParams()])
    with pytest.raises(errors.InvalidParameterError, match="top_p"):
        llm.generate(["a"], SamplingParams(top_p=2))


def test_chat_takes_conversations(llm: LLM) -> None:
    core().on_submit = echo
    (result,) = llm.chat([[{"role": "user", "content": "hello"}]])
    assert "hello" in result.text
    assert core().submitted[-1]["chat"] is True


def test_no_more_requests_are_open_than_the_queue_takes_and_a_full_one_is_waited_for(llm: LLM) -> None:
    open_now, most, refused = set(), [0], [0]

    def answer(native: fake_engine.Engine, number: int) -> None:
        open_now.add(number)
        most[0] = max(most[0], len(open_now))
        if number % 7 == 3:
            open_now.discard(number)
            refused[0] += 1
            native.emit(number, failure=Failure("queue_full"))
            return

        def end() -> None:
            open_now.discard(number)
            echo(native, number)

        threading.Timer(0.002, end).start()

    core().on_submit = answer
    results = llm.generate([str(number) for number in range(40)])
    assert [result.text for result in results] == [f"{number}!" for number in range(40)]
    assert refused[0] > 0
    assert most[0] < 40


def test_the_first_error_ends_the_batch_and_leaves_nothing_open(llm: LLM) -> None:
    def answer(native: fake_engine.Engine, number: int) -> None:
        if native.submitted[number]["prompt"] == "bad":
            native.emit(number, failure=Failure("invalid_prompt", "the prompt is bad"))

    core().on_submit = answer
    with pytest.raises(errors.InvalidPromptError, match="the prompt is bad"):
        llm.generate(["good", "bad", "good"])
    assert core().queues[-1].closed


def test_threads_share_one_engine(llm: LLM) -> None:
    core().on_submit = echo
    results: dict[int, list[Any]] = {}

    def work(number: int) -> None:
        results[number] = llm.generate([f"{number}-{index}" for index in range(20)])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for number in range(8):
        assert [result.text for result in results[number]] == [f"{number}-{index}!" for index in range(20)]


def test_inside_a_running_loop_a_call_finishes(llm: LLM) -> None:
    core().on_submit = answer_soon

    async def main() -> str:
        return llm.generate("hello")[0].text

    assert asyncio.run(main()) == "ab"


def test_a_second_close_waits_for_the_first(llm: LLM) -> None:
    core().closes_after_s = 0.2
    first = threading.Thread(target=llm.close)
    first.start()
    with pytest.raises(errors.EngineClosedError):
        while True:
            llm.stats()
    llm.close()
    assert core().closed == 1
    first.join()


def test_a_closed_one_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diptych_core.engine.Engine", fake_engine.Engine)
    llm = LLM(EngineConfig(str(folder), worker="scripted"))
    llm.close()
    llm.close()
    with pytest.raises(errors.EngineClosedError, match="closed"):
        llm.generate("hello")
    assert core().closed == 1
    with pytest.raises(TypeError, match="beside an EngineConfig"):
        LLM(EngineConfig(str(folder), worker="scripted"), block_size=4)
    with pytest.raises(errors.ConfigError):
        LLM(str(folder), block_size=5)
    fake_engine.Engine.made.clear()


def test_a_prompt_too_long_is_not_told_of_a_max_tokens_that_nobody_gave(llm: LLM) -> None:
    failure = Failure(
        "context_length",
        "This model's maximum context length is 8 tokens, but 9 prompt tokens and max_tokens 1 make 10",
        '{"prompt_tokens": 9, "max_tokens": 1, "max_model_len": 8}',
    )
    core().on_submit = lambda native, number: native.emit(number, failure=failure)
    with pytest.raises(errors.ContextLengthError, match=r"8 tokens, but the prompt has 9") as error:
        llm.generate("long", SamplingParams(max_tokens=None))
    assert "max_tokens" not in error.value.message and "max_tokens" not in error.value.details
    with pytest.raises(errors.ContextLengthError, match="max_tokens 1"):
        llm.generate("long", SamplingParams(max_tokens=1))
