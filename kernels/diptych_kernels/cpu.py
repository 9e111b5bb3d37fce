"""Attention in plain torch over tiles of the cache, for CPU tensors and, without change, for any other device.

The keys of a sequence are cut at multiples of KV_TILE positions and merged in ascending order by an online softmax in
float32, so no L × L matrix ever exists and what is allocated depends on the tile sizes alone:

    prefill   one row at a time, QUERY_TILE queries × KV_TILE keys; all tiles above the diagonal are skipped
    decode    groups of rows, sorted by length, KV_TILE keys of every row of the group at once; a row that has ended
              drops out of the later tiles

A gathered tile is [kv_heads, rows, keys, head_dim]; the query heads of one KV head are the rows of its product, so keys
and values are never repeated.
"""

from dataclasses import dataclass

import torch

from diptych_kernels.attention import AttentionBatch, check_attention
from diptych_kernels.kv_cache import KVLayer, heads_major

# At least the largest block size, so that a tile is always whole blocks.
KV_TILE = 256
QUERY_TILE = 256
# Elements of one gathered decode tile: bounds a group's rows.
DECODE_TILE_ELEMENTS = 1 << 20


@dataclass(frozen=True, slots=True)
class DecodeTile:
    """Keys [start, start + width) of the first `rows` rows of a group. `beyond` marks what lies past a row's end."""

    rows: int
    width: int
    blocks: torch.Tensor  # [rows × width / block_size] int64
    beyond: torch.Tensor | None  # [rows, width] bool


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Decode rows that are computed together, longest first, and their tiles in ascending order."""

    rows: torch.Tensor  # [n] int64, token rows of the step
    tiles: list[DecodeTile]


@dataclass(frozen=True, slots=True)
class PrefillTile:
    """`width` keys of a sequence. `future` marks what lies after each query, None where nothing does."""

    width: int
    blocks: torch.Tensor  # [ceil(width / block_size)] int64
    future: torch.Tensor | None  # [queries, width] bool


@dataclass(frozen=True, slots=True)
class PrefillBlock:
    """Queries [first, last) of the step, all of one row, and the tiles they see, in ascending order."""

    first: int
    last: int
    tiles: list[PrefillTile]


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """A step, cut into tiles."""

    decode: list[DecodeGroup]
    prefill: list[PrefillBlock]


class CpuAttention:
    """See the module. Takes caches whose memory order is heads-major (`kv_cache`)."""

    name = "cpu"

    def prepare(self, batch: AttentionBatch, layer: KVLayer, heads: int) -> PreparedBatch:
        """Cuts the rows into tiles and brings their block ids and masks to the cache's device."""
        device = layer.keys.device
        _, _, kv_heads, head_dim = layer.keys.shape
        group_rows = max(1, DECODE_TILE_ELEMENTS // (kv_heads * KV_TILE * head_dim))
        lengths = batch.sequence_lengths[: batch.num_decode_rows]
        order = torch.argsort(lengths, descending=True, stable=True)
        decode = (
            [_decode_group(batch, rows, device) for rows in torch.split(order, group_rows)] if order.numel() else []
        )
        prefill = [
            block
            for row in range(batch.num_decode_rows, batch.num_rows)
            for block in _prefill_blocks(batch, row, device)
        ]
        return PreparedBatch(decode, prefill)

    def decode(
        self, queries: torch.Tensor, layer: KVLayer, prepared: PreparedBatch, scale: float, out: torch.Tensor
    ) -> None:
        """See `Attention.decode`."""
        check_attention(queries, layer, out)
        keys, values = heads_major("key cache", layer.keys), heads_major("value cache", layer.values)
        for group in prepared.decode:
            _decode(queries, (keys, values), group, scale, out)

    def prefill(
        self, queries: torch.Tensor, layer: KVLayer, prepared: PreparedBatch, scale: float, out: torch.Tensor
    ) -> None:
        """See `Attention.prefill`."""
        check_attention(queries, layer, out)
        keys, values = heads_major("key cache", layer.keys), heads_major("value cache", layer.values)
        for block in prepared.prefill:
            _prefill(queries, (keys, values), block, scale, out)


def scratch_bytes(heads: int, kv_heads: int, head_dim: int, max_rows: int) -> int:
    """Upper bound of what one call allocates besides its arguments, in bytes, whatever the prompts' lengths."""
    group = heads // kv_heads
    query_rows = QUERY_TILE * heads
    tile = KV_TILE * kv_heads * head_dim
    # Scores and their exponentials, three of [query_rows, head_dim], keys and values gathered and widened.
    prefill = 4 * (2 * query_rows * KV_TILE + 3 * query_rows * head_dim + 4 * tile)
    rows = min(max_rows, max(1, DECODE_TILE_ELEMENTS // tile))
    decode = 4 * (4 * rows * tile + rows * kv_heads * group * (2 * KV_TILE + 3 * head_dim))
    return max(prefill, decode)


def mask_bytes(max_tokens: int, max_rows: int, max_length: int) -> int:
    """Upper bound of the masks that `prepare` makes for a step, in bytes: two tiles of each query, and for decode rows
    a byte a position."""
    return 2 * max_tokens * KV_TILE + max_rows * (max_length + KV_TILE)


def _decode_group(batch: AttentionBatch, rows: torch.Tensor, device: torch.device) -> DecodeGroup:
    lengths = batch.sequence_lengths[rows]
    tables = batch.block_tables[rows]
    size = batch.block_size
    tiles = []
    for start in range(0, int(lengths[0]), KV_TILE):
        active = int((lengths > start).sum())
        width = -(-min(KV_TILE, int(lengths[0]) - start) // size) * size
        blocks = tables[:active, start // size : (start + width) // size].reshape(-1).long()
        beyond = None
        if int(lengths[active - 1]) < start + width:
            beyond = (torch.arange(start, start + width) >= lengths[:active].unsqueeze(1)).to(device)
        tiles.append(DecodeTile(active, width, blocks.to(device), beyond))
    return DecodeGroup(rows.to(device), tiles)


def _prefill_blocks(batch: AttentionBatch, row: int, device: torch.device) -> list[PrefillBlock]:
    size = batch.block_size
    table = batch.block_tables[row].long()
    begin, end = int(batch.query_starts[row]), int(batch.query_starts[row + 1])
    shift = int(batch.sequence_lengths[row]) - end  # position = query index + shift
    blocks = []
    for first in range(begin, end, QUERY_TILE):
        last = min(first + QUERY_TILE, end)
        tiles = []
        for start in range(0, last + shift, KV_TILE):
            stop = min(start + KV_TILE, last + shift)
            future = None
            if stop > first + shift + 1:
                positions = torch.arange(first + shift, last + shift).unsqueeze(1)
                future = (torch.arange(start, stop) > positions).to(device)
            tiles.append(PrefillTile(stop - start, table[start // size : -(-stop // size)].to(device), future))
        blocks.append(PrefillBlock(first, last, tiles))
    return blocks


class _OnlineSoftmax:
    """Softmax-weighted sum of values, tile after tile: running maximum, running sum, unnormalised result.

    Shapes [kv_heads, sequences, queries, …]; a later tile may bring the first sequences only.
    """

    def __init__(self) -> None:
        self.maximum = self.total = self.result = torch.empty(0)

    def add(self, scores: torch.Tensor, values: torch.Tensor) -> None:
        """scores [kv_heads, sequences, queries, keys], overwritten, -inf where excluded (never a whole query of the
        first tile); values [kv_heads × sequences, keys, head_dim]; both float32."""
        kv_heads, sequences, queries, width = scores.shape
        peak = scores.amax(dim=-1, keepdim=True)
        first = self.maximum.numel() == 0
        if not first:
            maximum = self.maximum[:, :sequences]
            peak = torch.maximum(maximum, peak)
            decay = (maximum - peak).exp_()
            maximum.copy_(peak)
        scores.sub_(peak).exp_()
        total = scores.sum(dim=-1, keepdim=True)
        result = torch.bmm(scores.view(-1, queries, width), values).view(kv_heads, sequences, queries, -1)
        if first:
            self.maximum, self.total, self.result = peak, total, result
            return
        self.total[:, :sequences].mul_(decay).add_(total)
        self.result[:, :sequences].mul_(decay).add_(result)

    def finish(self) -> torch.Tensor:
        """The weighted means [kv_heads, sequences, queries, head_dim]."""
        return self.result.div_(self.total)


Caches = tuple[torch.Tensor, torch.Tensor]


def _gather(cache: torch.Tensor, blocks: torch.Tensor, sequences: int) -> torch.Tensor:
    """[kv_heads × sequences, keys, head_dim] in the cache's dtype, a copy of the tile's blocks."""
    kv_heads, _, _, head_dim = cache.shape
    return cache.index_select(1, blocks).view(kv_heads * sequences, -1, head_dim)


def _prefill(queries: torch.Tensor, caches: Caches, block: PrefillBlock, scale: float, out: torch.Tensor) -> None:
    kv_heads, _, _, head_dim = caches[0].shape
    count, group = block.last - block.first, queries.shape[1] // kv_heads
    asked = queries[block.first : block.last].view(count, kv_heads, group, head_dim).permute(1, 2, 0, 3)
    asked = asked.float().mul(scale).reshape(kv_heads, group * count, head_dim)
    softmax = _OnlineSoftmax()
    for tile in block.tiles:
        # Cut at the sequence's end: what follows in the last block is not even read.
        keys = _gather(caches[0], tile.blocks, 1)[:, : tile.width].float()
        values = _gather(caches[1], tile.blocks, 1)[:, : tile.width].float()
        scores = torch.bmm(asked, keys.transpose(1, 2))
        if tile.future is not None:
            scores.view(kv_heads, group, count, tile.width).masked_fill_(tile.future, -torch.inf)
        softmax.add(scores.unsqueeze(1), values)
    answer = softmax.finish().view(kv_heads, group, count, head_dim)
    out[block.first : block.last].view(count, kv_heads, group, head_dim).copy_(answer.permute(2, 0, 1, 3))


def _decode(queries: torch.Tensor, caches: Caches, group: DecodeGroup, scale: float, out: torch.Tensor) -> None:
    kv_heads, _, _, head_dim = caches[0].shape
    rows, share = group.rows.shape[0], queries.shape[1] // kv_heads
    asked = queries.index_select(0, group.rows).view(rows, kv_heads, share, head_dim).transpose(0, 1)
    asked = asked.float().mul(scale).contiguous()
    softmax = _OnlineSoftmax()
    for tile in group.tiles:
        keys = _gather(caches[0], tile.blocks, tile.rows).float()
        values = _gather(caches[1], tile.blocks, tile.rows).float()
        scores = torch.bmm(asked[:, : tile.rows].reshape(-1, share, head_dim), keys.transpose(1, 2))
        scores = scores.view(kv_heads, tile.rows, share, tile.width)
        if tile.beyond is not None:
            # Excluded, not multiplied by zero: the slots past the end may hold NaN.
            scores.masked_fill_(tile.beyond.unsqueeze(1), -torch.inf)
            values.view(kv_heads, tile.rows, tile.width, head_dim).masked_fill_(tile.beyond.unsqueeze(2), 0.0)
        softmax.add(scores, values)
    answer = softmax.finish().transpose(0, 1)
    out.index_copy_(0, group.rows, answer.reshape(rows, -1, head_dim).to(out.dtype))
