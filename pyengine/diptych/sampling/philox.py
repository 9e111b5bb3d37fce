"""Philox 4×32-10: a random number is a function of a key and a counter, so streams survive anything.

J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. torch has no unsigned 32-bit arithmetic, so
words live in int64 tensors and products are cut in two before they overflow.
"""

import torch

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
ROUNDS = 10


def _multiply(constant: int, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low 32 bits of constant × words, exactly."""
    low = words & 0xFFFF
    high = words >> 16
    # Each partial product is below 2^48.
    partial_low = constant * low
    partial = constant * high + (partial_low >> 16)
    return partial >> 16, ((partial << 16) | (partial_low & 0xFFFF)) & _MASK


def philox(counter: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Four random words per row: counter [n, 4], key [n, 2] → [n, 4]; int64 tensors of values below 2^32."""
    x0, x1, x2, x3 = counter.unbind(1)
    k0, k1 = key.unbind(1)
    for _ in range(ROUNDS):
        high0, low0 = _multiply(_MULTIPLIERS[0], x0)
        high1, low1 = _multiply(_MULTIPLIERS[1], x2)
        x0, x1, x2, x3 = high1 ^ x1 ^ k0, low1, high0 ^ x3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return torch.stack((x0, x1, x2, x3), dim=1)


def uniform(seed: torch.Tensor, output_index: torch.Tensor, choice_index: torch.Tensor) -> torch.Tensor:
    """One number in [0, 1) per row, float64, a multiple of 2^-53.

    seed [n] int64 (the bits of an unsigned number), output_index and choice_index [n]. Key: the seed's low and high
    word; counter: (output index, choice index, 0, 0); number: the upper 27 bits of word 0 over the upper 26 of word 1.
    """
    key = torch.stack((seed & _MASK, (seed >> 32) & _MASK), dim=1)
    zero = torch.zeros_like(seed)
    counter = torch.stack((output_index.long(), choice_index.long(), zero, zero), dim=1)
    words = philox(counter, key)
    return ((words[:, 0] >> 5) * (1 << 26) + (words[:, 1] >> 6)).double() * 2.0**-53
