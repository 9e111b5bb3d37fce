"""Native attention over a paged cache against the reference, each cache on each instruction set."""

import json
import random

import numpy as np
import pytest
import torch

from diptych_core import kernels
from diptych_kernels import reference
from diptych_kernels.attention import AttentionBatch
from diptych_kernels.kv_cache import KVPool, KVShape

SETS = kernels.instruction_sets()
KV_HEADS = 2
FREQUENCIES = [0.5, 0.25, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003]
CACHES = [
    ("float32", "float32", 2e-6),
    ("bfloat16", "float32", 4e-3),
    ("bfloat16", "bfloat16", 8e-3),
    ("float16", "float32", 6e-4),
    ("int8", "float32", 1e-2),
    ("int8", "bfloat16", 1.5e-2),
]


class Case:
    """Sequences prefilled but for a few tokens in one step, then two steps that decode and prefill."""

    def __init__(self, lengths, *, block_size=16, head_dim=16, heads=6, seed=0):
        self.block_size, self.head_dim, self.heads = block_size, head_dim, heads
        draw = random.Random(seed)
        stride = -(-max(lengths) // block_size)
        blocks = list(range(1, stride * len(lengths) + 1))
        draw.shuffle(blocks)
        self.tables = np.array(blocks, dtype=np.int32).reshape(len(lengths), stride)
        self.num_blocks = len(blocks) + 1
        self.plans = []
        first = [max(1, length - 2 - 3 * (index % 2)) for index, length in enumerate(lengths)]
        self.add([(row, 0, count) for row, count in enumerate(first)], 0)
        decode = [row for row, length in enumerate(lengths) if first[row] + 2 == length]
        rest = [row for row, length in enumerate(lengths) if first[row] + 2 < length]
        for step in (0, 1):
            parts = [(row, first[row] + step, 1) for row in decode]
            for row in rest:
                middle = (lengths[row] + first[row]) // 2
                parts.append(
                    (row, *((first[row], middle - first[row]) if step == 0 else (middle, lengths[row] - middle)))
                )
            self.add([part for part in parts if part[2] > 0], len(decode))
        tokens = sum(len(plan["positions"]) for plan in self.plans)
        width = (heads + 2 * KV_HEADS) * head_dim
        self.qkv = np.random.default_rng(seed).standard_normal((tokens, width)).astype(np.float32)

    def add(self, parts, num_decode_rows):
        positions = [position for _, start, count in parts for position in range(start, start + count)]
        owners = [row for row, _, count in parts for _ in range(count)]
        slots = [
            int(self.tables[row, at // self.block_size]) * self.block_size + at % self.block_size
            for row, at in zip(owners, positions, strict=True)
        ]
        self.plans.append(
            {
                "positions": positions,
                "slots": slots,
                "rows": [row for row, _, _ in parts],
                "query_starts": [0, *np.cumsum([count for _, _, count in parts]).tolist()],
                "sequence_lengths": [start + count for _, start, count in parts],
                "num_decode_rows": num_decode_rows,
            }
        )

    def native(self, kv, arithmetic, instruction_set, steps=None):
        options = {
            "heads": self.heads,
            "kv_heads": KV_HEADS,
            "head_dim": self.head_dim,
            "block_size": self.block_size,
            "num_blocks": self.num_blocks,
            "kv": kv,
            "arithmetic": arithmetic,
            "instruction_set": instruction_set,
            "frequencies": FREQUENCIES[: self.head_dim // 2],
            "scale": self.head_dim**-0.5,
            "tables": self.tables.reshape(-1).tolist(),
            "table_stride": self.tables.shape[1],
            "steps": self.plans,
        }
        found = kernels.attention(self.qkv.reshape(-1), json.dumps(options).encode())
        return np.frombuffer(found, dtype=np.float32).reshape(len(self.qkv), self.heads, self.head_dim)

    def reference(self):
        pool = KVPool(
            KVShape(1, self.num_blocks, self.block_size, KV_HEADS, self.head_dim), torch.float32, torch.device("cpu")
        )
        pool.storage.fill_(torch.nan)
        attention, layer, outs, done = reference.ReferenceAttention(), pool.layers[0], [], 0
        frequencies = torch.tensor(FREQUENCIES[: self.head_dim // 2])
        for plan in self.plans:
            count = len(plan["positions"])
            qkv = torch.from_numpy(self.qkv[done : done + count].copy()).view(count, -1, self.head_dim)
            done += count
            angles = torch.tensor(plan["positions"]).float().unsqueeze(1) * frequencies
            turned = qkv[:, : self.heads + KV_HEADS]
            reference.rotate(turned, angles.cos(), angles.sin())
            keys, values = turned[:, self.heads :], qkv[:, self.heads + KV_HEADS :]
            reference.write_kv(keys, values, layer, torch.tensor(plan["slots"]))
            batch = AttentionBatch(
                block_tables=torch.from_numpy(self.tables[plan["rows"]]),
                query_starts=torch.tensor(plan["query_starts"], dtype=torch.int32),
                sequence_lengths=torch.tensor(plan["sequence_lengths"], dtype=torch.int32),
                num_decode_rows=plan["num_decode_rows"],
                block_size=self.block_size,
            )
            queries = turned[:, : self.heads].contiguous()
            out = torch.full_like(queries, torch.nan)
            attention.decode(queries, layer, batch, self.head_dim**-0.5, out)
            attention.prefill(queries, layer, batch, self.head_dim**-0.5, out)
            outs.append(out)
        return torch.cat(outs).numpy()


def error_of(found, wanted):
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("kv", "arithmetic", "allowed"), CACHES)
def test_each_cache_attends_as_the_reference(name, kv, arithmetic, allowed):
    case = Case([5, 40, 16, 33, 290, 257, 600])
    assert error_of(case.native(kv, arithmetic, name), case.reference()) < allowed


@pytest.mark.parametrize("block_size", [1, 2, 8, 32, 256])
@pytest.mark.parametrize(("kv", "arithmetic", "allowed"), CACHES)
def test_block_sizes_attend_as_the_reference(block_size, kv, arithmetic, allowed):
    case = Case([5, 40, 290], block_size=block_size)
    assert error_of(case.native(kv, arithmetic, None), case.reference()) < allowed


@pytest.mark.parametrize(("heads", "head_dim"), [(2, 8), (4, 8), (10, 16), (16, 16)])
def test_heads_of_any_width_and_group_attend_as_the_reference(heads, head_dim):
    case = Case([3, 17, 260], heads=heads, head_dim=head_dim, seed=3)
    assert error_of(case.native("float32", "float32", None), case.reference()) < 2e-6


@pytest.mark.parametrize(("kv", "arithmetic", "allowed"), CACHES)
def test_every_instruction_set_gives_the_same_bits(kv, arithmetic, allowed):
    case = Case([5, 40, 290, 257])
    wanted = case.native(kv, arithmetic, "portable")
    for name in SETS:
        assert case.native(kv, arithmetic, name).tobytes() == wanted.tobytes()
