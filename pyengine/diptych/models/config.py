"""Shapes and constants of a checkpoint, read from its config.json. Imports nothing that computes."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

# What quantization_config calls weights that `quantize` packed.
QUANT_METHOD = "diptych"
# The file that holds them.
PACKED_WEIGHTS = "weights.diptych"
# Fields of a shape that packing has no use for.
_NOT_PACKED = frozenset({"max_positions", "rope", "packed"})


class UnsupportedModelError(ValueError):
    """The checkpoint asks for something that this model code does not compute."""


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Shapes and constants of a checkpoint. `packed`: the formats that its weights were packed in, by `quantize`."""

    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_epsilon: float
    max_positions: int
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    rope: dict[str, Any]
    packed: str | None = None

    @classmethod
    def from_llama(cls, config: Mapping[str, Any]) -> LlamaConfig:
        """Llama, and Mistral without a sliding window."""
        bias = bool(config.get("attention_bias", False))
        return cls._read(config, qkv_bias=bias, output_bias=bias)

    @classmethod
    def from_qwen2(cls, config: Mapping[str, Any]) -> LlamaConfig:
        """Qwen2: the same computation, with biases on q, k and v."""
        if not config.get("use_sliding_window", False):
            config = {**config, "sliding_window": None}
        return cls._read(config, qkv_bias=True, output_bias=False)

    @classmethod
    def _read(cls, config: Mapping[str, Any], qkv_bias: bool, output_bias: bool) -> LlamaConfig:
        _refuse_unsupported(config)
        try:
            hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
            return cls(
                vocabulary=int(config["vocab_size"]),
                hidden=hidden,
                intermediate=int(config["intermediate_size"]),
                layers=int(config["num_hidden_layers"]),
                heads=heads,
                kv_heads=int(config.get("num_key_value_heads") or heads),
                head_dim=int(config.get("head_dim") or hidden // heads),
                norm_epsilon=float(config.get("rms_norm_eps", 1e-6)),
                max_positions=int(config.get("max_position_embeddings", 2048)),
                tied_embeddings=bool(config.get("tie_word_embeddings", False)),
                qkv_bias=qkv_bias,
                output_bias=output_bias,
                mlp_bias=bool(config.get("mlp_bias", False)),
                rope=_read_rope(config),
                packed=_read_packed(config),
            )
        except KeyError as missing:
            raise UnsupportedModelError(f"config.json has no {missing}") from None

    @property
    def qkv_size(self) -> int:
        """Width of the fused q, k and v projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    neutral: dict[str, tuple[Any, ...]] = {
        "sliding_window": (None,),
        "hidden_act": (None, "silu"),
        "partial_rotary_factor": (None, 1.0),
        "pretraining_tp": (None, 1),
    }
    for name, allowed in neutral.items():
        if config.get(name) not in allowed:
            raise UnsupportedModelError(
                f"config.json sets {name} = {config[name]!r}, which is not built: only {allowed[-1]!r} is"
            )
    if set(config.get("layer_types") or ["full_attention"]) != {"full_attention"}:
        raise UnsupportedModelError(
            f"config.json sets layer_types = {config['layer_types']}: only full_attention is built"
        )


def _read_packed(config: Mapping[str, Any]) -> str | None:
    """The formats of weights that `quantize` packed."""
    quantization = config.get("quantization_config")
    if quantization is None:
        return None
    if not isinstance(quantization, dict) or quantization.get("quant_method") != QUANT_METHOD:
        raise UnsupportedModelError(
            f"config.json sets quantization_config = {quantization!r}: only weights that diptych quantized are read"
        )
    return str(quantization.get("format"))


def _read_rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary parameters in the newer spelling (`rope_parameters`), read from either."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    rope.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    rope["rope_type"] = rope.get("rope_type") or rope.pop("type", None) or "default"
    if rope["rope_type"] not in ("default", "linear", "llama3"):
        raise UnsupportedModelError(
            f"rope scaling {rope['rope_type']!r} is not supported: default, linear and llama3 are"
        )
    return rope


def rotary_frequencies(config: LlamaConfig) -> list[float]:
    """Angle per position of each pair of dimensions, [head_dim / 2], scaling applied; each a float32."""
    rope = config.rope
    exponents = [_float32(index / config.head_dim) for index in range(0, config.head_dim, 2)]
    theta = float(rope["rope_theta"])
    frequencies = [_float32(1.0 / _float32(theta**exponent)) for exponent in exponents]
    if rope["rope_type"] == "linear":
        return [_float32(frequency / float(rope["factor"])) for frequency in frequencies]
    if rope["rope_type"] == "default":
        return frequencies
    return [_float32(_llama3_frequency(rope, frequency)) for frequency in frequencies]


def _llama3_frequency(rope: Mapping[str, Any], frequency: float) -> float:
    """Long waves are stretched by the factor, short ones kept, those between blended."""
    factor, original = float(rope["factor"]), float(rope["original_max_position_embeddings"])
    low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    wavelength = 2 * math.pi / frequency
    blend = min(max((original / wavelength - low) / (high - low), 0.0), 1.0)
    return (1 - blend) * frequency / factor + blend * frequency


def _float32(value: float) -> float:
    """The nearest float32: what transformers computes with."""
    (rounded,) = struct.unpack("f", struct.pack("f", value))
    return float(rounded)


def weight_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that the checkpoint must hold, in its own spelling."""
    hidden, wide = config.hidden, config.intermediate
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    linears = {
        "self_attn.q_proj": (queries, hidden, config.qkv_bias),
        "self_attn.k_proj": (keys, hidden, config.qkv_bias),
        "self_attn.v_proj": (keys, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, queries, config.output_bias),
        "mlp.gate_proj": (wide, hidden, config.mlp_bias),
        "mlp.up_proj": (wide, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, wide, config.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocabulary, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tied_embeddings:
        shapes["lm_head.weight"] = (config.vocabulary, hidden)
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}."
        shapes[prefix + "input_layernorm.weight"] = (hidden,)
        shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
        for name, (outputs, inputs, bias) in linears.items():
            shapes[f"{prefix}{name}.weight"] = (outputs, inputs)
            if bias:
                shapes[f"{prefix}{name}.bias"] = (outputs,)
    return shapes


def packed_shape(config: LlamaConfig) -> dict[str, Any]:
    """The shape as `diptych_core.kernels` takes it with weights."""
    shape = {name: value for name, value in asdict(config).items() if name not in _NOT_PACKED}
    return {**shape, "rope_frequencies": rotary_frequencies(config)}
