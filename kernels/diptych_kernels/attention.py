"""Paged causal attention: the rows of a step, and what an implementation offers.

A step has R rows. Row r brings the queries query_starts[r]:query_starts[r + 1], which are the last tokens of a sequence
of sequence_lengths[r] tokens whose keys and values, this step's included, lie in the cache blocks block_tables[r].
The first num_decode_rows rows bring one query each and go to `decode`, the others to `prefill`: two functions for two
limits (bytes, arithmetic) over one interface.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from diptych_kernels.checks import KernelInputError, describe, require_dtype, require_shape, require_strides
from diptych_kernels.kv_cache import KVLayer


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """The rows of one step, on the host.

    block_tables [R, any] int32; query_starts [R + 1] int32; sequence_lengths [R] int32.
    Raises KernelInputError where they contradict each other.
    """

    block_tables: torch.Tensor
    query_starts: torch.Tensor
    sequence_lengths: torch.Tensor
    num_decode_rows: int
    block_size: int

    def __post_init__(self) -> None:
        rows = self.sequence_lengths.shape[0]
        for name, tensor, shape in (
            ("block_tables", self.block_tables, (rows, None)),
            ("query_starts", self.query_starts, (rows + 1,)),
            ("sequence_lengths", self.sequence_lengths, (rows,)),
        ):
            require_dtype(name, tensor, torch.int32)
            require_shape(name, tensor, shape)
            if tensor.device.type != "cpu":
                raise KernelInputError(f"{name} must be on the host, got {describe(tensor)}")
        counts = self.query_starts.diff()
        decode = self.num_decode_rows
        if not 0 <= decode <= rows or bool((counts[:decode] != 1).any()):
            raise KernelInputError(f"{decode} decode rows of {rows} do not have one query each: {counts.tolist()}")
        if bool((counts < 1).any()) or bool((counts > self.sequence_lengths).any()):
            lengths = self.sequence_lengths.tolist()
            raise KernelInputError(f"each row needs 1..sequence_length queries, got {counts.tolist()} of {lengths}")
        room = self.block_tables.shape[1] * self.block_size
        if rows and int(self.sequence_lengths.max()) > room:
            raise KernelInputError(f"sequence of {int(self.sequence_lengths.max())} tokens exceeds its table: {room}")

    @property
    def num_rows(self) -> int:
        """R."""
        return self.sequence_lengths.shape[0]

    @property
    def num_tokens(self) -> int:
        """Queries of all rows."""
        return int(self.query_starts[-1])


class Attention(Protocol):
    """An implementation. `prepare` runs once a step, the other two once a layer.

    queries, out: [T, heads, head_dim] in the cache's dtype, heads a multiple of the KV heads (query head h reads KV
    head h // (heads // kv_heads)); out is contiguous. Scores, softmax and sums are float32. What follows a sequence's
    end in its last block may hold anything, NaN included.
    """

    name: str

    def prepare(self, batch: AttentionBatch, layer: KVLayer, heads: int) -> Any:
        """What every layer of this step shares; `layer` is any layer, for its sizes and device."""

    def decode(self, queries: torch.Tensor, layer: KVLayer, prepared: Any, scale: float, out: torch.Tensor) -> None:
        """Attention of the decode rows, into the same places of `out`."""

    def prefill(self, queries: torch.Tensor, layer: KVLayer, prepared: Any, scale: float, out: torch.Tensor) -> None:
        """Attention of the other rows, into the same places of `out`."""


def check_attention(queries: torch.Tensor, layer: KVLayer, out: torch.Tensor) -> None:
    """Refuses queries and outputs that do not fit the cache."""
    _, _, kv_heads, head_dim = layer.keys.shape
    require_shape("queries", queries, (None, None, head_dim))
    tokens, heads, _ = queries.shape
    if heads % kv_heads:
        raise KernelInputError(f"{heads} query heads are no multiple of {kv_heads} KV heads: {describe(queries)}")
    require_dtype("queries", queries, layer.keys.dtype)
    require_strides("queries", queries, (None, head_dim, 1))
    require_dtype("out", out, layer.keys.dtype)
    require_shape("out", out, (tokens, heads, head_dim))
    require_strides("out", out, (heads * head_dim, head_dim, 1))
    require_dtype("value cache", layer.values, layer.keys.dtype)
    require_shape("value cache", layer.values, tuple(layer.keys.shape))
