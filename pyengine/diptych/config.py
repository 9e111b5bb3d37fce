"""`EngineConfig`: everything one can set about an engine, checked together."""

from __future__ import annotations

import os

import msgspec

from diptych.errors import ConfigError
from diptych.validation import Problems

DTYPES = ("auto", "float32", "bfloat16", "float16")
DEVICES = ("auto", "cpu", "cuda")
WORKERS = ("process", "inline", "scripted", "scripted_thread")
SCRIPTED = ("scripted", "scripted_thread")
KERNELS = ("auto", "native", "reference")
QUANTIZATIONS = ("int8", "int8-g32", "int4", "gguf")
PREFILL_ORDERS = ("fcfs", "shortest_uncached", "longest_cached_prefix")
ADMISSIONS = ("predicted_peak", "no_eviction", "whole_prompt")
EVICTIONS = ("lru", "frequency_guarded")
TOOL_CALL_PARSERS = ("auto", "none", "mistral", "hermes", "llama3_json", "json")
REASONING_PARSERS = ("auto", "none", "think", "magistral")
KV_CACHE_DTYPES = ("auto", "float32", "bfloat16", "float16", "int8")
MAX_THREADS = 64
MAX_TENANT_BYTES = 256
# Steps in flight beyond the one that runs, at most.
DEEPEST_OVERLAP = 2
MAX_TTL_S = 366 * 86_400.0
MIN_EVENT_LOG_BYTES = 4096
MAX_KV_EVENTS = 1 << 20

Script = str | list[list[int]]

# Bounds of a target for the gap between two tokens, in milliseconds: a microsecond, an hour.
SHORTEST_ITL_MS, LONGEST_ITL_MS = 0.001, 3_600_000.0

