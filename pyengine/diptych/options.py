"""From a configuration and a model to the options that the Rust engine starts with."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from diptych.config import MAX_THREADS, SCRIPTED, EngineConfig, config_problems, default_batched_tokens, native_only
from diptych.errors import ConfigError
from diptych.hardware import available_cpus
from diptych.hub.known import KNOWN_MODELS
from diptych.kernel_choice import choose_kernels
from diptych.model_info import ModelInfo, special_ids
from diptych.params import nanoseconds

logger = logging.getLogger("diptych")

START_TIMEOUT_S = 600
# Prompt tokens that a GPU computes together well: chunks that are cut to a time are multiples of it.
GPU_TILE = 64
# The scripted worker keeps one 32-bit word for each token of its pool.
SCRIPTED_BYTES_PER_TOKEN = 4
SCRIPTED_DEFAULT_TOKENS = 1 << 20

_SECRET = re.compile(
    r"(.*_)?(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|API_?KEYS?|ACCESS_KEY|SECRET_KEY|PRIVATE_KEY)(_.*)?"
    r"|OTEL_EXPORTER_(.*_)?HEADERS",
    re.IGNORECASE,
)


def sensitive_variables(names: Iterable[str]) -> list[str]:
    """Those environment variables that look like secrets: a worker computes, and has no use for any of them."""
    return sorted(name for name in names if _SECRET.fullmatch(name))


def served_name(config: EngineConfig, model: ModelInfo) -> str:
    """The name under which clients ask for the model: the one given, or the base name of a folder or a file."""
    path = Path(config.model).expanduser()
    if config.model not in KNOWN_MODELS:
        if path.is_dir():
            return Path(model.folder).name
        if path.is_file():
            return path.stem
    return config.model


def resolve_config(config: EngineConfig, model: ModelInfo) -> EngineConfig:
    """`config` with everything automatic decided, but for `device` and `dtype`, which the worker knows better."""
    chosen: dict[str, Any] = {
        "max_model_len": model.max_model_len,
        "max_batched_tokens": config.max_batched_tokens or default_batched_tokens(likely_device(config)),
        "threads": config.threads or min(available_cpus(), MAX_THREADS),
    }
    if config.worker in SCRIPTED:
        # A hash of the prefix knows nothing of batches.
        chosen["exact"] = True
    else:
        kernels, why = choose_kernels(config, likely_device(config), Path(model.folder))
        if kernels == "reference" and (asked := native_only(config)):
            raise ConfigError(
                [f"{setting} needs the native kernels, which do not serve here: {why}" for setting in asked]
            )
        logger.info("kernels: %s (%s)", kernels, why)
        chosen["kernels"] = kernels
        chosen["exact"] = kernels == "native" if config.exact is None else config.exact
    return msgspec.structs.replace(config, **chosen)


def read_script(config: EngineConfig, vocabulary: int) -> list[list[int]] | None:
    """The scripted worker's lists of ids. Raises `ConfigError` naming the line that is wrong."""
    if config.script is None or isinstance(config.script, list):
        script = config.script
    else:
        script = _parse_script(Path(config.script))
    for index, ids in enumerate(script or []):
        wrong = [token for token in ids if not 0 <= token < vocabulary]
        if wrong:
            raise ConfigError([f"script line {index + 1} holds {wrong[:5]}: the vocabulary has {vocabulary} ids"])
    return script


def engine_options(config: EngineConfig, model: ModelInfo, environ: Mapping[str, str]) -> dict[str, Any]:
    """The options of `diptych_core.engine.Engine` for a resolved configuration."""
    return {
        "worker": {
            "kind": config.worker,
            "python": config.worker_python or sys.executable,
            "environment_remove": sensitive_variables(environ),
            "options": _scripted_options(config, model) if config.worker in SCRIPTED else _model_options(config, model),
            "start_timeout_s": START_TIMEOUT_S,
        },
        "limits": {
            "block_size": config.block_size,
            "max_running": config.max_running,
            "max_batched_tokens": config.max_batched_tokens,
            "max_prefill_tokens": config.max_prefill_tokens,
            "admission": config.admission,
            "eviction": config.eviction,
            "cache_ttl": config.cache_ttl,
            "max_model_len": config.max_model_len,
            "max_queued_requests": config.max_queued_requests,
            "max_queued_tokens": config.max_queued_tokens,
            "max_ttft_ms": config.max_ttft_ms,
            "prefill_order": config.prefill_order,
            "tenant_weights": config.tenant_weights,
            "prefix_cache": config.prefix_cache,
            "overlap_depth": config.overlap,
            **_step_time(config),
            "kv_events": config.kv_events,
        },
        "event_log": _event_log(config),
        "tool_call_parser": config.tool_call_parser,
        "reasoning_parser": config.reasoning_parser,
        "model_folder": model.folder,
        "vocabulary": model.vocabulary,
        "eos_ids": model.eos_ids,
    }


