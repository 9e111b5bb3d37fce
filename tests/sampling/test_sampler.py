"""The batched sampler against the slow one, and the cases in which samplers are known to go wrong."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sampling_cases import BATCH, INF, NAN
from slow_sampler import Row, sampling_rows, slow_sample

from diptych.sampling import sampler
from diptych.sampling.sampler import likeliest, sample


def run(logits, rows):
    ids, status = sample(torch.tensor(logits, dtype=torch.float32), sampling_rows(rows))
    return list(zip(ids.tolist(), status.tolist(), strict=True))


def expected(logits, row):
    found = slow_sample(torch.tensor(logits, dtype=torch.float32), row)
    return (0, 1) if found is None else (found[0], 0)


@given(BATCH)
def test_every_row_equals_the_slow_sampler(batch):
    logits, rows = [part for part, _ in batch], [row for _, row in batch]
    assert run(logits, rows) == [expected(*part) for part in batch]


@pytest.mark.parametrize("candidates", [1, 3, 8])
@given(batch=BATCH)
def test_the_number_of_first_candidates_changes_nothing(candidates, batch):
    logits, rows = [part for part, _ in batch], [row for _, row in batch]
    whole = run(logits, rows)
    before = sampler.FIRST_CANDIDATES
    sampler.FIRST_CANDIDATES = candidates
    try:
        assert run(logits, rows) == whole
    finally:
        sampler.FIRST_CANDIDATES = before


@given(BATCH, st.randoms())
def test_a_batch_equals_its_rows_one_by_one_in_any_order(batch, random):
    alone = [run([logits], [row])[0] for logits, row in batch]
    order = list(range(len(batch)))
    random.shuffle(order)
    assert run([batch[i][0] for i in order], [batch[i][1] for i in order]) == [alone[i] for i in order]


def test_large_vocabularies_equal_the_slow_sampler_on_both_paths():
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(40, 5000, generator=generator) * 2
    rows = [
        Row(temperature=[0.3, 1.0, 3.0, 50.0][i % 4], top_k=[0, 700, 40][i % 3], top_p=[1.0, 0.99][i % 2], seed=i)
        for i in range(40)
    ]
    ids, _ = sample(logits.clone(), sampling_rows(rows))
    assert ids.tolist() == [slow_sample(part, row)[0] for part, row in zip(logits, rows, strict=True)]
    one_by_one = [int(sample(logits[i : i + 1].clone(), sampling_rows([rows[i]]))[0]) for i in range(40)]
    assert ids.tolist() == one_by_one


def kept_by(logits, row, draws=400):
    """Ids that turn up in many draws."""
    rows = [replace(row, seed=seed) for seed in range(draws)]
    return {token for token, _ in run([logits] * draws, rows)}


@pytest.mark.parametrize(
    ("logits", "row", "kept"),
    [
        ([1.0, 2.0, 2.0, 2.0, 3.0], Row(top_k=3), {4, 1, 2}),
        ([0.0] * 6, Row(top_k=2), {0, 1}),
        ([0.0] * 6, Row(top_k=1), {0}),
        ([0.0] * 4, Row(top_p=0.5), {0, 1}),
        ([0.0] * 4, Row(top_p=0.51), {0, 1, 2}),
        ([0.0] * 4, Row(top_p=1e-6), {0}),
        ([0.0, 0.0, -1.0], Row(min_p=1.0), {0, 1}),
        ([-0.0, 0.0, 0.0], Row(top_k=2), {0, 1}),
    ],
)
def test_ties_and_exact_boundaries_keep_the_same_set_in_every_batch(logits, row, kept):
    assert kept_by(logits, row) == kept
    assert {run([logits], [replace(row, seed=seed)])[0][0] for seed in range(100)} == kept
    assert set(slow_sample(torch.tensor(logits), row)[1]) == kept


@pytest.mark.parametrize("temperature", [0.0, -0.0, *[10.0**-power for power in range(3, 21)]])
def test_tiny_temperatures_are_greedy_and_finite(temperature):
    logits = [3.0e4, 2.9e4, -INF, 3.0e4 - 1.0]
    assert run([logits], [Row(temperature=temperature, seed=3)]) == [(0, 0)]


def test_greedy_and_top_k_of_one_take_the_lowest_of_equal_ids():
    logits = [1.0, 5.0, 5.0, 5.0]
    for row in (Row(temperature=0.0), Row(top_k=1), Row(top_p=1e-6), Row(temperature=1e-6)):
        assert run([logits] * 3, [row] * 3) == [(1, 0)] * 3


@pytest.mark.parametrize("bad", [[NAN] * 4, [1.0, NAN, 2.0, 3.0], [1.0, INF, 2.0, 3.0], [-INF] * 4])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_a_number_fails_alone(bad, temperature):
    good = [0.5, 1.0, -3.0, 2.0]
    row = Row(temperature=temperature, seed=11)
    alone = run([good], [row])[0]
    assert run([good, bad, good, good], [row] * 4) == [alone, (0, 1), alone, alone]


def test_filler_ids_penalise_nobody():
    """Histories of other lengths, padded with ids outside the vocabulary."""
    logits = torch.zeros(3, 8)
    logits[:, 0] = logits[:, 6] = logits[:, 7] = 1.0
    filler = [-1, -100, 8, 1000]
    rows = [
        Row(temperature=0.0, prompt=[], output=[], repetition_penalty=1.5),
        Row(temperature=0.0, prompt=[3, *filler], output=[*filler], repetition_penalty=1.5, presence_penalty=2.0),
        Row(temperature=0.0, prompt=[*filler, *([4] * 50)], output=[4], frequency_penalty=2.0),
    ]
    ids, status = sample(logits, sampling_rows(rows))
    assert ids.tolist() == [0, 0, 0]
    assert status.tolist() == [0, 0, 0]
    for token in (0, 6, 7):
        assert logits[:, token].tolist() == [1.0, 1.0, 1.0]
    assert logits[2, 4].item() == -2.0


def test_one_number_per_token_whatever_else_is_in_the_batch():
    logits = [0.1 * i for i in range(20)]
    row = Row(temperature=1.0, seed=77)
    ids = [run([logits], [replace(row, output_index=i)])[0][0] for i in range(30)]
    assert len(set(ids)) > 5
    again = run([logits] * 30, [replace(row, output_index=i) for i in range(30)])
    assert [token for token, _ in again] == ids


def test_a_bias_outside_the_vocabulary_raises():
    with pytest.raises(ValueError, match="logit bias for ids \\[9\\]: the vocabulary has 4"):
        run([[0.0] * 4], [Row(bias={9: 1.0})])


def test_probabilities_are_those_of_the_softmax():
    logits = [0.0, 1.0, 2.0, -1.0]
    wanted = torch.tensor(logits).div(0.7).softmax(0) * 8000
    ids = torch.tensor(
        [token for token, _ in run([logits] * 8000, [Row(temperature=0.7, seed=i) for i in range(8000)])]
    )
    counts = torch.bincount(ids, minlength=4)
    # Chi-square with 3 degrees of freedom: 16.3 is exceeded once in a thousand.
    assert float(((counts - wanted).square() / wanted).sum()) < 16.3


def test_the_likeliest_ids_are_in_order_and_have_their_log_probabilities():
    logits = torch.randn(500, generator=torch.Generator().manual_seed(3)).round(decimals=1)
    ids, logprobs = likeliest(logits, 40)
    expected = sorted(range(500), key=lambda token: (-logits[token].item(), token))[:40]
    assert ids.tolist() == expected
    plain = torch.log_softmax(logits.double(), dim=-1)[expected]
    assert torch.allclose(logprobs.double(), plain, atol=1e-6)
