"""One small case of each operation, an implementation against the reference."""

from typing import Any

import torch

from diptych_kernels import reference
from diptych_kernels.attention import Attention, AttentionBatch
from diptych_kernels.kv_cache import KVPool, KVShape

# Largest allowed difference from the reference, for values of order one.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}


class KernelMismatchError(RuntimeError):
    """An implementation computes something else than the reference."""


def _compare(operation: str, got: torch.Tensor, want: torch.Tensor) -> None:
    difference = float((got.double() - want.double()).abs().max())
    if not difference <= TOLERANCE[want.dtype]:
        raise KernelMismatchError(
            f"kernel {operation} differs from its reference by {difference:.3g} (allowed {TOLERANCE[want.dtype]:.3g}, "
            f"dtype {want.dtype}, device {want.device}, torch {torch.__version__}): this build cannot serve with it"
        )


def _random(dtype: torch.dtype, device: torch.device, *sizes: int) -> torch.Tensor:
    # A generator of its own: the process's random state is not ours to move.
    generator = torch.Generator().manual_seed(sum(sizes))
    return torch.randn(*sizes, generator=generator).to(dtype).to(device)


def attention(implementation: Attention, dtype: torch.dtype, device: torch.device) -> None:
    """Two decode rows and two prefill chunks over scattered blocks of a pool that is NaN elsewhere."""
    pool = KVPool(KVShape(layers=1, blocks=40, block_size=4, kv_heads=2, head_dim=8), dtype, device)
    pool.storage.fill_(torch.nan)
    tables = torch.arange(1, 40, dtype=torch.int32)[torch.randperm(39, generator=torch.Generator().manual_seed(1))]
    batch = AttentionBatch(
        block_tables=tables[:36].view(4, 9),
        query_starts=torch.tensor([0, 1, 2, 9, 14], dtype=torch.int32),
        sequence_lengths=torch.tensor([3, 33, 7, 22], dtype=torch.int32),
        num_decode_rows=2,
        block_size=4,
    )
    layer = pool.layers[0]
    for row, length in enumerate(batch.sequence_lengths.tolist()):
        for position in range(length):
            where = int(batch.block_tables[row, position // 4]), position % 4
            layer.keys[where] = _random(dtype, device, 2, 8 + position).narrow(1, position, 8)
            layer.values[where] = _random(dtype, device, 2, 9 + position).narrow(1, position, 8)
    queries = _random(dtype, device, 14, 6, 8)
    results = []
    for candidate in (implementation, reference.ReferenceAttention()):
        out = torch.full_like(queries, torch.nan)
        prepared = candidate.prepare(batch, layer, heads=6)
        candidate.decode(queries, layer, prepared, 0.5, out)
        candidate.prefill(queries, layer, prepared, 0.5, out)
        results.append(out)
    _compare("attention", *results)


def write_kv(implementation: Any, dtype: torch.dtype, device: torch.device) -> None:
    """Five tokens into scattered slots."""
    keys, values = _random(dtype, device, 5, 3, 8), _random(dtype, device, 5, 3, 8)
    slots = torch.tensor([7, 0, 13, 4, 2], device=device)
    pools = [KVPool(KVShape(1, 4, 4, 3, 8), dtype, device) for _ in range(2)]
    implementation(keys, values, pools[0].layers[0], slots)
    reference.write_kv(keys, values, pools[1].layers[0], slots)
    _compare("write_kv", pools[0].storage, pools[1].storage)


def rms_norm(implementation: Any, dtype: torch.dtype, device: torch.device) -> None:
    """Three rows of the weight's dtype, and of float32."""
    weight = _random(dtype, device, 16)
    for hidden in (_random(dtype, device, 3, 16), _random(torch.float32, device, 3, 16)):
        _compare("rms_norm", implementation(hidden, weight, 1e-5), reference.rms_norm(hidden, weight, 1e-5))


def rotate(implementation: Any, dtype: torch.dtype, device: torch.device) -> None:
    """Three tokens of two heads that lie apart."""
    angles = _random(torch.float32, device, 3, 4)
    results = []
    for candidate in (implementation, reference.rotate):
        fused = _random(dtype, device, 3, 32)
        candidate(fused[:, :16].view(3, 2, 8), angles.cos(), angles.sin())
        results.append(fused)
    _compare("rotate", *results)


def silu_multiply(implementation: Any, dtype: torch.dtype, device: torch.device) -> None:
    """Three rows."""
    results = []
    for candidate in (implementation, reference.silu_multiply):
        out = torch.empty(3, 8, dtype=dtype, device=device)
        candidate(_random(dtype, device, 3, 16), out)
        results.append(out)
    _compare("silu_multiply", *results)
