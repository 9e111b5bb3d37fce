"""Log probabilities beside the output tokens, under the scripted worker's made-up model."""

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tiny_folder import HashOracle

from diptych import LLM, AsyncEngine, EngineConfig, Output, SamplingParams, TokenLogprobs, errors

PROMPT = [7, 9, 11, 13, 15, 17]


async def outputs_of(engine: AsyncEngine, prompt: list[int], **settings: Any) -> list[Output]:
    return [output async for output in engine.generate(prompt, SamplingParams(**settings))]


def check(oracle: HashOracle, prompt: list[int], ids: list[int], entries: list[TokenLogprobs], most: int) -> None:
    assert [entry.token.token_id for entry in entries] == ids
    for index, entry in enumerate(entries):
        expected = oracle.logprobs(prompt + ids[:index])
        ranked = sorted(expected, key=lambda token: (-expected[token], token))[:most]
        assert [other.token_id for other in entry.likeliest] == ranked
        for named in (entry.token, *entry.likeliest):
            assert abs(named.logprob - float(expected[named.token_id])) < 1e-5
            assert named.raw == oracle.bytes_of(named.token_id)


@pytest.mark.parametrize("most", [0, 1, 20])
async def test_each_token_has_its_own_and_those_of_the_likeliest(
    engine: AsyncEngine, oracle: HashOracle, most: int
) -> None:
    outputs = await outputs_of(engine, PROMPT, max_tokens=12, logprobs=most, temperature=0.7, presence_penalty=1.5)
    assert all(len(output.logprobs) == len(output.token_ids) for output in outputs)
    ids = [token for output in outputs for token in output.token_ids]
    assert len(ids) == 12
    check(oracle, PROMPT, ids, [entry for output in outputs for entry in output.logprobs], most)


async def test_nothing_is_told_that_nobody_asked_for(engine: AsyncEngine) -> None:
    assert all(output.logprobs == [] for output in await outputs_of(engine, PROMPT, max_tokens=4))


async def test_choices_and_neighbours_have_their_own(engine: AsyncEngine, oracle: HashOracle) -> None:
    async def of(prompt: list[int], most: int) -> None:
        ids: list[list[int]] = [[], [], []]
        entries: list[list[TokenLogprobs]] = [[], [], []]
        for output in await outputs_of(engine, prompt, max_tokens=9, n=3, logprobs=most):
            ids[output.choice] += output.token_ids
            entries[output.choice] += output.logprobs
        for choice in range(3):
            assert ids[choice] == oracle.continuation(prompt, 9, choice)
            check(oracle, prompt, ids[choice], entries[choice], most)

    await asyncio.gather(of(PROMPT, 3), of([5, 6], 0), of([8, 9, 10], 7), outputs_of(engine, [4], max_tokens=9))


async def test_text_ids_and_log_probabilities_end_at_the_same_token(engine: AsyncEngine, oracle: HashOracle) -> None:
    ids = oracle.continuation(PROMPT, 24)
    text = oracle.tokenizer.decode(ids)
    for end in range(4, len(text) - 1, 3):
        stop = text[end : end + 2]
        outputs = await outputs_of(engine, PROMPT, max_tokens=24, logprobs=2, stop=[stop])
        found = [token for output in outputs for token in output.token_ids]
        entries = [entry for output in outputs for entry in output.logprobs]
        last = outputs[-1]
        assert last.stop_reason == stop and last.usage is not None
        assert found == ids[: len(found)]
        assert len(entries) == len(found) == last.usage.completion_tokens
        # The last token is the first whose text completes the stop string.
        shorter, whole = oracle.tokenizer.decode(found[:-1]), oracle.tokenizer.decode(found)
        assert stop in whole and stop not in shorter.rstrip("\ufffd")
        check(oracle, PROMPT, found, entries, 2)


async def test_an_offset_counts_the_whole_characters_before_a_token(engine: AsyncEngine, oracle: HashOracle) -> None:
    for first in range(5, 25):
        outputs = await outputs_of(engine, [first, *PROMPT], max_tokens=16, logprobs=0, stop=["never to be seen"])
        text = "".join(output.text for output in outputs)
        entries = [entry for output in outputs for entry in output.logprobs]
        assert entries[0].offset == 0
        for before, after in pairwise(entries):
            assert before.offset <= after.offset <= len(text)
        for entry, other in pairwise(entries):
            piece = entry.token.raw.decode("utf-8", "replace")
            if "\ufffd" not in piece and "\ufffd" not in text[: other.offset + 4]:
                assert text[entry.offset : other.offset] == piece


def test_a_batch_tells_them_too(folder: Path, oracle: HashOracle) -> None:
    with LLM(EngineConfig(str(folder), worker="scripted", block_size=4)) as llm:
        results = llm.generate(
            [[5, 6, 7], [8, 9]], [SamplingParams(logprobs=2), SamplingParams(n=2, best_of=4, logprobs=1)]
        )
    check(oracle, [5, 6, 7], results[0].token_ids, results[0].logprobs, 2)
    for result in results[1:]:
        check(oracle, [8, 9], result.token_ids, result.logprobs, 1)
        assert result.mean_logprob is not None
        mean = sum(entry.token.logprob for entry in result.logprobs) / len(result.logprobs)
        assert abs(mean - result.mean_logprob) < 1e-5


@pytest.mark.parametrize("wrong", [-1, 21])
async def test_a_number_out_of_range_is_refused(engine: AsyncEngine, wrong: int) -> None:
    with pytest.raises(errors.InvalidParameterError, match="logprobs"):
        await outputs_of(engine, PROMPT, logprobs=wrong)
