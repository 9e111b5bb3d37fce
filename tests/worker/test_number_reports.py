"""Reports of other servers' numbers, class F, and those of class B about log probabilities: what must hold here.

Each through a whole engine around a small random model. What one kernel must compute is in `test_native_exact`,
`test_greedy`, `test_padding`, `test_rotary` and `tests/sampling`; what must be refused, in `test_plans`.
"""

import asyncio
import json
import random

import pytest
import torch
from tiny_folder import write_folder
from worker_rig import KERNELS, write_random_llama

from diptych import AsyncEngine, EngineConfig, SamplingParams

pytestmark = pytest.mark.model

BLOCK = 4
# What the sums of torch's products differ by when another number of rows is multiplied at once.
ROUNDING = 1e-4
DRAWN = {"temperature": 1.0, "seed": 77}
PENALISED = {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 1.0, "frequency_penalty": 1.0}
GREEDY = {"temperature": 0.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_folder(tmp_path_factory.mktemp("numbers"))
    config = json.loads((folder / "config.json").read_text())
    write_random_llama(folder, vocab_size=config["vocab_size"], eos_token_id=config["eos_token_id"])
    return str(folder)


@pytest.fixture(params=KERNELS)
def kernels(request):
    return request.param


def prompts_of(lengths):
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, 256, (length,), generator=generator).tolist() for length in lengths]


def engine_of(folder, kernels, **changes):
    settings = {"dtype": "float32", "block_size": BLOCK, "max_model_len": 64, "kv_cache_bytes": 1 << 20, "threads": 1}
    return AsyncEngine(EngineConfig(folder, **{**settings, "worker": "inline", "kernels": kernels, **changes}))


def tight(blocks):
    """A pool of so many blocks."""
    return {"kv_cache_bytes": blocks * 2 * 2 * BLOCK * 2 * 8 * 4, "admission": "whole_prompt"}


class Told:
    """One answer: ids, log probabilities, those of the prompt, and what was found in the cache."""

    def __init__(self, outputs):
        self.ids = [token for output in outputs for token in output.token_ids]
        self.logprobs = [entry.token.logprob for output in outputs for entry in output.logprobs]
        self.of_prompt = [entry for output in outputs for entry in output.prompt_logprobs]
        self.usage = outputs[-1].usage
        self.preemptions = outputs[-1].preemptions


async def told(engine, prompt, **settings):
    params = SamplingParams(**{"max_tokens": 3 * BLOCK, "ignore_eos": True, "logprobs": 0, **settings})
    return Told([output async for output in engine.generate(prompt, params)])


async def told_together(engine, prompts, **settings):
    return await asyncio.gather(*(told(engine, prompt, **settings) for prompt in prompts))


def check_equal(kernels, found, wanted):
    """The same tokens; the same bits from the native kernels, and from the reference's up to rounding."""
    assert found.ids == wanted.ids
    if kernels == "native":
        assert found.logprobs == wanted.logprobs
    else:
        assert max(abs(one - other) for one, other in zip(found.logprobs, wanted.logprobs, strict=True)) < ROUNDING


async def test_answers_are_the_same_alone_and_among_others_in_any_order_of_arrival(folder, kernels):
    prompts = prompts_of([1 + index * 7 % 40 for index in range(50)])
    async with engine_of(folder, kernels, prefix_cache=False) as engine:
        alone = [await told(engine, prompt, **GREEDY) for prompt in prompts]
        for width in (2, 4, 8):
            order = random.Random(width).sample(range(50), 50)
            room = asyncio.Semaphore(width)

            async def one(index, room=room):
                async with room:
                    return index, await told(engine, prompts[index], **GREEDY)

            for index, found in await asyncio.gather(*(one(index) for index in order)):
                check_equal(kernels, found, alone[index])