_CHOICES = {
    "dtype": DTYPES,
    "device": DEVICES,
    "worker": WORKERS,
    "kernels": KERNELS,
    "quantization": QUANTIZATIONS,
    "kv_cache_dtype": KV_CACHE_DTYPES,
    "prefill_order": PREFILL_ORDERS,
    "admission": ADMISSIONS,
    "eviction": EVICTIONS,
    "tool_call_parser": TOOL_CALL_PARSERS,
    "reasoning_parser": REASONING_PARSERS,
}


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to run one model. Wrong values, all of them at once, raise `ConfigError` at construction.

    `None` means unbounded or chosen at start; `AsyncEngine.config` then shows what was chosen.

    - `model`, `revision`: a known name, a folder, or a Hugging Face id at a revision.
    - `kernels`: `native` computes on the CPU without torch, `reference` with torch on any device; `auto`: native on a
      CPU where they can serve the model.
    - `dtype`: arithmetic of the worker. `quantization`: weights in `int8`, `int8-g32` or `int4` (mostly a
      scale per 32 inputs) or as the model's own `gguf` file has them; by native kernels.
    - `exact`: a request's results depend on its own tokens only, to the bit. What native kernels do, so there the
      default; True refuses to run otherwise.
    - `max_model_len`: tokens of prompt and output together; the model's own limit by default and at most.
    - `block_size`: tokens a KV block holds; a power of two, 1..256. `kv_cache_dtype`: how native kernels store keys and
      values.
    - `kv_cache_bytes` or `memory_utilization`: KV pool in bytes, or as a fraction of the CUDA device's memory.
    - `prefix_cache`: whether prompts that begin alike share what was computed. `eviction`: what of it goes first where
      room is needed, by `lru` what was used longest ago, by `frequency_guarded` what was used least often lately.
      `cache_ttl`: seconds after its last use for which it can be found, for requests that name none; with `lru`.
    - `admission`: when a request gets memory. `predicted_peak`: when all that run and it will fit as far as lengths of
      earlier outputs tell, so that preemptions are rare; `no_eviction`: when they fit with all of their `max_tokens`,
      so that there are none; `whole_prompt`: when its prompt fits.
    - `max_running`: requests in one step; `max_batched_tokens`, `max_prefill_tokens`: tokens in one step.
    - `target_itl_ms`: how long the gap between two tokens of a stream may be, where requests do not say it themselves:
      prompts are computed in chunks that leave room for it. Streams that are ahead may see a gap a fifth longer. None:
      steps are as large as `max_batched_tokens` lets them be.
    - `overlap`: steps planned while another runs, 0 to 2, so that the worker need not wait for the next. Nothing is
      planned over a step that computes prompts, nor where a running request has penalties.
    - `max_queued_requests`, `max_queued_tokens`: requests waiting for room, and their prompt tokens that the prefix
      cache does not have; beyond, `OverloadedError`. `max_ttft_ms`: so does a request whose first token is expected
      later than that after its submission.
    - `prefill_order`: which of the prompts of one tenant and priority is computed first: `fcfs`, `shortest_uncached`
      or `longest_cached_prefix`. `tenant_weights`: shares of tenants by name, 0.01..100; 1 for all others.
    - `tool_call_parser`, `reasoning_parser`: how the model writes tool calls (`mistral`, `hermes`, `llama3_json`,
      `json`) and marks its reasoning (`think`, `magistral`), so that chats give both apart from the text. `auto`: as
      the marks in its chat template tell; `none`: all is text.
    - `worker`: `process`, `inline` (a thread here), `scripted` (no model, a process), `scripted_thread` (no model, a
      thread here). `script`: a file with a JSON list of token ids per line, or those lists; line `i mod n` answers the
      i-th request, without a script the next token is a hash of all before. `script_step_ms`: time of its step.
    - `event_log`: a file for everything that goes into the core, every prompt and output among it, at most
      `event_log_bytes` of it; `diptych replay` reads it. The file of the run before becomes `FILE.1`.
    - `kv_events`: events of the prefix cache that are kept for readers; 0 is off.
    - `worker_python`: the interpreter of worker processes. `threads`: CPU threads of a worker, 1..64.
    """

    model: str
    revision: str | None = None
    kernels: str = "auto"
    dtype: str = "auto"
    quantization: str | None = None
    max_model_len: int | None = None
    block_size: int = 16
    kv_cache_dtype: str = "auto"
    kv_cache_bytes: int | None = None
    memory_utilization: float | None = None
    prefix_cache: bool = True
    eviction: str = "lru"
    cache_ttl: float | None = None
    admission: str = "predicted_peak"
    max_running: int = 256
    max_batched_tokens: int | None = None
    max_prefill_tokens: int | None = None
    target_itl_ms: float | None = None
    overlap: int = 0
    max_queued_requests: int = 1024
    max_queued_tokens: int | None = None
    max_ttft_ms: float | None = None
    prefill_order: str = "fcfs"
    tenant_weights: dict[str, float] = {}  # msgspec copies empty defaults
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    device: str = "auto"
    worker: str = "process"
    worker_python: str | None = None
    threads: int | None = None
    exact: bool | None = None
    script: Script | None = None
    script_step_ms: float = 0.0
    event_log: str | None = None
    event_log_bytes: int = 256 * 1024 * 1024
    kv_events: int = 0

    def __post_init__(self) -> None:
        if problems := config_problems(self):
            raise ConfigError(problems)


def default_batched_tokens(device: str) -> int:
    """Tokens a step where nothing is said: what keeps the device busy without making running streams wait long."""
    return 8192 if device == "cuda" else 512


def config_problems(config: EngineConfig) -> list[str]:
    """Every problem of the configuration that can be told without the model, one line each."""
    found = Problems(config)
    _check_choices(found)
    _check_ranges(config, found)
    if not found.lines:
        _check_together(config, found)
    return found.lines


def _check_choices(found: Problems) -> None:
    for name, allowed in _CHOICES.items():
        for _, value in found.values(name):
            found.require(name, value in allowed, f"one of {', '.join(allowed)}")


def _check_ranges(config: EngineConfig, found: Problems) -> None:
    for name, value in found.values("model", "revision"):
        found.require(name, bool(value.strip()), "a name that is not empty")
    for _, value in found.values("block_size"):
        found.require("block_size", value in {1 << power for power in range(9)}, "a power of two from 1 to 256")
    found.at_least(1, "max_running", "max_batched_tokens", "max_prefill_tokens")
    _check_queue(found)
    found.between(1, MAX_THREADS, "threads")
    found.between(0, DEEPEST_OVERLAP, "overlap")
    found.at_least(2, "max_model_len")
    found.at_least(1, "kv_cache_bytes")
    found.between(0.0, 3_600_000.0, "script_step_ms")
    found.between(SHORTEST_ITL_MS, LONGEST_ITL_MS, "target_itl_ms")
    found.between(0.0, MAX_TTL_S, "cache_ttl")
    found.at_least(MIN_EVENT_LOG_BYTES, "event_log_bytes")
    found.between(0, MAX_KV_EVENTS, "kv_events")
    for name, value in found.values("event_log"):
        folder = os.path.dirname(value) or "."
        writable = bool(os.path.basename(value)) and os.path.isdir(folder) and os.access(folder, os.W_OK)
        found.require(name, writable, "a file in an existing, writable folder")
    for name, value in found.values("memory_utilization"):
        found.require(name, 0.0 < value <= 1.0, "a fraction above 0, at most 1")
    for name, value in found.values("worker_python"):
        executable = os.path.isfile(value) and os.access(value, os.X_OK)
        found.require(name, executable, "the path of an executable Python interpreter")
    if isinstance(config.script, list) and "script" not in found.skip:
        found.require("script", all(min(ids, default=0) >= 0 for ids in config.script), "token ids, 0 or above")
        found.require("script", bool(config.script), "at least one list of token ids")
    for name, value in found.values("script"):
        if isinstance(value, str):
            found.require(name, os.path.isfile(value), "an existing file")


def _check_queue(found: Problems) -> None:
    found.at_least(1, "max_queued_requests", "max_queued_tokens")
    for name, value in found.values("max_ttft_ms"):
        found.require(name, 0.0 < value <= 1e9, "milliseconds above 0, at most 1e9")
    for name, value in found.values("tenant_weights"):
        named = all(tenant and len(tenant.encode()) <= MAX_TENANT_BYTES for tenant in value)
        found.require(name, named, f"names of 1 to {MAX_TENANT_BYTES} bytes")
        found.require(name, all(0.01 <= weight <= 100.0 for weight in value.values()), "weights from 0.01 to 100")


def native_only(config: EngineConfig) -> list[str]:
    """What the configuration asks for that no other kernels than the native ones have."""
    asked = {
        "quantization": config.quantization,
        "kv_cache_dtype": None if config.kv_cache_dtype == "auto" else config.kv_cache_dtype,
        "exact": config.exact or None,
    }
    return [f"{name}={value!r}" for name, value in asked.items() if value is not None]


def _check_kernels(config: EngineConfig, found: Problems) -> None:
    if config.kernels == "native" and config.device == "cuda":
        found.add("kernels='native' computes on the CPU, and device='cuda': leave one of them out")
    for setting in () if config.worker in SCRIPTED else native_only(config):
        if config.kernels == "reference":
            found.add(f"{setting} needs the native kernels, and kernels='reference'")
        elif config.device == "cuda":
            found.add(f"{setting} needs the native kernels, which compute on the CPU, and device='cuda'")


def _check_together(config: EngineConfig, found: Problems) -> None:
    _check_kernels(config, found)
    tokens = config.max_batched_tokens or default_batched_tokens(config.device)
    if config.max_running > tokens:
        origin = "" if config.max_batched_tokens else " (its default here)"
        found.add(
            f"max_running={config.max_running} exceeds max_batched_tokens={tokens}{origin}: every running request "
            "needs a token of each step, so raise max_batched_tokens or lower max_running"
        )
    if config.cache_ttl is not None and config.eviction != "lru":
        found.add(f"cache_ttl goes with eviction='lru', and eviction={config.eviction!r}: leave one of them out")
    if config.kv_cache_bytes is not None and config.memory_utilization is not None:
        found.add("kv_cache_bytes and memory_utilization both size the KV cache: give one of them")
    if config.memory_utilization is not None and config.device == "cpu":
        found.add("memory_utilization counts the memory of a CUDA device; on device='cpu' give kv_cache_bytes")
    if config.worker not in SCRIPTED:
        for name, neutral in (("script", None), ("script_step_ms", 0.0)):
            if getattr(config, name) != neutral:
                found.add(f"{name} is for worker='scripted' only, and worker={config.worker!r}")
    if config.worker_python is not None and config.worker not in ("process", "scripted"):
        found.add(f"worker_python is for workers with a process of their own, and worker={config.worker!r}")
