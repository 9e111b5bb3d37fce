"""What the host tells a worker at its start."""

from typing import Any, Literal

import msgspec


class WorkerOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of a model worker; `EngineConfig` documents them."""

    model: str
    dtype: str
    kernels: Literal["native", "reference"]
    quantization: str | None
    kv_cache_dtype: str
    kv_cache_bytes: int | None
    memory_utilization: float | None
    device: str
    threads: int
    prefix_cache: bool


class WorkerInit(msgspec.Struct, frozen=True):
    """The host's first message. `options` stay undecoded until the kind of worker is known."""

    kind: Literal["process", "inline", "scripted", "scripted_thread"]
    epoch: int
    block_size: int
    max_running: int
    max_batched_tokens: int
    max_model_len: int
    vocabulary: int
    options: dict[str, Any]
    layout_version: int
    max_prefill_tokens: int | None = None

    @property
    def max_step_tokens(self) -> int:
        """The most tokens a step can bring: the token budget, or a capped prefill beside every row decoding."""
        if self.max_prefill_tokens is None:
            return self.max_batched_tokens
        return min(self.max_batched_tokens, self.max_prefill_tokens + self.max_running)

    def model_options(self) -> WorkerOptions:
        """The options, checked. Raises msgspec.ValidationError naming the field."""
        return msgspec.convert(self.options, WorkerOptions)


def decode_init(message: bytes) -> WorkerInit:
    """Decodes the host's msgpack map. Raises msgspec.ValidationError naming the field."""
    return msgspec.msgpack.decode(message, type=WorkerInit)
