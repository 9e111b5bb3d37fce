"""Beam search through the engine, against a naive search over the scripted worker's made-up model."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_folder import HashOracle

from diptych import LLM, AsyncEngine, EngineConfig, Output, SamplingParams, StructuredOutputs, errors

PROMPT = [7, 9, 11, 13, 15, 17]


@dataclass
class Found:
    score: float
    ids: list[int]
    stopped: bool


class BeamOracle(HashOracle):
    """The likeliest outputs by looking at every continuation of every beam."""

    def search(
        self, prompt: list[int], width: int, length: int, penalty: float, early: bool | str, stops: set[int]
    ) -> list[Found]:
        running: list[tuple[np.float32, list[int]]] = [(np.float32(0.0), [])]
        done: list[Found] = []
        for at in range(1, length + 1):
            every = [
                (logprob + total, [*ids, token])
                for total, ids in running
                for token, logprob in self.logprobs(prompt + ids).items()
            ]
            every.sort(key=lambda candidate: -candidate[0])
            divisor = np.float32(float(at) ** penalty)
            for total, ids in every[:width]:
                if ids[-1] in stops or at == length:
                    done.append(Found(float(total / divisor), ids, ids[-1] in stops))
            done = sorted(done, key=lambda found: -found.score)[:width]
            running = [candidate for candidate in every if candidate[1][-1] not in stops][:width]
            longest = length if early == "never" and penalty > 0 else at
            best = float(running[0][0] / np.float32(float(longest) ** penalty))
            if len(done) == width and (early is True or best <= done[-1].score):
                break
        return done


@pytest.fixture(scope="module")
def oracle(folder: Path) -> BeamOracle:
    return BeamOracle(folder)


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[AsyncEngine]:
    async with AsyncEngine(EngineConfig(str(folder), worker="scripted", block_size=4, max_running=8)) as engine:
        yield engine


async def collect(engine: AsyncEngine, prompt: list[int], params: SamplingParams) -> list[tuple[list[int], Output]]:
    ids: list[list[int]] = [[] for _ in range(params.n)]
    lasts: dict[int, Output] = {}
    async for output in engine.generate(prompt, params):
        ids[output.choice] += output.token_ids
        if output.finish_reason is not None:
            lasts[output.choice] = output
    return [(ids[choice], lasts[choice]) for choice in range(params.n)]


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize(("penalty", "early"), [(1.0, False), (0.0, "never"), (2.0, True), (-1.0, "never")])
async def test_beams_are_those_of_a_naive_search(
    engine: AsyncEngine, oracle: BeamOracle, width: int, penalty: float, early: Any
) -> None:
    stops = set(range(30, 60))
    params = SamplingParams(
        max_tokens=9,
        n=width,
        use_beam_search=True,
        length_penalty=penalty,
        early_stopping=early,
        stop_token_ids=sorted(stops)[: 128 // width - 2],
    )
    stops = set(params.stop_token_ids)
    for length in (3, 4, 6):
        prompt = list(range(20, 20 + length))
        expected = oracle.search(prompt, width, 9, penalty, early, stops)
        found = await collect(engine, prompt, params)
        assert [ids for ids, _ in found] == [hypothesis.ids for hypothesis in expected]
        for (ids, last), hypothesis in zip(found, expected, strict=True):
            assert last.finish_reason == ("stop" if hypothesis.stopped else "length")
            assert last.usage is not None and last.usage.completion_tokens == len(ids)


@pytest.mark.parametrize("width", [1, 3, 8])
async def test_beside_a_script_beams_are_those_of_the_made_up_model_and_the_worker_lives(
    folder: Path, width: int
) -> None:
    """A script has no probabilities. Those of hash mode stand for them, and every id can be next."""
    oracle = BeamOracle(folder, never=set())
    end = oracle.tokenizer.token_to_id("<|im_end|>")
    script = [[5, 6, 7], [8]]
    config = EngineConfig(str(folder), worker="scripted", script=script, block_size=4, max_running=8)
    async with AsyncEngine(config) as engine:
        found = await collect(engine, PROMPT, SamplingParams(max_tokens=9, n=width, use_beam_search=True))
        expected = oracle.search(PROMPT, width, 9, 1.0, False, {end})
        assert [ids for ids, _ in found] == [hypothesis.ids for hypothesis in expected]
        ((ids, last),) = await collect(engine, PROMPT, SamplingParams(max_tokens=9))
        assert (ids, last.finish_reason) == ([8, end], "stop")
        assert engine.stats().worker_restarts == 0


def test_a_batch_gives_the_beams_side_by_side(folder: Path, oracle: BeamOracle) -> None:
    params = SamplingParams(max_tokens=5, n=3, use_beam_search=True)
    with LLM(str(folder), worker="scripted", block_size=4, max_running=8) as llm:
        results = llm.generate([PROMPT, PROMPT[:4]], params)
    expected = [oracle.search(prompt, 3, 5, 1.0, False, set()) for prompt in (PROMPT, PROMPT[:4])]
    assert [result.token_ids for result in results] == [found.ids for each in expected for found in each]
    assert [result.choice for result in results] == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.5),
        ("top_k", 3),
        ("top_p", 0.9),
        ("min_p", 0.1),
        ("presence_penalty", 1.0),
        ("frequency_penalty", 1.0),
        ("repetition_penalty", 1.5),
        ("seed", 4),
        ("logit_bias", {5: 1.0}),
        ("stop", ["x"]),
        ("min_tokens", 1),
        ("logprobs", 0),
        ("best_of", 4),
    ],
)
def test_settings_that_draw_are_refused_beside_beams(name: str, value: Any) -> None:
    with pytest.raises(errors.InvalidParameterError, match=name):
        SamplingParams(n=2, use_beam_search=True, **{name: value}).validate()


def test_structured_outputs_beside_beams_are_named_as_they_were_asked_for() -> None:
    asked = StructuredOutputs(regex="a", asked_by="guided_regex")
    with pytest.raises(errors.InvalidParameterError) as caught:
        SamplingParams(n=2, use_beam_search=True, structured_outputs=asked).validate()
    (problem,) = caught.value.problems
    assert problem.startswith("guided_regex={'regex': 'a'}: expected none: beam search")


@pytest.mark.parametrize(("name", "value"), [("length_penalty", 0.5), ("early_stopping", True)])
def test_settings_of_beams_are_refused_without_them(name: str, value: Any) -> None:
    with pytest.raises(errors.InvalidParameterError, match=name):
        SamplingParams(n=2, **{name: value}).validate()


async def test_too_wide_a_search_is_refused_with_the_arithmetic(engine: AsyncEngine) -> None:
    params = SamplingParams(max_tokens=4, n=8, use_beam_search=True, stop_token_ids=list(range(30, 50)))
    with pytest.raises(errors.RequestError, match="continuations"):
        await collect(engine, PROMPT, params)
