"""Paged attention: every implementation against the reference, and what they refuse."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diptych_kernels.attention import AttentionBatch
from diptych_kernels.checks import KernelInputError
from diptych_kernels.cpu import CpuAttention, scratch_bytes
from diptych_kernels.kv_cache import KVLayer, KVPool, KVShape, write_kv
from diptych_kernels.reference import ReferenceAttention

SIZES = st.fixed_dictionaries(
    {
        "block_size": st.sampled_from([1, 4, 16, 256]),
        "kv_heads": st.integers(1, 3),
        "group": st.sampled_from([1, 3, 4]),
        "head_dim": st.sampled_from([2, 8, 64]),
        "decode": st.lists(st.integers(1, 600), max_size=5),
        "prefill": st.lists(st.tuples(st.integers(1, 300), st.integers(0, 300)), max_size=3),
        "seed": st.integers(0, 1 << 30),
    }
).filter(lambda sizes: sizes["decode"] or sizes["prefill"])


def build(sizes):
    """A pool that is NaN but for what the sequences have written, a batch over scattered blocks, and queries."""
    generator = torch.Generator().manual_seed(sizes["seed"])
    lengths = sizes["decode"] + [new + past for new, past in sizes["prefill"]]
    counts = [1] * len(sizes["decode"]) + [new for new, _ in sizes["prefill"]]
    size = sizes["block_size"]
    columns = -(-max(lengths) // size)
    blocks = 1 + columns * len(lengths)
    order = 1 + torch.randperm(blocks - 1, generator=generator)
    pool = KVPool(KVShape(1, blocks, size, sizes["kv_heads"], sizes["head_dim"]), torch.float32, torch.device("cpu"))
    pool.storage.fill_(torch.nan)
    batch = AttentionBatch(
        block_tables=order.view(len(lengths), columns).int(),
        query_starts=torch.tensor([0, *torch.tensor(counts).cumsum(0)], dtype=torch.int32),
        sequence_lengths=torch.tensor(lengths, dtype=torch.int32),
        num_decode_rows=len(sizes["decode"]),
        block_size=size,
    )
    for row, length in enumerate(lengths):
        positions = torch.arange(length)
        slots = batch.block_tables[row, positions // size].long() * size + positions % size
        fresh = torch.randn(2, length, sizes["kv_heads"], sizes["head_dim"], generator=generator)
        write_kv(fresh[0], fresh[1], pool.layers[0], slots)
    heads = sizes["kv_heads"] * sizes["group"]
    queries = torch.randn(sum(counts), heads, sizes["head_dim"], generator=generator)
    return pool.layers[0], batch, queries


def attend(implementation, layer, batch, queries):
    out = torch.full_like(queries, torch.nan)
    prepared = implementation.prepare(batch, layer, queries.shape[1])
    implementation.decode(queries, layer, prepared, 0.3, out)
    implementation.prefill(queries, layer, prepared, 0.3, out)
    return out


@given(SIZES)
def test_cpu_attention_equals_the_reference_in_a_pool_of_nan(sizes):
    layer, batch, queries = build(sizes)
    got, want = attend(CpuAttention(), layer, batch, queries), attend(ReferenceAttention(), layer, batch, queries)
    assert torch.allclose(got, want, atol=2e-5, rtol=2e-5)


def example(**changes):
    sizes = {"block_size": 4, "kv_heads": 3, "group": 3, "head_dim": 8, "decode": [5, 700, 1], "prefill": [(9, 30)]}
    return build({**sizes, "seed": 1, **changes})


@pytest.mark.parametrize("group", [3, 4])
def test_grouped_query_heads_read_their_own_kv_head(group):
    layer, batch, queries = example(group=group)
    got = attend(CpuAttention(), layer, batch, queries)
    for head in range(3 * group):
        kv = head // group
        one = KVLayer(layer.keys[:, :, kv : kv + 1], layer.values[:, :, kv : kv + 1])
        alone = attend(ReferenceAttention(), one, batch, queries[:, head : head + 1])
        assert torch.allclose(got[:, head : head + 1], alone, atol=2e-5)


def test_sixteen_bit_caches_are_read_in_float32():
    layer, batch, queries = example()
    narrow = KVPool(KVShape(1, layer.keys.shape[0], 4, 3, 8), torch.bfloat16, torch.device("cpu"))
    narrow.layers[0].keys.copy_(layer.keys)
    narrow.layers[0].values.copy_(layer.values)
    got = attend(CpuAttention(), narrow.layers[0], batch, queries.bfloat16())
    want = attend(ReferenceAttention(), narrow.layers[0], batch, queries.bfloat16())
    # Equal but for the last rounding.
    assert (got.float() - want.float()).abs().max() < 2e-2


def test_a_row_of_nan_harms_no_other_row():
    layer, batch, queries = example(prefill=[(9, 30), (4, 0)])
    before = attend(CpuAttention(), layer, batch, queries)
    length = int(batch.sequence_lengths[1])
    for position in range(length):
        layer.keys[batch.block_tables[1, position // 4], position % 4] = torch.nan
        layer.values[batch.block_tables[1, position // 4], position % 4] = torch.nan
    after = attend(CpuAttention(), layer, batch, queries)
    assert after[1].isnan().all()
    keep = torch.arange(len(queries)) != 1
    assert torch.equal(before[keep], after[keep])


def test_no_length_by_length_matrix_is_ever_allocated(monkeypatch):
    layer, batch, queries = example(decode=[], prefill=[(2000, 1000)], head_dim=8)
    largest = 0
    for name in ("bmm",):
        original = getattr(torch, name)

        def watched(*tensors, original=original):
            nonlocal largest
            result = original(*tensors)
            largest = max(largest, result.numel())
            return result

        monkeypatch.setattr(torch, name, watched)
    attend(CpuAttention(), layer, batch, queries)
    # A tile of 256 queries × 9 heads by 256 keys, not 2,000 × 9 by 3,000.
    assert largest <= 256 * 9 * 256
    assert 4 * largest <= scratch_bytes(9, 3, 8, 1)


def refuse(call, *words):
    with pytest.raises(KernelInputError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def test_unexpected_strides_are_refused_naming_shape_and_strides():
    layer, batch, queries = example()
    token_major = KVLayer(layer.keys.contiguous(), layer.values.contiguous())
    refuse(
        lambda: attend(CpuAttention(), token_major, batch, queries),
        "key cache", str(tuple(layer.keys.shape)), str(layer.keys.contiguous().stride()),
    )  # fmt: skip
    sliced = torch.randn(queries.shape[0], queries.shape[1], 16)[:, :, ::2]
    refuse(lambda: attend(CpuAttention(), layer, batch, sliced), "queries", str(sliced.stride()))
    refuse(lambda: write_kv(sliced[:, :3], sliced[:, :3], layer, torch.zeros(12, dtype=torch.int64)), "keys", "strides")


def test_other_dtypes_and_shapes_are_refused():
    layer, batch, queries = example()
    refuse(lambda: attend(CpuAttention(), layer, batch, queries.double()), "queries", "float64", "float32")
    refuse(lambda: attend(CpuAttention(), layer, batch, queries[:, :8]), "8 query heads", "3 KV heads")
    refuse(lambda: attend(CpuAttention(), layer, batch, queries[:, :, :4]), "queries", "shape")
    prepared = CpuAttention().prepare(batch, layer, 9)
    out = torch.empty(queries.shape[0] + 1, 9, 8)
    refuse(lambda: CpuAttention().decode(queries, layer, prepared, 1.0, out), "out", str(tuple(out.shape)))
    refuse(
        lambda: write_kv(queries[:, :3], queries[:, :3], layer, torch.zeros(12, dtype=torch.int32)), "slots", "int32"
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_decode_rows", 2),
        ("sequence_lengths", [5, 2]),
        ("sequence_lengths", [5, 41]),
        ("query_starts", [0, 3, 3]),
        ("query_starts", [0, 1]),
    ],
)
def test_a_batch_that_contradicts_itself_is_refused(field, value):
    fields = {"num_decode_rows": 0, "sequence_lengths": [5, 9], "query_starts": [0, 3, 6], field: value}
    tensors = {name: torch.tensor(fields[name], dtype=torch.int32) for name in ("sequence_lengths", "query_starts")}
    tables = torch.zeros(2, 10, dtype=torch.int32)
    with pytest.raises(KernelInputError):
        AttentionBatch(block_tables=tables, num_decode_rows=fields["num_decode_rows"], block_size=4, **tensors)


def test_slots_past_the_pool_raise():
    layer, _, _ = example()
    rows = torch.zeros(1, 3, 8)
    with pytest.raises(IndexError):
        write_kv(rows, rows, layer, torch.tensor([layer.keys.shape[0] * 4]))
