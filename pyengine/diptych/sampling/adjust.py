"""Penalties, masks and logit bias, applied where they bear and nowhere else: no table of rows × vocabulary."""

from collections.abc import Mapping

import numpy as np
import torch

from diptych.sampling.parameters import SamplingRows


def _entries(lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For records of these lengths laid end to end: the record of each entry, and its index within the record."""
    owner = torch.repeat_interleave(torch.arange(lengths.shape[0], device=lengths.device), lengths)
    starts = lengths.cumsum(0) - lengths
    return owner, torch.arange(owner.shape[0], device=lengths.device) - starts[owner]


def apply_penalties(logits: torch.Tensor, rows: SamplingRows) -> None:
    """Repetition over prompt and output, then frequency and presence over output, in place on logits [S, V] float32.

    The history comes from the token ids in the side data, never from what was computed this time. Ids outside the
    vocabulary are filler and count for nothing.
    """
    active = (rows.penalty_offset >= 0).nonzero().flatten()
    if active.numel() == 0:
        return
    vocabulary = logits.shape[1]
    offsets = rows.penalty_offset[active].long()
    prompt_lengths, output_lengths = rows.side[offsets].long(), rows.side[offsets + 1].long()
    owner, index = _entries(prompt_lengths + output_lengths)
    ids = rows.side[offsets[owner] + 2 + index].long()
    real = (ids >= 0) & (ids < vocabulary)
    generated = (index >= prompt_lengths[owner])[real].float()
    places, inverse = torch.unique((owner * vocabulary + ids)[real], return_inverse=True)
    counts = torch.zeros(places.shape[0], device=logits.device).index_add_(0, inverse, generated)
    row, token = active[places // vocabulary], places % vocabulary
    values, repetition = logits[row, token], rows.repetition_penalty[row]
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= rows.frequency_penalty[row] * counts + rows.presence_penalty[row] * (counts > 0)
    logits[row, token] = values


def apply_masks(logits: torch.Tensor, masks: Mapping[int, bytes | None]) -> None:
    """Ids that a row's mask does not allow get -inf, in place on logits [S, V]; rows without one stay as they are."""
    vocabulary = logits.shape[1]
    for row, mask in masks.items():
        if mask is not None:
            bits = np.unpackbits(np.frombuffer(mask, dtype=np.uint8), count=vocabulary, bitorder="little")
            allowed = torch.from_numpy(bits).to(logits.device, torch.bool)
            logits[row].masked_fill_(~allowed, -torch.inf)


def apply_bias(logits: torch.Tensor, rows: SamplingRows) -> None:
    """Adds each row's bias in place on logits [S, V] float32. Raises ValueError for an id outside the vocabulary."""
    active = (rows.bias_offset >= 0).nonzero().flatten()
    if active.numel() == 0:
        return
    offsets = rows.bias_offset[active].long()
    counts = rows.side[offsets].long()
    owner, index = _entries(counts)
    ids = rows.side[offsets[owner] + 1 + index].long()
    if bool(((ids < 0) | (ids >= logits.shape[1])).any()):
        raise ValueError(f"logit bias for ids {ids.tolist()}: the vocabulary has {logits.shape[1]}")
    values = rows.side[offsets[owner] + 1 + counts[owner] + index].contiguous().view(torch.float32)
    logits.index_put_((active[owner], ids), values, accumulate=True)
