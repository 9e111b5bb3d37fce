"""The same greedy ids through the whole engine: core, arenas, worker."""

import asyncio
import dataclasses
import json

import pytest
import torch
from tiny_folder import write_folder
from worker_rig import KERNELS, greedy_oracle, write_random_llama

from diptych import AsyncEngine, EngineConfig, SamplingParams

BLOCK = 4
TOKENS = 2 * BLOCK + 1
TOLERANCE = 1e-4
LENGTHS = (1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 5 * BLOCK + 2)
pytestmark = pytest.mark.model


@dataclasses.dataclass
class Case:
    folder: str
    prompts: list[list[int]]
    expected: list[list[int]]
    model: torch.nn.Module

    @property
    def ends(self):
        """Ids that end some beams."""
        return sorted({self.expected[1][4], self.expected[3][2]})


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    folder = write_folder(tmp_path_factory.mktemp("engine"))
    config = json.loads((folder / "config.json").read_text())
    vocabulary, eos = config["vocab_size"], config["eos_token_id"]
    model = write_random_llama(folder, vocab_size=vocabulary, eos_token_id=eos, max_position_embeddings=512)
    model.generation_config.eos_token_id = None
    generator = torch.Generator().manual_seed(2)
    prompts = [torch.randint(0, vocabulary, (length,), generator=generator).tolist() for length in LENGTHS]
    return Case(str(folder), prompts, [greedy_oracle(model, prompt, TOKENS) for prompt in prompts], model)


@pytest.fixture(params=KERNELS)
def kernels(request):
    return request.param


async def generate_all(engine, prompts, **changes):
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": TOKENS, "ignore_eos": True, **changes})

    async def one(prompt):
        ids, cached = [], 0
        async for output in engine.generate(prompt, params):
            ids += output.token_ids
            cached = output.usage.cached_tokens if output.usage else cached
        return ids, cached

    return await asyncio.gather(*(one(prompt) for prompt in prompts))


def config(case, **changes):
    settings = {"dtype": "float32", "block_size": BLOCK, "max_model_len": 64, "kv_cache_bytes": 1 << 20, "threads": 1}
    return EngineConfig(model=case.folder, **{**settings, **changes})


@pytest.mark.parametrize(("chunk", "overlap"), [(1, 0), (5, 1), (None, 2)])
@pytest.mark.parametrize("prefix_cache", [False, True])
async def test_greedy_ids_equal_transformers_through_an_inline_engine(case, kernels, chunk, overlap, prefix_cache):
    changes = {"max_prefill_tokens": chunk, "overlap": overlap, "prefix_cache": prefix_cache}
    async with AsyncEngine(config(case, kernels=kernels, worker="inline", **changes)) as engine:
        for round_number in range(2):
            results = await generate_all(engine, case.prompts)
            assert [ids for ids, _ in results] == case.expected
            if round_number and prefix_cache:
                # One token at least is computed anew; a hit is whole blocks.
                wanted = [(len(prompt) - 1) // BLOCK * BLOCK for prompt in case.prompts]
                assert [cached for _, cached in results] == wanted


async def test_preempted_requests_give_the_same_ids(case, kernels):
    # Room for one request of full length, and two blocks.
    blocks = 1 + 64 // BLOCK + 2
    bytes_per_block = 2 * 2 * BLOCK * 2 * 8 * 4
    memory = {"kv_cache_bytes": blocks * bytes_per_block, "prefix_cache": False, "admission": "whole_prompt"}
    changes = {"worker": "inline", **memory}
    async with AsyncEngine(config(case, kernels=kernels, **changes)) as engine:
        results = await generate_all(engine, case.prompts * 2)
        assert [ids for ids, _ in results] == case.expected * 2
        assert engine.stats().preemptions > 0


async def test_penalties_and_seeds_do_not_depend_on_schedule_or_cache(case, kernels):
    changes = {"temperature": 0.8, "seed": 5, "repetition_penalty": 1.3, "presence_penalty": 0.5, "top_p": 0.9}
    seen = []
    for chunk, cache, overlap in ((None, False, 0), (3, True, 1)):
        settings = {"max_prefill_tokens": chunk, "prefix_cache": cache, "overlap": overlap}
        async with AsyncEngine(config(case, kernels=kernels, worker="inline", **settings)) as engine:
            seen += [[ids for ids, _ in await generate_all(engine, case.prompts, **changes)] for _ in range(2)]
    assert seen[0] == seen[1] == seen[2] == seen[3]
    assert seen[0] != case.expected


async def test_seeded_streams_do_not_depend_on_overlap(case, kernels):
    seen = []
    for overlap in (0, 1, 2):
        async with AsyncEngine(config(case, kernels=kernels, worker="inline", overlap=overlap)) as engine:
            results = await generate_all(engine, case.prompts, temperature=0.9, seed=11, max_tokens=30)
            seen.append([ids for ids, _ in results])
            assert (engine.stats().steps_ahead > 0) == (overlap > 0)
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.slow
async def test_a_worker_process_gives_the_same_ids(case, kernels):
    async with AsyncEngine(config(case, kernels=kernels, worker="process", max_prefill_tokens=7)) as engine:
        assert [ids for ids, _ in await generate_all(engine, case.prompts)] == case.expected


async def test_every_choice_of_a_prompt_gives_the_ids_of_transformers(case, kernels):
    """Each prompt alone and with others beside it: partial last blocks are copied, full ones shared."""
    async with AsyncEngine(config(case, kernels=kernels, worker="inline", max_prefill_tokens=5)) as engine:

        async def choices(prompt):
            params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True, n=3)
            ids = [[] for _ in range(3)]
            async for output in engine.generate(prompt, params):
                ids[output.choice] += output.token_ids
            return ids

        results = await asyncio.gather(*(choices(prompt) for prompt in case.prompts))
    for expected, found in zip(case.expected, results, strict=True):
        assert found == [expected] * 3


