"""Philox 4×32-10 against the known answers published with Random123, and the mapping to [0, 1)."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from slow_sampler import philox_words, uniform_number

from diptych.sampling.philox import philox, uniform

WORD = st.integers(0, 2**32 - 1)
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers_of_random123(counter, key, answer):
    assert philox(torch.tensor([counter]), torch.tensor([key])).tolist() == [list(answer)]


@given(st.lists(st.tuples(WORD, WORD, WORD, WORD, WORD, WORD), min_size=1, max_size=8))
def test_words_equal_unbounded_integer_arithmetic(rows):
    got = philox(torch.tensor([row[:4] for row in rows]), torch.tensor([row[4:] for row in rows]))
    assert got.tolist() == [philox_words(row[:4], row[4:]) for row in rows]


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**31 - 1), st.integers(0, 127))
def test_a_number_is_a_function_of_seed_output_and_choice(seed, output, choice):
    signed = seed - 2**64 if seed >= 2**63 else seed
    got = uniform(torch.tensor([signed]), torch.tensor([output]).int(), torch.tensor([choice]).int())
    assert got.dtype == torch.float64
    assert got.item() == uniform_number(seed, output, choice)


def test_numbers_are_spread_over_the_unit_interval():
    many = torch.arange(100_000)
    numbers = uniform(torch.full_like(many, 42), many, torch.zeros_like(many))
    assert float(numbers.min()) >= 0.0 and float(numbers.max()) < 1.0
    counts = torch.histc(numbers, bins=20, min=0.0, max=1.0)
    # Chi-square with 19 degrees of freedom: 43.8 is exceeded once in a thousand.
    assert float(((counts - 5000).square() / 5000).sum()) < 43.8
