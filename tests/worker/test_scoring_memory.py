"""What the log probabilities of a long prompt cost: the logits of a few hundred tokens at a time, never all of them."""

import asyncio
import re
from pathlib import Path

import pytest
from tiny_folder import write_folder
from worker_rig import KERNELS, write_random_llama

from diptych import AsyncEngine, EngineConfig, SamplingParams

pytestmark = [pytest.mark.model, pytest.mark.slow]

VOCABULARY = 32_768
LENGTH = 2_040
# Tokens of prompts that a step scores.
SLICE = 256
LOGITS = SLICE * VOCABULARY * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_folder(tmp_path_factory.mktemp("wide"))
    few = len((folder / "tokenizer.json").read_text())
    write_folder(folder, special=[f"<|{number}|>" for number in range(VOCABULARY)])
    assert len((folder / "tokenizer.json").read_text()) > few
    write_random_llama(folder, vocab_size=2 * VOCABULARY, max_position_embeddings=2 * LENGTH)
    return str(folder)


def peak_of(pid):
    """The most memory that the process ever held, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024


async def generate(engine, prompt, **settings):
    params = SamplingParams(**{"temperature": 0.0, "ignore_eos": True, "logprobs": 20, **settings})
    return [output async for output in engine.generate(prompt, params)]


@pytest.mark.parametrize("kernels", KERNELS)
async def test_scoring_the_longest_prompt_beside_others_holds_no_more_logits_than_a_slice(folder, kernels):
    prompt = [7 + 31 * index % (VOCABULARY - 7) for index in range(LENGTH)]
    config = EngineConfig(
        folder,
        dtype="float32",
        kernels=kernels,
        max_model_len=LENGTH + 8,
        kv_cache_bytes=16 << 20,
        max_running=8,
        threads=1,
    )
    async with AsyncEngine(config) as engine:

        async def all_at_once(**settings):
            others = [generate(engine, [5 + row], max_tokens=40) for row in range(3)]
            outputs, *_ = await asyncio.gather(generate(engine, prompt, max_tokens=2, **settings), *others)
            return [entry for output in outputs for entry in output.prompt_logprobs]

        await all_at_once()
        worker = engine.worker_pid()
        before = peak_of(worker)
        entries = await all_at_once(prompt_logprobs=20)
        assert [entry.token.token_id for entry in entries] == prompt
        assert all(len(entry.likeliest) == 20 for entry in entries[1:])
        # As they are, and once more while they are worked on: all of them at once would be eight times a slice.
        assert peak_of(worker) - before < 3 * LOGITS