async def test_log_probabilities_equal_those_of_transformers(case, kernels):
    """With whatever is drawn, penalties and banned ids, alone and beside others: those of the model itself."""
    changes = {"temperature": 0.8, "seed": 5, "repetition_penalty": 1.3, "logit_bias": {5: -100.0}, "logprobs": 7}

    async def told(engine, prompt, **settings):
        params = SamplingParams(max_tokens=TOKENS, ignore_eos=True, **settings)
        outputs = [output async for output in engine.generate(prompt, params)]
        return [entry for output in outputs for entry in output.logprobs]

    async with AsyncEngine(config(case, kernels=kernels, worker="inline", max_prefill_tokens=5)) as engine:
        drawn = [told(engine, prompt, **changes) for prompt in case.prompts]
        greedy = [told(engine, prompt, temperature=0.0, logprobs=0) for prompt in case.prompts]
        results = await asyncio.gather(*drawn, *greedy)
    for prompt, entries in zip([*case.prompts, *case.prompts], results, strict=True):
        ids = [entry.token.token_id for entry in entries]
        assert len(ids) == TOKENS
        expected = transformers_logprobs(case.model, prompt, ids)
        for row, entry in zip(expected, entries, strict=True):
            assert abs(float(row[entry.token.token_id]) - entry.token.logprob) < TOLERANCE
            best = row.topk(len(entry.likeliest)).values if entry.likeliest else row[:0]
            for value, other in zip(best.tolist(), entry.likeliest, strict=True):
                assert abs(value - other.logprob) < TOLERANCE
                assert abs(float(row[other.token_id]) - other.logprob) < TOLERANCE


@pytest.mark.parametrize("chunk", [3, None])
async def test_log_probabilities_of_prompts_equal_those_of_transformers(case, kernels, chunk):
    """Twice, so that all of it is cached; beside others that find it there."""

    async def told(engine, prompt, **settings):
        params = SamplingParams(temperature=0.0, ignore_eos=True, **settings)
        outputs = [output async for output in engine.generate(prompt, params)]
        return [entry for output in outputs for entry in output.prompt_logprobs], outputs[-1].usage

    async with AsyncEngine(config(case, kernels=kernels, worker="inline", max_prefill_tokens=chunk)) as engine:
        for max_tokens in (0, TOKENS):
            settings = {"max_tokens": max_tokens, "prompt_logprobs": 4}
            others = [generate_all(engine, case.prompts)]
            *results, plain = await asyncio.gather(*(told(engine, each, **settings) for each in case.prompts), *others)
            assert [ids for ids, _ in plain] == case.expected
            for prompt, (entries, usage) in zip(case.prompts, results, strict=True):
                assert [entry.token.token_id for entry in entries] == prompt
                assert (usage.cached_tokens, usage.completion_tokens) == (0, max_tokens)
                if len(prompt) == 1:
                    continue
                expected = transformers_logprobs(case.model, prompt[:1], prompt[1:])
                for row, entry in zip(expected, entries[1:], strict=True):
                    best = row.topk(4).values.tolist()
                    assert abs(float(row[entry.token.token_id]) - entry.token.logprob) < TOLERANCE
                    for value, other in zip(best, entry.likeliest, strict=True):
                        assert abs(value - other.logprob) < TOLERANCE


def transformers_logprobs(model, prompt, ids):
    """[len(ids), V]: log probabilities after the prompt and all but the last of the ids."""
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + ids[:-1]])).logits[0, len(prompt) - 1 :]
    return torch.log_softmax(logits.float(), dim=-1)


@pytest.mark.parametrize(("penalty", "early"), [(1.0, False), (0.0, "never"), (2.0, True)])
async def test_beams_equal_those_of_transformers(case, kernels, penalty, early):
    """Width 4, with an id that ends beams, each prompt alone in transformers and all at once here."""
    width, ends = 4, case.ends
    async with AsyncEngine(config(case, kernels=kernels, worker="inline", max_running=32)) as engine:

        async def beams(prompt):
            params = SamplingParams(
                max_tokens=TOKENS,
                n=width,
                use_beam_search=True,
                length_penalty=penalty,
                early_stopping=early,
                ignore_eos=True,
                stop_token_ids=ends,
            )
            ids = [[] for _ in range(width)]
            async for output in engine.generate(prompt, params):
                ids[output.choice] += output.token_ids
            return ids

        results = await asyncio.gather(*(beams(prompt) for prompt in case.prompts))
    for prompt, found in zip(case.prompts, results, strict=True):
        assert found == transformers_beams(case.model, prompt, width, penalty, early, ends)


def transformers_beams(model, prompt, width, penalty, early, ends):
    with torch.inference_mode():
        sequences = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=TOKENS,
            num_beams=width,
            num_return_sequences=width,
            length_penalty=penalty,
            early_stopping=early,
            do_sample=False,
            eos_token_id=ends,
            pad_token_id=-1 % model.config.vocab_size,
        )
    found = []
    for ids in sequences[:, len(prompt) :].tolist():
        stop = next((at for at, token in enumerate(ids) if token in ends), len(ids) - 1)
        found.append(ids[: stop + 1])
    return found
