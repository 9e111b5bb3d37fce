"""What the host needs to know of a model before any worker has loaded it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from diptych.errors import ModelError

# Sampling defaults that a model's authors may set in generation_config.json.
SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class ModelInfo(msgspec.Struct, frozen=True):
    """`max_model_len` in tokens, prompt and output together; `vocabulary` is the number of rows of the logits."""

    folder: str
    max_model_len: int
    vocabulary: int
    eos_ids: list[int]
    default_sampling: dict[str, float | int]


def read_model_info(folder: Path, max_model_len: int | None = None) -> ModelInfo:
    """Read config.json and generation_config.json. Raises `ModelError` if they lack what is needed.

    `max_model_len` lowers the model's own limit; above it, the model has never seen such positions and it is refused.
    """
    config = _read_json(folder / "config.json")
    generation = _read_json(folder / "generation_config.json", optional=True)
    own_limit = _positive(config, "max_position_embeddings", folder)
    if max_model_len is not None and max_model_len > own_limit:
        raise ModelError(f"max_model_len={max_model_len} exceeds the model's own limit of {own_limit} tokens")
    vocabulary = _positive(config, "vocab_size", folder)
    return ModelInfo(
        folder=str(folder),
        max_model_len=max_model_len or own_limit,
        vocabulary=vocabulary,
        eos_ids=_eos_ids(generation, config, vocabulary),
        default_sampling={
            key: value
            for key in SAMPLING_DEFAULTS
            if isinstance(value := generation.get(key), int | float) and not isinstance(value, bool)
        },
    )


def special_ids(folder: Path) -> list[int]:
    """Ids of the tokenizer's special tokens, ascending."""
    added = _read_json(folder / "tokenizer.json").get("added_tokens", [])
    return sorted(token["id"] for token in added if token.get("special"))


def _eos_ids(generation: dict[str, Any], config: dict[str, Any], vocabulary: int) -> list[int]:
    value = generation.get("eos_token_id", config.get("eos_token_id"))
    ids = [] if value is None else value if isinstance(value, list) else [value]
    wrong = [token for token in ids if not isinstance(token, int) or not 0 <= token < vocabulary]
    if wrong:
        raise ModelError(f"eos_token_id={wrong} of the model is outside its vocabulary of {vocabulary} tokens")
    return ids


def _positive(config: dict[str, Any], key: str, folder: Path) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"{folder / 'config.json'} has {key}={value!r}: expected a positive number")
    return value


def _read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        if optional:
            return {}
        raise ModelError(f"{path.parent} holds no {path.name}") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds {type(content).__name__}, not an object")
    return content
