"""The native sampler against the slow one and the batched one."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from sampling_cases import BATCH, INF, NAN
from slow_sampler import Row, sampling_rows, slow_sample

from diptych.sampling.sampler import log_probabilities, sample
from diptych_core import kernels

PLAIN = ("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")


def described(row):
    found = {name: getattr(row, name) for name in (*PLAIN, "seed", "output_index", "choice_index")}
    words = [[token & 0xFFFFFFFF for token in tokens] for tokens in (row.prompt or [], row.output)]
    found["history"] = None if row.prompt is None else words
    found["bias"] = [list(row.bias), list(row.bias.values())] if row.bias else None
    return found


def run(logits, rows, instruction_set=None):
    """(id, status) of each row."""
    array = np.asarray(logits, dtype=np.float32)
    options = {"vocabulary": array.shape[1], "instruction_set": instruction_set, "rows": [described(r) for r in rows]}
    status, ids, _ = kernels.sample(array.reshape(-1), json.dumps(options).encode())
    return list(zip(list(memoryview(ids)), list(memoryview(status)), strict=True))


@pytest.mark.parametrize("name", kernels.instruction_sets())
@given(batch=BATCH)
def test_every_row_equals_the_slow_sampler(name, batch):
    logits, rows = [part for part, _ in batch], [row for _, row in batch]
    found = [slow_sample(torch.tensor(part, dtype=torch.float32), row) for part, row in batch]
    assert run(logits, rows, name) == [(0, 1) if one is None else (one[0], 0) for one in found]


@pytest.mark.parametrize("name", kernels.instruction_sets())
def test_log_probabilities_equal_the_batched_samplers(name):
    generator = torch.Generator().manual_seed(6)
    logits = torch.randn(12, 3000, generator=generator) * 4
    rows = [
        Row(temperature=[0.0, 2.0][index % 2], seed=index, prompt=[5, 6], output=[7, 7], repetition_penalty=1.5)
        for index in range(12)
    ]
    options = {"vocabulary": 3000, "instruction_set": name, "rows": [described(row) for row in rows]}
    _, ids, found = kernels.sample(logits.numpy().reshape(-1), json.dumps(options).encode())
    expected_ids, _ = sample(logits.clone(), sampling_rows(rows))
    assert list(memoryview(ids)) == expected_ids.tolist()
    expected = log_probabilities(logits, expected_ids)
    plain = torch.log_softmax(logits.double(), dim=-1).gather(1, expected_ids.long().unsqueeze(1)).squeeze(1)
    assert torch.allclose(expected.double(), plain, atol=1e-6)
    assert np.allclose(np.asarray(memoryview(found)), expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("name", kernels.instruction_sets())
def test_large_vocabularies_equal_the_batched_sampler(name):
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(60, 5000, generator=generator) * 2
    rows = [
        Row(
            temperature=[0.3, 1.0, 3.0, 50.0][index % 4],
            top_k=[0, 700, 40][index % 3],
            top_p=[1.0, 0.99, 0.5][index // 2 % 3],
            min_p=[0.0, 0.05][index // 5 % 2],
            prompt=None if index % 7 else list(range(0, 5000, 3)),
            output=[1, 2, 2, 2],
            repetition_penalty=1.2,
            frequency_penalty=0.3,
            seed=index,
        )
        for index in range(60)
    ]
    ids, status = sample(logits.clone(), sampling_rows(rows))
    assert run(logits.numpy(), rows, name) == list(zip(ids.tolist(), status.tolist(), strict=True))


@pytest.mark.parametrize("bad", [[NAN] * 20, [1.0] * 19 + [NAN], [1.0, INF] * 10, [-INF] * 20])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_a_number_fails_alone(bad, temperature):
    good = [0.5, 1.0, -3.0, 2.0] * 5
    row = Row(temperature=temperature, seed=11)
    alone = run([good], [row])[0]
    assert run([good, bad, good], [row] * 3) == [alone, (0, 1), alone]


def test_arrays_of_another_length_are_refused():
    options = {"vocabulary": 4, "instruction_set": None, "rows": [described(Row())]}
    with pytest.raises(kernels.KernelOptionsError, match="logits has 3 values, the options ask for 4"):
        kernels.sample(np.zeros(3, dtype=np.float32), json.dumps(options).encode())
