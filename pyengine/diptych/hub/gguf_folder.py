"""From a Llama-architecture GGUF file to a Hugging Face style folder: config, weights in bfloat16, tokenizer, template.

The names, and the permutation of the query and key rows, are those of transformers' own GGUF loading.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import numpy.typing as npt

from diptych.errors import ModelError
from diptych.hub.progress import Progress
from diptych.hub.tokenizer_json import write_tokenizer

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_DERIVED = {"rope_freqs.weight"}  # computed again from the configuration

Metadata = dict[str, Any]


class _Tensor(NamedTuple):
    name: str
    source: Any
    shape: tuple[int, ...]


def convert(file: Path, folder: Path, progress: Progress) -> None:
    """Write the folder's files for the model in `file`. Raises `ModelError` for an architecture it does not know."""
    reader, config = _describe_model(file, folder)
    tensors = [_describe(tensor) for tensor in reader.tensors if tensor.name not in _DERIVED]
    _write_safetensors(folder / "model.safetensors", tensors, config, progress)


def describe(file: Path, folder: Path) -> None:
    """Write the folder's files but for the weights: `file` itself serves as those. Raises `ModelError`."""
    _describe_model(file, folder)


def _describe_model(file: Path, folder: Path) -> tuple[gguf.GGUFReader, Metadata]:
    try:
        reader = gguf.GGUFReader(file)
    except (ValueError, IndexError, OSError) as error:
        raise ModelError(f"{file} is not a valid GGUF file: {error}") from error
    metadata: Metadata = {name: field.contents() for name, field in reader.fields.items()}
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise ModelError(f"{file.name} holds a model of architecture {architecture!r}; only 'llama' can be read")
    config = hf_config(metadata, tied=all(tensor.name != "output.weight" for tensor in reader.tensors))
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", generation_config(metadata))
    write_tokenizer(metadata, folder)
    return reader, config


def hf_config(metadata: Metadata, *, tied: bool) -> dict[str, Any]:
    """The `config.json` of the model. `tied`: the output projection is the embedding."""

    def get(key: str) -> Any:
        if f"llama.{key}" not in metadata:
            raise ModelError(f"the GGUF file has no metadata llama.{key}")
        return metadata[f"llama.{key}"]

    heads = get("attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.get("llama.attention.head_count_kv", heads),
        "head_dim": metadata.get("llama.rope.dimension_count", get("embedding_length") // heads),
        "max_position_embeddings": get("context_length"),
        "rms_norm_eps": _shortest(get("attention.layer_norm_rms_epsilon")),
        "rope_theta": _shortest(metadata.get("llama.rope.freq_base", 10000.0)),
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
        "dtype": "bfloat16",
    }


def generation_config(metadata: Metadata) -> dict[str, Any]:
    """Both ends of a text count: the end of a turn, and the end of a document that a bare completion may reach."""
    eos = [metadata["tokenizer.ggml.eos_token_id"]]
    tokens = metadata["tokenizer.ggml.tokens"]
    if "<|endoftext|>" in tokens and (end := tokens.index("<|endoftext|>")) not in eos:
        eos.append(end)
    return {
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": eos,
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
    }


def hf_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if match is None or match[2] not in _LAYER_NAMES:
        raise ModelError(f"the GGUF file holds a tensor {name!r} that has no place in a Llama model")
    return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.weight"


def unpermute(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Undo GGUF's interleaving of the rotary halves: rows [heads × head_dim, hidden], float32."""
    paired = weight.reshape(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return paired.swapaxes(1, 2).reshape(weight.shape)


def to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The bits of the nearest bfloat16, ties to even. Refuses NaN and infinity: weights have none."""
    if not np.isfinite(values).all():
        raise ModelError("the GGUF file holds weights that are not finite numbers: it is damaged")
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _describe(tensor: Any) -> _Tensor:
    return _Tensor(hf_name(tensor.name), tensor, tuple(int(extent) for extent in reversed(tensor.shape)))


def _dequantised(tensor: _Tensor, config: dict[str, Any]) -> npt.NDArray[np.float32]:
    values = gguf.quants.dequantize(tensor.source.data, tensor.source.tensor_type).reshape(tensor.shape)
    if tensor.name.endswith("q_proj.weight"):
        return unpermute(values, config["num_attention_heads"])
    if tensor.name.endswith("k_proj.weight"):
        return unpermute(values, config["num_key_value_heads"])
    return np.asarray(values, dtype=np.float32)


def _write_safetensors(path: Path, tensors: list[_Tensor], config: dict[str, Any], progress: Progress) -> None:
    """One tensor in memory at a time. safetensors' own writer has no bfloat16 without torch, which a pull can spare."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        size = 2 * math.prod(tensor.shape)
        header[tensor.name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [offset, offset + size]}
        offset += size
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    progress.stage("converting to bfloat16", offset, "B")
    with open(path, "wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for written, bits in _converted(tensors, config):
            file.write(bits.data)
            progress.advance_to(written)


def _converted(tensors: list[_Tensor], config: dict[str, Any]) -> Iterator[tuple[int, npt.NDArray[np.uint16]]]:
    written = 0
    for tensor in tensors:
        bits = to_bfloat16(_dequantised(tensor, config))
        written += bits.nbytes
        yield written, bits


def _shortest(value: float) -> float:
    """GGUF keeps float32; 9.999999747378752e-06 is what became of 1e-05."""
    return float(str(np.float32(value)))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
