"""The Llama family in torch, read from top to bottom: weights, forward.

    ids ─ embedding ─► hidden ─┬─ norm ─ q,k,v ─ rotate ─ write k,v ─ attention ─ output ─ + ─┬─ norm ─ MLP ─ + ─► …
                               └──────────────────────────────────────────────────────────┘  └──────────────┘

The forward works in buffers that are made once, for the largest step, and reused by every layer and every step
(`Workspace`): what a step allocates depends on its own tokens, never on a prompt's length. Attention itself is the
caller's: it knows the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from diptych.models.config import LlamaConfig, rotary_frequencies
from diptych_kernels.kv_cache import KVLayer
from diptych_kernels.registry import Kernels

# Tokens whose MLP runs at once: its buffers are the widest, and a long chunk need not hold them for all its tokens.
MLP_TOKENS = 1024


# Rows of a 16-bit matrix product on CPU are padded up to one of these, further on to a multiple of _ROW_STEP. oneDNN
# compiles and keeps a kernel for every number of rows it meets, about a millisecond and half a megabyte for each weight
# shape: without this, 512 different chunk lengths cost most of a gigabyte, and each new one delays its first step.
_ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512)
_ROW_STEP = 256


def rotary_angles(positions: torch.Tensor, frequencies: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine, [T, head_dim / 2] float32 whatever the model's dtype: 16-bit angles are off by radians."""
    angles = positions.float().unsqueeze(1) * frequencies
    return angles.cos(), angles.sin()


