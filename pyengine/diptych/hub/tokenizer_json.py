"""The tokenizer files of a GGUF model with a byte-level BPE vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from diptych.errors import ModelError

_CONTROL, _USER_DEFINED = 3, 4  # gguf.TokenType

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}

# What the vocabulary was trained with. Without the split of digits a run of spaces before a number would be
# tokenised as the model never saw it; transformers' GGUF loading leaves it out.
_PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "smollm": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, _BYTE_LEVEL]},
    "gpt-2": _BYTE_LEVEL,
}


def write_tokenizer(metadata: dict[str, Any], folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and, if the file has one, chat_template.jinja."""
    _write(folder / "tokenizer.json", tokenizer_json(metadata))
    _write(folder / "tokenizer_config.json", tokenizer_config(metadata))
    if template := metadata.get("tokenizer.chat_template"):
        (folder / "chat_template.jinja").write_text(template)


def tokenizer_json(metadata: dict[str, Any]) -> dict[str, Any]:
    """The content of tokenizer.json. Raises `ModelError` for another kind of vocabulary."""
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2" or pre not in _PRE_TOKENIZERS:
        raise ModelError(f"tokenizer {kind!r} with pre-tokenizer {pre!r} cannot be converted: only byte-level BPE can")
    if metadata.get("tokenizer.ggml.add_bos_token") or metadata.get("tokenizer.ggml.add_space_prefix"):
        raise ModelError("a byte-level BPE tokenizer that adds a first token or a first space cannot be converted")
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    kinds: list[int] = metadata["tokenizer.ggml.token_type"]
    added = [
        _added(index, token, special=kind == _CONTROL)
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": _PRE_TOKENIZERS[pre],
        "post_processor": None,
        "decoder": {**_BYTE_LEVEL, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]],
        },
    }


def tokenizer_config(metadata: dict[str, Any]) -> dict[str, Any]:
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": metadata["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
    }
    for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        if (index := metadata.get(f"tokenizer.ggml.{key}_token_id")) is not None:
            config[f"{role}_token"] = tokens[index]
    return config


def _added(index: int, token: str, *, special: bool) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": index, "content": token, **flags, "special": special}


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
