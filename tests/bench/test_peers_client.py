"""The client and the loads of `bench/peers`, against our own service with the scripted worker."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import pytest
from peers.client import Client, Dialect, Prompt, Sample
from peers.loads import GAP, LOADS, LONG_TTFT, THROUGHPUT, TPOT, TTFT, WALL, WORDS, LoadError, Prompts, Setting
from service_rig import ServiceThread
from tiny_folder import write_folder

STEP_MS = 2.0
#: Ids of the tiny tokenizer that are no special tokens.
WORD_IDS = {word: 40 + index for index, word in enumerate(WORDS)}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceThread]:
    folder = write_folder(tmp_path_factory.mktemp("peers") / "tiny")
    with ServiceThread(folder, script_step_ms=STEP_MS) as running:
        yield running


def ask(service: ServiceThread, what: Callable[[Client], Awaitable[Any]], **extra: Any) -> Any:
    async def run() -> Any:
        async with aiohttp.ClientSession() as session:
            return await what(Client(service.url, session, Dialect(service.model, extra=extra)))

    return asyncio.run(run())


def load(service: ServiceThread, name: str) -> dict[Any, float]:
    def run(client: Client) -> Awaitable[Any]:
        return LOADS[name].run(Setting(client, Prompts(WORD_IDS, seed=1), quick=True))

    figures: dict[Any, float] = ask(service, run, ignore_eos=True)
    return figures


def test_a_request_has_its_tokens_and_times(service: ServiceThread) -> None:
    sample = ask(service, lambda client: client.complete(Prompt(list(range(40, 60)), ""), 30), ignore_eos=True)
    assert not sample.error
    assert (sample.prompt_tokens, sample.completion_tokens) == (20, 30)
    assert sample.arrivals == sorted(sample.arrivals)
    assert 0 < sample.ttft < sample.e2e
    # 29 steps follow the first token.
    assert sample.tpot >= STEP_MS / 1000
    assert sample.tpot == pytest.approx((sample.e2e - sample.arrivals[0]) / 29)


def test_an_answer_of_another_length_is_an_error(service: ServiceThread) -> None:
    sample = ask(service, lambda client: client.complete(Prompt([40, 41], ""), 8), min_tokens=0, max_tokens=5)
    assert sample.error == "5 output tokens, 8 were asked for"


def test_a_refusal_is_an_error(service: ServiceThread) -> None:
    sample = ask(service, lambda client: client.complete(Prompt([1 << 30], ""), 8))
    assert sample.error.startswith("400: ")


@pytest.mark.parametrize(
    ("name", "figures"), [("W1", {TPOT, TTFT}), ("prefill", {TTFT}), ("W3", {THROUGHPUT}), ("W4", {WALL})]
)
def test_a_load_gives_its_figures(service: ServiceThread, name: str, figures: set[Any]) -> None:
    measured = load(service, name)
    assert set(measured) == figures == set(LOADS[name].figures)
    assert all(value > 0 for value in measured.values())


def test_a_rate_is_at_most_what_the_steps_allow(service: ServiceThread) -> None:
    rate = load(service, "W2")[THROUGHPUT]
    assert 0 < rate <= 8 * 1000 / STEP_MS


def test_the_long_prompt_leaves_no_stream_behind(service: ServiceThread) -> None:
    measured = load(service, "W5")
    # A prompt of 1,024 tokens in steps of at most 512, while four streams go on.
    assert measured[LONG_TTFT] >= 2 * STEP_MS
    assert measured[GAP] >= STEP_MS
    service.wait_idle()


def test_a_failed_request_fails_its_load(service: ServiceThread) -> None:
    prompts = Prompts({word: 1 << 30 for word in WORDS}, seed=1)
    with pytest.raises(LoadError, match="8 of 8 requests failed, the first with: 400"):
        ask(service, lambda client: LOADS["W2"].run(Setting(client, prompts, quick=True)))


def test_prompts_have_their_length_and_no_common_beginning() -> None:
    prompts = Prompts(WORD_IDS, seed=3)
    made = [prompts.make(length) for length in (4, 64, 512, 64)]
    assert [len(prompt.ids) for prompt in made] == [4, 64, 512, 64]
    assert all([WORD_IDS[f" {word}"] for word in prompt.text.split()] == prompt.ids for prompt in made)
    openings = {tuple(prompt.ids[:8]) for prompt in made}
    assert len(openings) == 4
    assert [prompt.ids for prompt in made] == [Prompts(WORD_IDS, seed=3).make(4).ids, *(p.ids for p in made[1:])]


def test_shared_prompts_part_after_what_they_share() -> None:
    made = Prompts(WORD_IDS, seed=3).sharing(16, shared=64, own=12)
    assert {len(prompt.ids) for prompt in made} == {76}
    assert len({tuple(prompt.ids[:64]) for prompt in made}) == 1
    assert len({tuple(prompt.ids[64:72]) for prompt in made}) == 16


def arriving(*arrivals: float, tokens: int = 9) -> Sample:
    return Sample(sent=100.0, arrivals=list(arrivals), completion_tokens=tokens)


def test_the_worst_gap_is_the_one_that_touches_the_window() -> None:
    sample = arriving(1.0, 1.1, 1.6, 1.7, 3.0)
    assert sample.worst_gap(101.2, 101.65) == pytest.approx(0.5)
    assert sample.worst_gap(101.0, 103.0) == pytest.approx(1.3)
    assert sample.worst_gap(104.0, 105.0) == 0.0


def test_a_stream_that_was_cut_waited_until_the_window_ended() -> None:
    assert arriving(1.0, 1.1, tokens=0).worst_gap(101.0, 104.0) == pytest.approx(2.9)
    # One that had ended by itself waited for nothing.
    assert arriving(1.0, 1.1).worst_gap(101.0, 104.0) == pytest.approx(0.1)


def test_a_cancelled_request_keeps_what_had_come(service: ServiceThread) -> None:
    async def run(client: Client) -> Sample:
        seen = asyncio.Event()
        counter = itertools.count(1)
        task = asyncio.create_task(
            client.complete(Prompt([40, 41], ""), 1500, lambda: seen.set() if next(counter) == 5 else None)
        )
        await seen.wait()
        task.cancel()
        return await task

    sample = ask(service, run, ignore_eos=True)
    assert len(sample.arrivals) >= 5
    assert not sample.error and not sample.completion_tokens
