"""Which file implements an architecture."""

from collections.abc import Mapping
from typing import Any

from diptych.models.config import LlamaConfig, UnsupportedModelError

ARCHITECTURES = {
    "LlamaForCausalLM": LlamaConfig.from_llama,
    "MistralForCausalLM": LlamaConfig.from_llama,
    "Qwen2ForCausalLM": LlamaConfig.from_qwen2,
}


def read_config(config: Mapping[str, Any]) -> LlamaConfig:
    """The model's shapes from a parsed config.json. Raises UnsupportedModelError naming what is not supported."""
    names = config.get("architectures") or []
    for name in names:
        if name in ARCHITECTURES:
            return ARCHITECTURES[name](config)
    known = ", ".join(ARCHITECTURES)
    raise UnsupportedModelError(
        f"architecture {names or 'not named in config.json'} is not supported: use one of {known}"
    )
