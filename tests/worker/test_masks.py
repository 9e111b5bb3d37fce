"""Masks in the workers that compute: both kernel sets keep to them, and give the same ids as the oracle under them."""

import asyncio
import json
import re

import numpy as np
import pytest
import torch
from slow_sampler import Row, sampling_rows
from tiny_folder import write_folder
from worker_rig import KERNELS, write_random_llama

from diptych import AsyncEngine, EngineConfig, SamplingParams, StructuredOutputs
from diptych.sampling import sampler
from diptych.sampling.parameters import STATUS_NOT_SAMPLED, STATUS_OK

CODE = "[a-f]{6}-[0-9]{4}"


def mask(allowed: set[int], vocabulary: int) -> bytes:
    bits = np.array([token in allowed for token in range(vocabulary)])
    return np.packbits(bits, bitorder="little").tobytes()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_only_allowed_ids_are_drawn_and_a_row_without_its_mask_is_not(temperature: float) -> None:
    generator = torch.Generator().manual_seed(1)
    vocabulary, allowed = 70, {3, 40, 69}
    logits = torch.randn(4, vocabulary, generator=generator)
    rows = sampling_rows([Row(temperature=temperature, seed=seed) for seed in range(4)])
    masks = {0: mask(allowed, vocabulary), 1: None, 2: mask({5}, vocabulary)}
    free, _ = sampler.sample(logits.clone(), rows)
    ids, status = sampler.sample(logits.clone(), rows, masks)
    assert status.tolist() == [STATUS_OK, STATUS_NOT_SAMPLED, STATUS_OK, STATUS_OK]
    assert int(ids[0]) in allowed and int(ids[2]) == 5
    assert int(ids[1]) == 0 and int(ids[3]) == int(free[3])
    if temperature == 0.0:
        assert int(ids[0]) == max(allowed, key=lambda token: float(logits[0, token]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_folder(tmp_path_factory.mktemp("masked"))
    config = json.loads((folder / "config.json").read_text())
    vocabulary, eos = config["vocab_size"], config["eos_token_id"]
    write_random_llama(folder, vocab_size=vocabulary, eos_token_id=eos, max_position_embeddings=512)
    return str(folder)


@pytest.mark.model
def test_models_follow_grammars_whatever_computes_them(folder) -> None:
    """Greedy rows with and without masks, random ones, several choices; the same texts from both kernel sets."""

    async def answers(kernels: str) -> list[list[str]]:
        settings = {"dtype": "float32", "max_model_len": 128, "kv_cache_bytes": 1 << 20, "threads": 1}
        async with AsyncEngine(EngineConfig(model=folder, kernels=kernels, worker="inline", **settings)) as engine:

            async def one(prompt: list[int], **changes) -> list[str]:
                params = SamplingParams(**{"max_tokens": 40, "seed": 3, **changes})
                texts = [""] * params.n
                async for output in engine.generate(prompt, params):
                    texts[output.choice] += output.text
                return texts

            asked = StructuredOutputs(regex=CODE)
            return await asyncio.gather(
                *(one([5, n, 9], temperature=0.0, structured_outputs=asked) for n in range(3)),
                *(one([5, n, 9], temperature=1.0, n=2, structured_outputs=asked) for n in range(3)),
                one([5, 4, 9], temperature=0.0),
            )

    found = {kernels: asyncio.run(answers(kernels)) for kernels in KERNELS}
    for answer in found.values():
        for text in (text for texts in answer[:-1] for text in texts):
            assert re.fullmatch(CODE, text), text
    first, *others = found.values()
    for other in others:
        assert other == first