@pytest.mark.parametrize("sampling", [DRAWN, PENALISED], ids=["drawn", "penalised"])
async def test_tokens_are_the_same_cold_warm_partly_warm_in_chunks_and_preempted(folder, kernels, sampling):
    """One number is drawn for each token that is sent, and penalties know all ids, whatever was computed."""
    prompts = prompts_of([3, BLOCK, 2 * BLOCK + 1, 5 * BLOCK, 30])
    async with engine_of(folder, kernels, prefix_cache=False) as engine:
        wanted = [await told(engine, prompt, **sampling) for prompt in prompts]
        plain = [await told(engine, prompt, **GREEDY) for prompt in prompts]
    assert sum(one.ids != other.ids for one, other in zip(wanted, plain, strict=True)) > 2

    for chunk in (1, 3, 64, None):
        async with engine_of(folder, kernels, max_prefill_tokens=chunk) as engine:
            for prompt in prompts:
                await told(engine, [*prompt[: len(prompt) // 2], 9, 9, 9, 9, 9], **sampling)
            for is_warm in (False, True):
                for prompt, expected in zip(prompts, wanted, strict=True):
                    found = await told(engine, prompt, **sampling)
                    part = (len(prompt) - 1 if is_warm else len(prompt) // 2) // BLOCK * BLOCK
                    assert found.usage.cached_tokens == part
                    check_equal(kernels, found, expected)
            for found, expected in zip(await told_together(engine, prompts, **sampling), wanted, strict=True):
                check_equal(kernels, found, expected)

    for cache in (False, True):
        async with engine_of(folder, kernels, prefix_cache=cache, **tight(1 + 64 // BLOCK + 2)) as engine:
            found = await told_together(engine, prompts * 3, **sampling)
            assert engine.stats().preemptions > 0
        for one, expected in zip(found, wanted * 3, strict=True):
            check_equal(kernels, one, expected)


async def test_choices_of_one_seed_draw_each_for_itself(folder, kernels):
    """The first is what a single one would be, and the others are the same however they are scheduled."""
    prompts = prompts_of([3, 9, 17])
    async with engine_of(folder, kernels, prefix_cache=False) as engine:
        single = [(await told(engine, prompt, **DRAWN)).ids for prompt in prompts]
        seen = []
        for _ in range(2):
            seen.append([await choices(engine, prompt) for prompt in prompts])
        seen.append(list(await asyncio.gather(*(choices(engine, prompt) for prompt in prompts))))
    async with engine_of(folder, kernels, max_prefill_tokens=1, **tight(1 + 64 // BLOCK + 2)) as engine:
        seen.append(list(await asyncio.gather(*(choices(engine, prompt) for prompt in prompts))))
    assert seen[0] == seen[1] == seen[2] == seen[3]
    for one, group in zip(single, seen[0], strict=True):
        assert group[0] == one != group[1]


async def choices(engine, prompt):
    params = SamplingParams(max_tokens=3 * BLOCK, ignore_eos=True, n=2, **DRAWN)
    ids = [[], []]
    async for output in engine.generate(prompt, params):
        ids[output.choice] += output.token_ids
    return ids


async def test_a_prompt_has_the_same_log_probabilities_in_chunks_of_any_size(folder, kernels):
    """Also where a token is the first of a chunk, and so is scored by the one before."""
    (prompt,) = prompts_of([3 * BLOCK + 1])
    settings = {**GREEDY, "max_tokens": 1, "prompt_logprobs": 3}
    wanted = None
    for chunk in (None, *range(1, len(prompt) + 2)):
        async with engine_of(folder, kernels, max_prefill_tokens=chunk) as engine:
            found = await told(engine, prompt, **settings)
        wanted = wanted or found
        check_equal(kernels, found, wanted)
        check_scores(kernels, prompt, found, wanted)


async def test_a_prompt_has_the_same_log_probabilities_whatever_is_cached(folder, kernels):
    prompts = prompts_of(range(1, 3 * BLOCK + 1))
    settings = {**GREEDY, "prompt_logprobs": 2}
    async with engine_of(folder, kernels, prefix_cache=False) as engine:
        wanted = [await told(engine, prompt, **settings) for prompt in prompts]
    async with engine_of(folder, kernels) as engine:
        for prompt, expected in zip(prompts, wanted, strict=True):
            for is_asked in (False, True, True):
                found = await told(engine, prompt, **(settings if is_asked else GREEDY))
                check_equal(kernels, found, expected)
                if is_asked:
                    assert found.usage.cached_tokens == 0
                    check_scores(kernels, prompt, found, expected)


def check_scores(kernels, prompt, found, wanted):
    """The first token has none, every other one its own."""
    assert [entry.token.token_id for entry in found.of_prompt] == prompt
    assert [entry.is_first for entry in found.of_prompt] == [True] + [False] * (len(prompt) - 1)
    allowed = 0.0 if kernels == "native" else ROUNDING
    for entry, expected in zip(found.of_prompt[1:], wanted.of_prompt[1:], strict=True):
        ranked, other = (sorted(one.likeliest, key=lambda named: named.token_id) for one in (entry, expected))
        for one, another in zip([entry.token, *ranked], [expected.token, *other], strict=True):
            assert one.token_id == another.token_id
            assert abs(one.logprob - another.logprob) <= allowed


async def test_a_prompt_of_whole_blocks_is_found_but_for_its_last_token(folder, kernels):
    """The same ids and log probabilities each time, and what follows the prompt finds all of its blocks."""
    lengths = [count * BLOCK + more for count in range(1, 5) for more in (-1, 0, 1)]
    prompts = prompts_of(lengths)
    async with engine_of(folder, kernels, prefix_cache=False) as engine:
        wanted = [await told(engine, prompt, **GREEDY) for prompt in prompts]
        longer = [await told(engine, [*prompt, 1, 2, 3], **GREEDY) for prompt in prompts]
    async with engine_of(folder, kernels) as engine:
        for prompt, expected, after in zip(prompts, wanted, longer, strict=True):
            for time in range(3):
                found = await told(engine, prompt, **GREEDY)
                assert found.usage.cached_tokens == (len(prompt) - 1) // BLOCK * BLOCK * (time > 0)
                check_equal(kernels, found, expected)
            found = await told(engine, [*prompt, 1, 2, 3], **GREEDY)
            assert found.usage.cached_tokens == len(prompt) // BLOCK * BLOCK
            check_equal(kernels, found, after)
