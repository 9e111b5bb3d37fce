"""A Llama GGUF file of a few kilobytes, quantised, with a byte-level BPE vocabulary."""

from pathlib import Path

import gguf
import numpy as np
from tokenizers import pre_tokenizers

HIDDEN, INNER, HEADS, KV_HEADS, HEAD = 64, 96, 4, 2, 16
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["a a", "Ġ Ġ", "Ġ a"]


def write_gguf(path: Path, *, marks: bool = True) -> Path:
    """`marks`: each row of the keys tells where it stood: head · 100 + row. Otherwise they are small random numbers."""
    writer = gguf.GGUFWriter(path, "llama")
    _write_metadata(writer)
    random = np.random.default_rng(7)

    def quantised(name: str, rows: int, columns: int) -> None:
        values = random.normal(size=(rows, columns)).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    quantised("token_embd.weight", len(_tokens()), HIDDEN)
    for name, rows, columns in (
        ("attn_q", HIDDEN, HIDDEN),
        ("attn_v", KV_HEADS * HEAD, HIDDEN),
        ("attn_output", HIDDEN, HIDDEN),
        ("ffn_gate", INNER, HIDDEN),
        ("ffn_up", INNER, HIDDEN),
        ("ffn_down", HIDDEN, INNER),
    ):
        quantised(f"blk.0.{name}.weight", rows, columns)
    rows = np.add.outer(100 * np.arange(KV_HEADS), np.arange(HEAD)).reshape(-1, 1)
    keys = rows if marks else 0.1 * random.normal(size=(KV_HEADS * HEAD, HIDDEN))
    writer.add_tensor("blk.0.attn_k.weight", np.broadcast_to(keys, (KV_HEADS * HEAD, HIDDEN)).astype(np.float32))
    for name in ("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"):
        writer.add_tensor(name, np.ones(HIDDEN, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tokens() -> list[str]:
    return [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]


def _write_metadata(writer: gguf.GGUFWriter) -> None:
    tokens = _tokens()
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in tokens])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
