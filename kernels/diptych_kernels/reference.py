"""Each operation as its definition reads, in float32: the oracle. Not for speed, and not bounded in memory."""

import torch

from diptych_kernels.attention import AttentionBatch, check_attention
from diptych_kernels.kv_cache import KVLayer


class ReferenceAttention:
    """Row by row: gather the whole sequence, repeat the KV heads, one full score matrix, softmax."""

    name = "reference"

    def prepare(self, batch: AttentionBatch, layer: KVLayer, heads: int) -> AttentionBatch:
        """Nothing to prepare."""
        return batch

    def decode(
        self, queries: torch.Tensor, layer: KVLayer, prepared: AttentionBatch, scale: float, out: torch.Tensor
    ) -> None:
        """See `Attention.decode`."""
        check_attention(queries, layer, out)
        for row in range(prepared.num_decode_rows):
            _attend_row(queries, layer, prepared, scale, out, row)

    def prefill(
        self, queries: torch.Tensor, layer: KVLayer, prepared: AttentionBatch, scale: float, out: torch.Tensor
    ) -> None:
        """See `Attention.prefill`."""
        check_attention(queries, layer, out)
        for row in range(prepared.num_decode_rows, prepared.num_rows):
            _attend_row(queries, layer, prepared, scale, out, row)


def _attend_row(
    queries: torch.Tensor, layer: KVLayer, batch: AttentionBatch, scale: float, out: torch.Tensor, row: int
) -> None:
    first, last = int(batch.query_starts[row]), int(batch.query_starts[row + 1])
    length = int(batch.sequence_lengths[row])
    positions = torch.arange(length)
    blocks = batch.block_tables[row, positions // batch.block_size].long()
    where = (blocks.to(layer.keys.device), (positions % batch.block_size).to(layer.keys.device))
    group = queries.shape[1] // layer.keys.shape[2]
    keys = layer.keys[where].float().repeat_interleave(group, dim=1)
    values = layer.values[where].float().repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", queries[first:last].float(), keys) * scale
    future = positions > (length - (last - first) + torch.arange(last - first)).unsqueeze(1)
    weights = scores.masked_fill(future.to(scores.device), -torch.inf).softmax(dim=-1)
    out[first:last] = torch.einsum("hqk,khd->qhd", weights, values).to(out.dtype)


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """hidden / root mean square × weight, over the last axis: [T, size] → [T, size] in weight's dtype."""
    wide = hidden.float()
    scaled = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + epsilon)
    return (scaled * weight.float()).to(weight.dtype)


def rotate(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> None:
    """Turns each pair (i, i + head_dim / 2) of [T, heads, head_dim] by its angle, in place; angles [T, …]."""
    first, second = heads.float().chunk(2, dim=-1)
    cosine, sine = cosine.unsqueeze(1), sine.unsqueeze(1)
    heads.copy_(torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1))


def silu_multiply(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """silu(gate) × up of [T, 2 × size] into out [T, size]; gate_up may be used as scratch."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    out.copy_(gate * torch.sigmoid(gate) * up)


def write_kv(keys: torch.Tensor, values: torch.Tensor, layer: KVLayer, slots: torch.Tensor) -> None:
    """Token by token into its block and offset."""
    block_size = layer.keys.shape[1]
    for token, slot in enumerate(slots.tolist()):
        layer.keys[slot // block_size, slot % block_size] = keys[token]
        layer.values[slot // block_size, slot % block_size] = values[token]
