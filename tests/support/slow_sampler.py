"""The sampling conventions, one row and one id at a time in Python: slow, and obviously right."""

import math
import struct
from dataclasses import dataclass, field

import torch

from diptych.sampling.parameters import SamplingRows

MASK = 0xFFFFFFFF


def philox_words(counter, key):
    """Philox 4×32-10 with Python's unbounded integers."""
    x, k = list(counter), list(key)
    for _ in range(10):
        first, second = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [(second >> 32) ^ x[1] ^ k[0], second & MASK, (first >> 32) ^ x[3] ^ k[1], first & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return x


def uniform_number(seed, output_index, choice_index):
    words = philox_words((output_index, choice_index, 0, 0), (seed & MASK, (seed >> 32) & MASK))
    return ((words[0] >> 5) * 2**26 + (words[1] >> 6)) / 2**53


@dataclass
class Row:
    """One sampling row; penalty history as two lists of ids, None for no record."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    output_index: int = 0
    choice_index: int = 0
    prompt: list[int] | None = None
    output: list[int] = field(default_factory=list)
    bias: dict[int, float] = field(default_factory=dict)


def narrow(value):
    """The nearest float32."""
    return struct.unpack("f", struct.pack("f", value))[0]


def float32(value):
    return torch.tensor(value, dtype=torch.float32)


def adjusted_logits(logits, row):
    """Penalties, then bias, in float32."""
    out = logits.clone()
    if row.prompt is not None:
        for token in {token for token in row.prompt + row.output if 0 <= token < len(out)}:
            repetition = float32(row.repetition_penalty)
            out[token] = out[token] / repetition if out[token] > 0 else out[token] * repetition
            count = float32(float(row.output.count(token)))
            presence = float32(row.presence_penalty) * (1.0 if token in row.output else 0.0)
            out[token] = out[token] - (float32(row.frequency_penalty) * count + presence)
    for token, value in row.bias.items():
        out[token] = out[token] + float32(value)
    return out


def slow_sample(logits, row):
    """logits [V] float32 → (id, kept ids in order); None for a row that is not a number."""
    values = adjusted_logits(logits, row).tolist()
    peak = max(values, default=0.0)
    if any(math.isnan(value) for value in values) or not math.isfinite(peak):
        return None
    order = sorted(range(len(values)), key=lambda token: (-values[token], token))
    temperature = narrow(row.temperature)
    if temperature < narrow(1e-5):
        return order[0], order[:1]
    weights = {token: math.exp((values[token] - peak) / temperature) for token in order}
    kept = order[: row.top_k] if 0 < row.top_k < len(order) else order
    if row.top_p < 1.0:
        reach, total, count = narrow(row.top_p) * sum(weights[token] for token in kept), 0.0, 0
        while count < len(kept) and total < reach:
            total += weights[kept[count]]
            count += 1
        kept = kept[: max(count, 1)]
    kept = [token for token in kept if weights[token] >= narrow(row.min_p)] or kept[:1]
    target = uniform_number(row.seed, row.output_index, row.choice_index) * sum(weights[token] for token in kept)
    total = 0.0
    for token in kept:
        total += weights[token]
        if total > target:
            return token, kept
    return [token for token in kept if weights[token] > 0][-1], kept


def sampling_rows(rows):
    """The rows as the worker gets them, side data included."""
    side: list[int] = []
    penalties, biases = [], []
    for row in rows:
        penalties.append(-1 if row.prompt is None else len(side))
        if row.prompt is not None:
            side += [len(row.prompt), len(row.output), *row.prompt, *row.output]
        biases.append(len(side) if row.bias else -1)
        if row.bias:
            bits = [struct.unpack("i", struct.pack("f", value))[0] for value in row.bias.values()]
            side += [len(row.bias), *row.bias, *bits]
    names = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
    tensors = {name: torch.tensor([getattr(row, name) for row in rows], dtype=torch.float32) for name in names}
    for name in ("top_k", "output_index", "choice_index"):
        tensors[name] = torch.tensor([getattr(row, name) for row in rows], dtype=torch.int32)
    seeds = [row.seed - 2**64 if row.seed >= 2**63 else row.seed for row in rows]
    return SamplingRows(
        seed=torch.tensor(seeds, dtype=torch.int64),
        penalty_offset=torch.tensor(penalties, dtype=torch.int32),
        bias_offset=torch.tensor(biases, dtype=torch.int32),
        side=torch.tensor(side, dtype=torch.int32),
        **tensors,
    )
