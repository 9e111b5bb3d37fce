"""Bit exactness: a position's logits depend on its own tokens alone, in every format of weights and KV cache."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from worker_rig import Schedule, start_native, start_runner, step_logits, write_random_llama

from diptych_core import kernels

pytestmark = pytest.mark.model

# Sizes that every format takes: inputs in whole groups of 32, heads of more than one vector.
SHAPE = {
    **{"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16},
    # Small enough that rounding stays small from layer to layer.
    "initializer_range": 0.12,
}
SETTINGS = {"max_model_len": 600, "max_batched_tokens": 700, "max_running": 16, "kv_cache_bytes": 8 << 20}
TOKENS = [(7 * index * index + 3 * index + 1) % 96 for index in range(300)]

# Name, stored dtype of the checkpoint, options of the worker.
FORMATS = {
    "float32": ("float32", {"dtype": "float32"}),
    "bfloat16": ("bfloat16", {"dtype": "bfloat16"}),
    "bfloat16-in-float32": ("bfloat16", {"dtype": "float32"}),
    "float16": ("float16", {"dtype": "float16"}),
    "int8": ("bfloat16", {"dtype": "bfloat16", "quantization": "int8"}),
    "int8-g32": ("bfloat16", {"dtype": "float32", "quantization": "int8-g32"}),
    "int4": ("bfloat16", {"dtype": "bfloat16", "quantization": "int4"}),
}
KV_CACHES = ("float32", "bfloat16", "float16", "int8")
CASES = [
    *((name, "auto") for name in FORMATS),
    *(("bfloat16", kv) for kv in KV_CACHES),
    *(("bfloat16-in-float32", kv) for kv in KV_CACHES),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    found = {}
    for stored in ("float32", "bfloat16", "float16"):
        folder = found[stored] = tmp_path_factory.mktemp(stored)
        write_random_llama(folder, **SHAPE)
        file = folder / "model.safetensors"
        save_file({name: tensor.to(getattr(torch, stored)) for name, tensor in load_file(file).items()}, file)
    return found


def options_of(case):
    name, kv = case
    stored, options = FORMATS[name]
    return stored, {**SETTINGS, **options, "kv_cache_dtype": kv}


def start(folders, case, **changes):
    stored, options = options_of(case)
    return start_native(folders[stored], **{**options, **changes})


@pytest.fixture(scope="module", params=CASES, ids="/".join)
def case(request):
    return request.param


@pytest.fixture(scope="module")
def runner(folders, case):
    return start(folders, case)


@pytest.fixture(scope="module")
def expected(runner):
    """Logits after the first n tokens, each computed at once, alone."""
    return {length: logits_after(runner, TOKENS[:length], [length]) for length in (1, 2, 17, 100, 256, 257, 300)}


def logits_after(runner, tokens, chunks, neighbours=(), seed=0, row=3):
    """Logits of the last token, the sequence computed in chunks; in the last of them beside rows of other lengths."""
    schedule = Schedule(runner, seed)
    others = []
    for index, length in enumerate(neighbours):
        other = schedule.add(
            (row + 1 + index) % runner.sizes.max_running, [(length * i + i) % 96 for i in range(length)]
        )
        others.append(other)
    request = schedule.add(row, tokens)
    for chunk in chunks[:-1]:
        decode = [request] if request.computed and chunk == 1 else []
        step_logits(runner, schedule.step(decode, [] if decode else [(request, chunk)]))
        request.computed += chunk
    last_is_decode = chunks[-1] == 1 and request.computed > 0
    mixed = [(other, len(other.tokens)) for other in others] + ([] if last_is_decode else [(request, chunks[-1])])
    step = schedule.step([request] if last_is_decode else [], mixed)
    logits = step_logits(runner, step)
    return logits[step.arrays["sampling_rows"].tolist().index(row)]


def same_bits(one, other):
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


def split(length, chunk):
    return [min(chunk, length - start) for start in range(0, length, chunk)]


@pytest.mark.parametrize("chunk", [1, 3, 16, 100, 255])
def test_chunks_and_decode_change_no_bit(runner, expected, chunk):
    for length, wanted in expected.items():
        if length > 1 and length // chunk < 120:
            assert same_bits(logits_after(runner, TOKENS[:length], split(length, chunk)), wanted), length


def test_decode_from_the_first_token_changes_no_bit(runner, expected):
    assert same_bits(logits_after(runner, TOKENS[:257], [1] * 257), expected[257])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 11, 13, 15])
def test_other_rows_change_no_bit(runner, expected, count):
    neighbours = [1 + 5 * index % 37 for index in range(count)]
    for length in (1, 17, 257):
        assert same_bits(logits_after(runner, TOKENS[:length], [length], neighbours), expected[length])
    chunks = [*split(256, 64), 1]
    assert same_bits(logits_after(runner, TOKENS[:257], chunks, neighbours), expected[257])


def test_the_place_of_blocks_and_rows_changes_no_bit(runner, expected):
    for seed, row in ((1, 0), (2, 15), (3, 7)):
        assert same_bits(logits_after(runner, TOKENS, [200, 100], seed=seed, row=row), expected[300])


def test_a_prefix_that_another_request_computed_changes_no_bit(runner, expected):
    schedule = Schedule(runner)
    first = schedule.add(1, TOKENS[:96])
    step_logits(runner, schedule.step([], [(first, 96)]))
    second = schedule.add(2, TOKENS[:257])
    second.blocks, second.computed = list(first.blocks), 96
    schedule.deltas.append((2, 0, list(first.blocks)))
    assert same_bits(step_logits(runner, schedule.step([], [(second, 161)]))[0], expected[257])


def test_preemption_changes_no_bit(runner, expected):
    schedule = Schedule(runner)
    request = schedule.add(1, TOKENS[:257])
    step_logits(runner, schedule.step([], [(request, 150)]))
    schedule.release(request)
    step_logits(runner, schedule.step([], [(request, 256)]))
    request.computed = 256
    assert same_bits(step_logits(runner, schedule.step([request], []))[0], expected[257])


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_a_restart_with_other_threads_changes_no_bit(folders, case, expected, threads):
    runner = start(folders, case, threads=threads)
    assert same_bits(logits_after(runner, TOKENS, [300]), expected[300])
    assert same_bits(logits_after(runner, TOKENS[:257], [*split(256, 40), 1], [9, 30, 4]), expected[257])


@pytest.mark.parametrize("block_size", [1, 8, 16, 256])
def test_the_block_size_changes_no_bit(folders, case, expected, block_size):
    runner = start(folders, case, block_size=block_size)
    assert same_bits(logits_after(runner, TOKENS[:257], [100, 156, 1]), expected[257])


@pytest.mark.parametrize("name", kernels.instruction_sets())
def test_the_instruction_set_changes_no_bit(folders, case, expected, name):
    stored, options = options_of(case)
    runner = start_native(folders[stored], name, **options)
    assert same_bits(logits_after(runner, TOKENS[:257], [200, 56, 1]), expected[257])


def test_logits_are_those_of_the_reference_but_for_rounding(folders, case, expected):
    stored, options = options_of(case)
    reference = start_runner(folders[stored], **{**SETTINGS, "dtype": "float32"})
    with torch.inference_mode():
        wanted = logits_after(reference, TOKENS[:257], [257])
    allowed = {"float32": 1e-4, "bfloat16": 0.03, "float16": 5e-3, "int8": 0.06, "int8-g32": 0.06, "int4": 0.6}
    weights = options.get("quantization") or case[0].removesuffix("-in-float32")
    if case == ("bfloat16-in-float32", "float32"):
        weights = "float32"
    error = float((expected[257] - wanted).norm() / wanted.norm())
    assert error < allowed[weights], error
