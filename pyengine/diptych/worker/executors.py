"""Two executors over one paged KV cache.

Prefill is limited by arithmetic and brings many tokens of a few rows; decode is limited by bytes and brings one token
of many rows. Where a step holds both, the linear layers run fused over all tokens, so that the weights are read once,
and attention is split at the first prefill row.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import torch

from diptych.models.llama import Llama
from diptych.worker.step import TokenRows
from diptych_kernels.attention import AttentionBatch
from diptych_kernels.kv_cache import KVLayer, KVPool

StepKind = Literal["prefill", "decode", "mixed"]


class Executor(ABC):
    """What both share: the model, the cache, and preparing the rows of a step for attention."""

    def __init__(self, model: Llama, pool: KVPool) -> None:
        self.model = model
        self.pool = pool
        self.scale = model.config.head_dim**-0.5

    def prepare(self, tokens: TokenRows, tables: torch.Tensor) -> Any:
        """What attention needs to know of the rows, once for all layers. tables: [rows of the worker, blocks] int32."""
        size = self.pool.shape.block_size
        columns = -(-int(tokens.sequence_lengths.max()) // size)
        batch = AttentionBatch(
            block_tables=tables[:, :columns].index_select(0, tokens.rows),
            query_starts=tokens.query_starts,
            sequence_lengths=tokens.sequence_lengths,
            num_decode_rows=tokens.num_decode_rows,
            block_size=size,
        )
        return self.model.kernels.attention.prepare(batch, self.pool.layers[0], self.model.config.heads)

    @abstractmethod
    def attend(self, queries: torch.Tensor, layer: KVLayer, prepared: Any, out: torch.Tensor) -> None:
        """Attention of this executor's rows in one layer."""


class PrefillExecutor(Executor):
    """Chunks of prompts."""

    def attend(self, queries: torch.Tensor, layer: KVLayer, prepared: Any, out: torch.Tensor) -> None:
        """See `Attention.prefill`."""
        self.model.kernels.attention.prefill(queries, layer, prepared, self.scale, out)


class DecodeExecutor(Executor):
    """One token of each row."""

    def attend(self, queries: torch.Tensor, layer: KVLayer, prepared: Any, out: torch.Tensor) -> None:
        """See `Attention.decode`."""
        self.model.kernels.attention.decode(queries, layer, prepared, self.scale, out)


class Executors:
    """Both, and what a mixed step shares between them. `steps` counts what was run, by kind."""

    def __init__(self, model: Llama, pool: KVPool) -> None:
        self.prefill = PrefillExecutor(model, pool)
        self.decode = DecodeExecutor(model, pool)
        self.model = model
        self.pool = pool
        self.device = pool.storage.device
        self.steps: dict[StepKind, int] = {"prefill": 0, "decode": 0, "mixed": 0}
        # Called once a layer: whoever watches the worker sees that it is alive.
        self.on_layer: Callable[[], None] = lambda: None

    def run(self, tokens: TokenRows, ids: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
        """The residual stream [T, hidden] of a step; ids [T] int64, placeholders filled."""
        kind = step_kind(tokens)
        self.steps[kind] += 1
        parts: tuple[Executor, ...] = {
            "prefill": (self.prefill,),
            "decode": (self.decode,),
            "mixed": (self.decode, self.prefill),
        }[kind]
        prepared = parts[0].prepare(tokens, tables)

        def attend(index: int, queries: torch.Tensor, out: torch.Tensor) -> None:
            for executor in parts:
                executor.attend(queries, self.pool.layers[index], prepared, out)
            self.on_layer()

        positions, slots = tokens.positions.long().to(self.device), tokens.slots.to(self.device)
        return self.model.forward(ids.to(self.device), positions, slots, self.pool.layers, attend)


def step_kind(tokens: TokenRows) -> StepKind:
    """Which executors a step needs."""
    if tokens.num_decode_rows == 0:
        return "prefill"
    return "decode" if tokens.num_decode_rows == tokens.num_rows else "mixed"
