"""Greedy ids of the runner equal those of transformers, whatever the chunks, the batch and the block edges."""

from pathlib import Path

import pytest
import torch
from worker_rig import (
    BLOCK,
    KERNELS,
    VOCABULARY,
    Schedule,
    greedy_oracle,
    poison,
    start_either,
    step_counts,
    step_logits,
    write_random_llama,
)

EDGES = (1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 2, 5 * BLOCK)
OUTPUT = 3 * BLOCK
pytestmark = pytest.mark.model


def prompts(lengths: tuple[int, ...] = EDGES) -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(0, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    model = write_random_llama(folder)
    expected = [greedy_oracle(model, prompt, OUTPUT) for prompt in prompts()]
    return folder, model, expected


@pytest.fixture(scope="module", params=KERNELS)
def kernels(request):
    return request.param


@pytest.fixture(scope="module")
def runner(llama, kernels):
    return start_either(kernels, llama[0])


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("index", range(len(EDGES)), ids=[f"prompt_{length}" for length in EDGES])
@pytest.mark.parametrize("chunk", [1, 3, BLOCK, 64])
def test_each_prompt_alone_equals_transformers_over_block_edges_and_chunks(llama, runner, index, chunk):
    poison(runner)
    got = Schedule(runner, seed=index).generate([prompts()[index]], OUTPUT, chunk)
    assert got == [llama[2][index]]


@pytest.mark.parametrize("chunk", [1, 5, 16, 256])
def test_prompts_together_in_mixed_steps_equal_transformers(llama, runner, chunk):
    poison(runner)
    before = step_counts(runner)
    assert Schedule(runner, seed=chunk).generate(prompts(), OUTPUT, chunk) == llama[2]
    after = step_counts(runner)
    assert after["decode"] > before["decode"]
    if chunk < 256:
        assert after["mixed"] > before["mixed"]


@pytest.mark.parametrize("block_size", [1, 2, 8, 64, 256])
def test_block_sizes_do_not_change_ids(llama, kernels, block_size):
    runner = start_either(kernels, llama[0], block_size=block_size, kv_cache_bytes=4 << 20)
    assert Schedule(runner).generate(prompts(), OUTPUT, 7) == llama[2]


def test_a_preempted_request_computed_anew_gives_the_same_ids(llama, runner):
    poison(runner)
    schedule = Schedule(runner)
    request = schedule.add(3, prompts()[5])
    schedule.run([], [(request, len(request.tokens))])
    for _ in range(4):
        schedule.run([request], [])
    schedule.release(request)
    request.row = 5
    while len(request.output) < OUTPUT:
        count = len(request.tokens) - request.computed
        if count == 1:
            schedule.run([request], [])
        else:
            schedule.run([], [(request, min(count, 6))])
    assert request.output == llama[2][5]


def test_long_sequences_cross_attention_tiles(llama, kernels):
    lengths = (255, 256, 257, 300)
    runner = start_either(kernels, llama[0], max_model_len=400, max_batched_tokens=300, kv_cache_bytes=2 << 20)
    expected = [greedy_oracle(llama[1], prompt, 6) for prompt in prompts(lengths)]
    for chunk in (100, 250):
        assert Schedule(runner).generate(prompts(lengths), 6, chunk) == expected


def test_logits_do_not_depend_on_neighbours(llama, runner):
    batch = prompts((1, 3, BLOCK, 50))
    with torch.inference_mode():
        alone = [logits_of(runner, [prompt])[0] for prompt in batch]
        together = logits_of(runner, batch)
        wanted = [llama[1](torch.tensor([prompt])).logits[0, -1] for prompt in batch]
    for one, other, want in zip(alone, together, wanted, strict=True):
        assert (one - other).abs().max() < 1e-5 * max(1.0, float(one.abs().max()))
        assert torch.allclose(one, want, atol=1e-4, rtol=1e-4)


def logits_of(runner, batch):
    poison(runner)
    schedule = Schedule(runner)
    requests = [schedule.add(row, prompt) for row, prompt in enumerate(batch)]
    step = schedule.step([], [(request, len(request.tokens)) for request in requests])
    return step_logits(runner, step)


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("Llama", {"tie_word_embeddings": True}),
        ("Llama", {"attention_bias": True, "mlp_bias": True}),
        ("Llama", {"num_key_value_heads": 6}),
        ("Llama", {"num_attention_heads": 8, "num_key_value_heads": 2}),
        ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}),
        (
            "Llama",
            {
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 500000.0,
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 32,
                }
            },
        ),
        ("Mistral", {"sliding_window": None}),
        ("Qwen2", {"head_dim": 8}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_variants_of_the_family_equal_transformers(tmp_path: Path, kernels, architecture, changes):
    model = write_random_llama(tmp_path, seed=3, architecture=architecture, **changes)
    expected = [greedy_oracle(model, prompt, OUTPUT) for prompt in prompts()]
    assert Schedule(start_either(kernels, tmp_path)).generate(prompts(), OUTPUT, 9) == expected