def _step_time(config: EngineConfig) -> dict[str, int]:
    """What bounds the time of a step, where it differs from the core's own defaults."""
    found = {}
    if config.target_itl_ms is not None:
        found["target_itl_ns"] = nanoseconds(config.target_itl_ms)
    if likely_device(config) == "cuda":
        found["prefill_tile"] = GPU_TILE
    return found


def _event_log(config: EngineConfig) -> dict[str, Any] | None:
    if config.event_log is None:
        return None
    return {"path": os.path.abspath(config.event_log), "bytes": config.event_log_bytes}


def likely_device(config: EngineConfig) -> str:
    """The device a worker will choose, told without torch: by whether NVIDIA's driver is loaded."""
    if config.device != "auto" or config.worker in SCRIPTED:
        return config.device
    if config.kernels == "native":
        return "cpu"
    return "cuda" if os.path.exists("/dev/nvidiactl") else "cpu"


def start_problems(config: EngineConfig) -> list[str]:
    """What must hold of a resolved configuration on this machine."""
    found = config_problems(config)
    if config.worker in ("process", "scripted") and not (config.worker_python or sys.executable):
        found.append("sys.executable is empty here: set worker_python to a Python interpreter that has diptych")
    if config.memory_utilization is not None and likely_device(config) != "cuda":
        found.append("memory_utilization counts the memory of a CUDA device and there is none: give kv_cache_bytes")
    return found


def _model_options(config: EngineConfig, model: ModelInfo) -> dict[str, Any]:
    return {
        "model": model.folder,
        "dtype": config.dtype,
        "kernels": config.kernels,
        "quantization": config.quantization,
        "kv_cache_dtype": config.kv_cache_dtype,
        "kv_cache_bytes": config.kv_cache_bytes,
        "memory_utilization": config.memory_utilization,
        "device": config.device,
        "threads": config.threads,
        "prefix_cache": config.prefix_cache,
    }


def _scripted_options(config: EngineConfig, model: ModelInfo) -> dict[str, Any]:
    block_bytes = SCRIPTED_BYTES_PER_TOKEN * config.block_size
    pool_bytes = config.kv_cache_bytes
    if pool_bytes is None:
        pool_bytes = SCRIPTED_BYTES_PER_TOKEN * max(SCRIPTED_DEFAULT_TOKENS, 2 * model.max_model_len)
    if pool_bytes < 2 * block_bytes:
        raise ConfigError(
            [
                f"kv_cache_bytes={pool_bytes} holds no two blocks, one being the null block: the scripted worker has "
                f"{SCRIPTED_BYTES_PER_TOKEN} bytes a token, {block_bytes} a block of {config.block_size}"
            ]
        )
    return {
        "num_blocks": pool_bytes // block_bytes,
        "script": read_script(config, model.vocabulary),
        "step_ms": config.script_step_ms,
        "eos_id": model.eos_ids[0] if model.eos_ids else 0,
        "special_ids": special_ids(Path(model.folder)),
    }


def _parse_script(file: Path) -> list[list[int]]:
    script = []
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            script.append(msgspec.json.decode(line, type=list[int]))
        except msgspec.DecodeError as error:
            raise ConfigError([f"script={str(file)!r} line {number}: expected a JSON list of ids: {error}"]) from error
    if not script:
        raise ConfigError([f"script={str(file)!r} is empty: expected a JSON list of token ids per line"])
    return script


def encode(options: Mapping[str, Any]) -> bytes:
    return json.dumps(options).encode()
