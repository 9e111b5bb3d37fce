"""What a step allocates depends on its own tokens, is bounded before the start, and not by the prompt's length."""

import pytest
import torch
from allocation_peak import allocation_peak
from worker_rig import Schedule, start_runner, worker_init, write_random_llama

from diptych.models.llama import Workspace
from diptych.worker.startup import activation_bytes

SETTINGS = {"max_model_len": 2100, "max_batched_tokens": 2100, "kv_cache_bytes": 4 << 20, "block_size": 16}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    write_random_llama(folder, max_position_embeddings=4096)
    return folder


def held_bytes(workspace: Workspace) -> int:
    buffers = (value for value in vars(workspace).values() if isinstance(value, torch.Tensor))
    return sum(buffer.numel() * buffer.element_size() for buffer in buffers)


def prefill_peak(runner, length: int, chunk: int) -> int:
    schedule = Schedule(runner)
    request = schedule.add(0, [7 * index % 90 for index in range(length)])
    peak = 0
    while request.computed < length:
        count = min(chunk, length - request.computed)
        peak = max(peak, allocation_peak(lambda count=count: schedule.run([], [(request, count)])))
    schedule.release(request)
    return peak


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("chunk", [64, 256, None])
def test_the_bound_holds_for_every_chunk_size(folder, chunk, dtype):
    init = worker_init(folder, max_prefill_tokens=chunk, dtype=dtype, **SETTINGS)
    with torch.inference_mode():
        runner = start_runner(folder, max_prefill_tokens=chunk, dtype=dtype, **SETTINGS)
        model = runner.executors.model
        bound = activation_bytes(model.config, getattr(torch, dtype), init)
        length = 2048
        peak = prefill_peak(runner, length, min(chunk or length, init.max_step_tokens))
    assert held_bytes(model.workspace) + peak <= bound


def test_the_peak_of_a_chunk_does_not_grow_with_the_prompt(folder):
    with torch.inference_mode():
        runner = start_runner(folder, max_prefill_tokens=256, **SETTINGS)
        short, long = prefill_peak(runner, 512, 256), prefill_peak(runner, 2048, 256)
    # The block ids and masks of the tiles remain: bytes a token of the prompt, not kilobytes.
    assert long - short < 16 * (2048 - 512)


def test_the_bound_holds_for_decode_and_sampling(folder):
    init = worker_init(folder, max_running=64, **SETTINGS)
    with torch.inference_mode():
        runner = start_runner(folder, max_running=64, **SETTINGS)
        schedule = Schedule(runner)
        requests = [schedule.add(row, [row] * (10 + 5 * row)) for row in range(40)]
        for request in requests:
            schedule.run([], [(request, len(request.tokens))])
        step = schedule.step(requests, [])
        step.arrays["temperature"][:] = 1.0
        peak = allocation_peak(lambda: runner.run(step))
    model = runner.executors.model
    assert held_bytes(model.workspace) + peak <= activation_bytes(model.config, torch.float32, init)
