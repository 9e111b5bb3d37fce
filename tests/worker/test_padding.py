"""Rows of 16-bit products are padded on CPU; nobody reads the padding, and few shapes are ever compiled."""

import pytest
import torch
from worker_rig import Schedule, start_runner, write_random_llama

from diptych.models.llama import padded_rows

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("rows", "padded"),
    [(1, 1), (3, 4), (9, 16), (33, 48), (256, 256), (257, 320), (512, 512), (513, 768), (4000, 4096)],
)
def test_sixteen_bit_rows_are_padded_on_cpu_only(rows, padded):
    assert padded_rows(rows, torch.bfloat16, CPU) == padded
    assert padded_rows(rows, torch.float32, CPU) == rows
    assert padded_rows(rows, torch.bfloat16, CUDA) == rows


def test_few_shapes_are_ever_compiled_and_none_wastes_more_than_half():
    shapes = {padded_rows(rows, torch.bfloat16, CPU) for rows in range(1, 8193)}
    assert len(shapes) == 18 + (8192 - 512) // 256
    assert all(padded_rows(rows, torch.bfloat16, CPU) <= max(2 * rows, 16) for rows in range(1, 8193))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_stands_in_the_padding_changes_nothing(tmp_path, dtype):
    write_random_llama(tmp_path)
    runner = start_runner(tmp_path, dtype=dtype)
    prompts = [list(range(5)), list(range(20, 33)), list(range(40, 59))]
    with torch.inference_mode():
        wanted = Schedule(runner).generate(prompts, 8, 11)
        for buffer in vars(runner.executors.model.workspace).values():
            buffer.fill_(torch.nan)
        runner.executors.pool.storage.fill_(torch.nan)
        assert Schedule(runner).generate(prompts, 8, 11) == wanted
