"""Log probabilities of prompts, under the scripted worker's made-up model."""

from pathlib import Path
from typing import Any

import pytest
from tiny_folder import HashOracle

from diptych import LLM, AsyncEngine, EngineConfig, Output, SamplingParams, TokenLogprobs, errors


def prompt_of(length: int) -> list[int]:
    return [5 + (index * 37) % 500 for index in range(length)]


async def outputs_of(engine: AsyncEngine, prompt: str | list[int], **settings: Any) -> list[Output]:
    return [output async for output in engine.generate(prompt, SamplingParams(**settings))]


def check(oracle: HashOracle, prompt: list[int], entries: list[TokenLogprobs], most: int) -> None:
    assert [entry.token.token_id for entry in entries] == prompt
    assert [entry.is_first for entry in entries] == [True] + [False] * (len(prompt) - 1)
    assert (entries[0].token.logprob, entries[0].likeliest) == (0.0, [])
    for position, entry in enumerate(entries[1:], start=1):
        expected = oracle.logprobs(prompt[:position])
        ranked = sorted(expected, key=lambda token: (-expected[token], token))[:most]
        assert [other.token_id for other in entry.likeliest] == ranked
        for named in (entry.token, *entry.likeliest):
            assert abs(named.logprob - float(expected[named.token_id])) < 1e-5
            assert named.raw == oracle.bytes_of(named.token_id)


@pytest.mark.parametrize("max_tokens", [0, 1, 5])
@pytest.mark.parametrize("length", [1, 2, 9, 300])
async def test_each_token_of_a_prompt_has_its_own_whatever_is_cached(
    engine: AsyncEngine, oracle: HashOracle, length: int, max_tokens: int
) -> None:
    prompt = prompt_of(length)
    for most in (0, 2):
        outputs = await outputs_of(engine, prompt, max_tokens=max_tokens, prompt_logprobs=most)
        accepted, *rest = outputs
        assert accepted.accepted
        assert [bool(output.prompt_logprobs) for output in rest] == [True] + [False] * (len(rest) - 1)
        check(oracle, prompt, rest[0].prompt_logprobs, most)
        last = rest[-1]
        assert last.usage is not None and last.usage.cached_tokens == 0
        assert last.usage.completion_tokens == max_tokens and last.finish_reason == "length"
        assert [token for output in rest for token in output.token_ids] == oracle.continuation(prompt, max_tokens)


async def test_choices_have_those_of_their_prompt(engine: AsyncEngine, oracle: HashOracle) -> None:
    prompt = prompt_of(11)
    outputs = await outputs_of(engine, prompt, max_tokens=3, n=3, prompt_logprobs=1, logprobs=1)
    for choice in range(3):
        own = [output for output in outputs if output.choice == choice and not output.accepted]
        check(oracle, prompt, own[0].prompt_logprobs, 1)
        assert [token for output in own for token in output.token_ids] == oracle.continuation(prompt, 3, choice)
        assert sum(len(output.logprobs) for output in own) == 3


async def test_nothing_of_an_answer_is_given_where_none_is_wanted(engine: AsyncEngine) -> None:
    text = "The quick brown fox é"
    outputs = await outputs_of(engine, text, max_tokens=0, return_prompt_text=True, stop=["x"], ignore_eos=True)
    assert outputs[0].prompt_text == text
    assert all(not output.text and not output.token_ids for output in outputs)
    with pytest.raises(errors.InvalidParameterError, match="max_tokens"):
        await outputs_of(engine, text, max_tokens=0)


async def test_an_offset_counts_the_characters_of_the_prompt_before_a_token(engine: AsyncEngine) -> None:
    text = "Grüße aus Köln, 日本語 😀 fox"
    outputs = await outputs_of(engine, text, max_tokens=0, prompt_logprobs=0, return_prompt_text=True)
    entries = outputs[1].prompt_logprobs
    assert b"".join(entry.token.raw for entry in entries).decode() == text == outputs[0].prompt_text
    read = b""
    for entry in entries:
        assert entry.offset == len(read.decode("utf-8", "ignore"))
        read += entry.token.raw


def test_a_batch_tells_them_too(folder: Path, oracle: HashOracle) -> None:
    prompts = [prompt_of(length) for length in (3, 260, 17)]
    with LLM(EngineConfig(str(folder), worker="scripted", block_size=4)) as llm:
        results = llm.generate(prompts, SamplingParams(max_tokens=0, prompt_logprobs=1))
    for prompt, result in zip(prompts, results, strict=True):
        check(oracle, prompt, result.prompt_logprobs, 1)
        assert (result.text, result.token_ids, result.usage.completion_tokens) == ("", [], 0)
