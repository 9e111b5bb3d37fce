"""The paged KV cache: its layout, and writing into it.

Logical shape of a layer's keys, and of its values: [blocks, block_size, kv_heads, head_dim]. Slot s of a token is
block s // block_size, offset s % block_size. In memory the KV head is the outermost axis,

    [kv_heads, blocks, block_size, head_dim]

so that gathering any blocks of all heads gives one contiguous batch of [tile, head_dim] matrices, which a batched
matrix product reads as it is, in prefill (one sequence) and in decode (many) alike.
"""

from typing import NamedTuple

import torch

from diptych_kernels.checks import KernelInputError, describe, require_dtype, require_shape, require_strides


class KVLayer(NamedTuple):
    """One layer's cache: two views [blocks, block_size, kv_heads, head_dim] of the pool."""

    keys: torch.Tensor
    values: torch.Tensor


class KVShape(NamedTuple):
    """Sizes of a pool."""

    layers: int
    blocks: int
    block_size: int
    kv_heads: int
    head_dim: int

    def bytes_per_block(self, dtype: torch.dtype) -> int:
        """Bytes of one block over all layers, keys and values."""
        return 2 * self.layers * self.block_size * self.kv_heads * self.head_dim * dtype.itemsize


class KVPool:
    """All layers' caches in one allocation, written throughout when made, so that its pages are really there.

    `storage` is [layers, 2, kv_heads, blocks, block_size, head_dim].
    """

    def __init__(self, shape: KVShape, dtype: torch.dtype, device: torch.device) -> None:
        sizes = (shape.layers, 2, shape.kv_heads, shape.blocks, shape.block_size, shape.head_dim)
        self.shape = shape
        self.storage = torch.empty(sizes, dtype=dtype, device=device).zero_()
        logical = self.storage.permute(0, 1, 3, 4, 2, 5)
        self.layers = [KVLayer(logical[layer, 0], logical[layer, 1]) for layer in range(shape.layers)]

    def copy_blocks(self, sources: torch.Tensor, destinations: torch.Tensor) -> None:
        """Copies whole blocks, all layers and heads. [C] int64 each; destinations distinct and no sources."""
        if sources.numel():
            device = self.storage.device
            copied = self.storage.index_select(3, sources.to(device))
            self.storage.index_copy_(3, destinations.to(device), copied)


def heads_major(name: str, cache: torch.Tensor) -> torch.Tensor:
    """The view [kv_heads, blocks, block_size, head_dim] of a layer's keys or values; refuses any other memory order."""
    require_shape(name, cache, (None, None, None, None))
    blocks, block_size, _, head_dim = cache.shape
    require_strides(name, cache, (block_size * head_dim, head_dim, blocks * block_size * head_dim, 1))
    return cache.permute(2, 0, 1, 3)


def check_write(keys: torch.Tensor, values: torch.Tensor, layer: KVLayer, slots: torch.Tensor) -> None:
    """Refuses what `write_kv` does not take."""
    _, _, kv_heads, head_dim = layer.keys.shape
    require_dtype("slots", slots, torch.int64)
    require_shape("slots", slots, (None,))
    for name, tensor in (("keys", keys), ("values", values)):
        require_dtype(name, tensor, layer.keys.dtype)
        require_shape(name, tensor, (slots.shape[0], kv_heads, head_dim))
        require_strides(name, tensor, (None, head_dim, 1))
    if layer.keys.shape != layer.values.shape or layer.keys.dtype != layer.values.dtype:
        raise KernelInputError(f"key cache ({describe(layer.keys)}) and value cache ({describe(layer.values)}) differ")


def write_kv(keys: torch.Tensor, values: torch.Tensor, layer: KVLayer, slots: torch.Tensor) -> None:
    """Writes the keys and values of T tokens into their slots.

    keys, values: [T, kv_heads, head_dim] in the cache's dtype, token rows may lie apart (a view of a fused
    projection); slots: [T] int64, bounds checked by torch, distinct except for padding.
    """
    check_write(keys, values, layer, slots)
    for name, source, cache in (("key cache", keys, layer.keys), ("value cache", values, layer.values)):
        heads_major(name, cache).flatten(1, 2).index_copy_(1, slots, source.transpose(0, 1))