@dataclass(slots=True)
class Linear:
    """A projection: weight [out, in], bias [out] or None."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def apply(self, rows: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """rows [n, in] → out [n, out], which is returned."""
        if self.bias is None:
            return torch.mm(rows, self.weight.t(), out=out)
        return torch.addmm(self.bias, rows, self.weight.t(), out=out)


@dataclass(slots=True)
class Layer:
    """Weights of one decoder layer; q, k, v and gate, up are fused along their outputs."""

    input_norm: torch.Tensor
    qkv: Linear
    output: Linear
    post_norm: torch.Tensor
    gate_up: Linear
    down: Linear


@dataclass(slots=True)
class Weights:
    """All weights. `head` is the embedding itself where they are tied."""

    embedding: torch.Tensor
    layers: list[Layer]
    norm: torch.Tensor
    head: torch.Tensor


# How checkpoint tensors become ours: each of our parameters is the concatenation, along outputs, of theirs.
_FUSED = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "output": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


def assemble(config: LlamaConfig, take: Callable[[list[str]], torch.Tensor]) -> Weights:
    """Builds the weights. `take(names)` gives the named tensors joined along their first axis, in the model's dtype,
    on its device; each name is asked for once."""

    def linear(prefix: str, kind: str, bias: bool) -> Linear:
        parts = [prefix + name for name in _FUSED[kind]]
        weight = take([f"{part}.weight" for part in parts])
        return Linear(weight, take([f"{part}.bias" for part in parts]) if bias else None)

    embedding = take(["model.embed_tokens.weight"])
    layers = []
    for index in range(config.layers):
        prefix = f"model.layers.{index}."
        layers.append(
            Layer(
                input_norm=take([prefix + "input_layernorm.weight"]),
                qkv=linear(prefix, "qkv", config.qkv_bias),
                output=linear(prefix, "output", config.output_bias),
                post_norm=take([prefix + "post_attention_layernorm.weight"]),
                gate_up=linear(prefix, "gate_up", config.mlp_bias),
                down=linear(prefix, "down", config.mlp_bias),
            )
        )
    head = embedding if config.tied_embeddings else take(["lm_head.weight"])
    return Weights(embedding, layers, take(["model.norm.weight"]), head)


def _pads(dtype: torch.dtype, device: torch.device) -> bool:
    return device.type == "cpu" and dtype.itemsize == 2


def padded_rows(rows: int, dtype: torch.dtype, device: torch.device) -> int:
    """How many rows a matrix product of `rows` rows computes; the rest is padding that nobody reads."""
    if not _pads(dtype, device):
        return rows
    larger = (bucket for bucket in _ROW_BUCKETS if bucket >= rows)
    return next(larger, -(-rows // _ROW_STEP) * _ROW_STEP)


class Workspace:
    """Activation buffers of the largest step, written when made so that their pages are really there."""

    def __init__(self, config: LlamaConfig, max_tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        def buffer(rows: int, columns: int) -> torch.Tensor:
            return torch.zeros(rows, columns, dtype=dtype, device=device)

        max_tokens = padded_rows(max_tokens, dtype, device)
        mlp_rows = min(max_tokens, MLP_TOKENS)
        # Always float32: it sums all layers, some dimensions grow into the thousands, and 16 bits would round the rest.
        self.residual = torch.zeros(max_tokens, config.hidden, dtype=torch.float32, device=device)
        self.projected = buffer(max_tokens, config.hidden)
        self.qkv = buffer(max_tokens, config.qkv_size)
        self.attended = buffer(max_tokens, config.heads * config.head_dim)
        self.gate_up = buffer(mlp_rows, 2 * config.intermediate)
        self.activated = buffer(mlp_rows, config.intermediate)

    @staticmethod
    def bytes(config: LlamaConfig, max_tokens: int, dtype: torch.dtype) -> int:
        """Size of the buffers, and of what the forward allocates for a moment beside them, in bytes."""
        # At most: a workspace that does not pad is smaller.
        max_tokens = padded_rows(max_tokens, torch.bfloat16, torch.device("cpu"))
        heads = config.heads * config.head_dim
        held = max_tokens * (config.hidden + config.qkv_size + heads)
        held += min(max_tokens, MLP_TOKENS) * 3 * config.intermediate
        # A norm's output and its float32 inside; cosines and sines; four halves of a rotated slice.
        moment = max_tokens * config.hidden * (dtype.itemsize + 4) + max_tokens * config.head_dim * 3 * 4
        moment += min(max_tokens, MLP_TOKENS) * (config.heads + config.kv_heads) * config.head_dim * 2 * 4
        return held * dtype.itemsize + max_tokens * config.hidden * 4 + moment


# attend(layer index, queries [T, heads, head_dim], out [T, heads, head_dim]), keys and values being written already.
Attend = Callable[[int, torch.Tensor, torch.Tensor], None]


class Llama:
    """The forward over weights, kernels and a workspace."""

    def __init__(self, config: LlamaConfig, weights: Weights, kernels: Kernels, workspace: Workspace) -> None:
        self.config = config
        self.weights = weights
        self.kernels = kernels
        self.workspace = workspace
        frequencies = torch.tensor(rotary_frequencies(config), dtype=torch.float32)
        self.frequencies = frequencies.to(weights.embedding.device)

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, cache: list[KVLayer], attend: Attend
    ) -> torch.Tensor:
        """Runs T tokens (ids, positions, slots: [T] int64) through all layers, writing their keys and values.

        Gives the residual stream [T, hidden], float32, before the last norm: a view of the workspace, valid until the
        next call.
        """
        work, config, tokens = self.workspace, self.config, ids.shape[0]
        angles = rotary_angles(positions, self.frequencies)
        rows = padded_rows(tokens, work.projected.dtype, work.projected.device)
        residual, projected, all_qkv = work.residual[:rows], work.projected[:rows], work.qkv[:rows]
        residual[:tokens].copy_(self.weights.embedding.index_select(0, ids))
        residual[tokens:].zero_()
        qkv, attended = all_qkv[:tokens], work.attended[:rows]
        query_end, key_end = config.heads * config.head_dim, (config.heads + config.kv_heads) * config.head_dim
        queries = qkv[:, :query_end].view(tokens, config.heads, config.head_dim)
        keys = qkv[:, query_end:key_end].view(tokens, config.kv_heads, config.head_dim)
        values = qkv[:, key_end:].view(tokens, config.kv_heads, config.head_dim)
        rotated = qkv[:, :key_end].view(tokens, -1, config.head_dim)
        for index, layer in enumerate(self.weights.layers):
            layer.qkv.apply(self.kernels.rms_norm(residual, layer.input_norm, config.norm_epsilon), all_qkv)
            self.kernels.rotate(rotated, *angles)
            self.kernels.write_kv(keys, values, cache[index], slots)
            attend(index, queries, attended[:tokens].view(tokens, config.heads, config.head_dim))
            residual.add_(layer.output.apply(attended, projected))
            self._mlp(layer, residual, projected)
        return residual[:tokens]

    def _mlp(self, layer: Layer, residual: torch.Tensor, projected: torch.Tensor) -> None:
        normed = self.kernels.rms_norm(residual, layer.post_norm, self.config.norm_epsilon)
        for start in range(0, residual.shape[0], MLP_TOKENS):
            part = normed[start : start + MLP_TOKENS]
            gate_up = layer.gate_up.apply(part, self.workspace.gate_up[: part.shape[0]])
            activated = self.workspace.activated[: part.shape[0]]
            self.kernels.silu_multiply(gate_up, activated)
            layer.down.apply(activated, projected[start : start + MLP_TOKENS])
        residual.add_(projected)

    def logits(self, residual: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Logits [n, vocabulary] float32 of the tokens [n] int64 among the forward's, and of no other."""
        count = tokens.shape[0]
        rows = padded_rows(count, self.weights.head.dtype, residual.device)
        chosen = residual.index_select(0, torch.nn.functional.pad(tokens, (0, rows - count)))
        normed = self.kernels.rms_norm(chosen, self.weights.norm, self.config.norm_epsilon)
        return torch.mm(normed, self.weights.head.t())[:count].float()

    def warm_up_products(self, max_logit_rows: int) -> None:
        """Runs every matrix product once for every number of rows it can be given, where that number is padded."""
        work, layer = self.workspace, self.weights.layers[0]
        most, dtype, device = work.projected.shape[0], work.projected.dtype, work.projected.device
        if not _pads(dtype, device):
            return
        for rows in sorted({padded_rows(rows, dtype, device) for rows in range(1, most + 1)}):
            layer.qkv.apply(work.projected[:rows], work.qkv[:rows])
            layer.output.apply(work.attended[:rows], work.projected[:rows])
            part = min(rows, MLP_TOKENS)
            layer.gate_up.apply(work.projected[:part], work.gate_up[:part])
            layer.down.apply(work.activated[:part], work.projected[:part])
            if rows <= padded_rows(max_logit_rows, dtype, device):
                torch.mm(work.projected[:rows], self.weights.head.t())
