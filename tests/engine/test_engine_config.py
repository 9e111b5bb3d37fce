"""EngineConfig: every problem is told at once, and nothing that is not built is accepted silently."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych import EngineConfig
from diptych.config import default_batched_tokens
from diptych.errors import ConfigError, DiptychError


def problems(**settings: Any) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        EngineConfig("model", **settings)
    assert all(line in str(raised.value) for line in raised.value.problems)
    return raised.value.problems


def test_defaults_are_valid_and_those_of_the_conventions() -> None:
    config = EngineConfig("model")
    assert (config.block_size, config.max_running, config.max_queued_requests) == (16, 256, 1024)
    assert (config.worker, config.device, config.dtype, config.prefix_cache) == ("process", "auto", "auto", True)
    assert (default_batched_tokens("cpu"), default_batched_tokens("cuda")) == (512, 8192)


def test_all_problems_are_told_together() -> None:
    found = problems(block_size=3, max_running=0, dtype="int3", worker="thread", threads="many", kernels="gpu")
    assert len(found) == 6
    for name, line in zip(("threads", "dtype", "worker", "kernels", "block_size", "max_running"), found, strict=True):
        assert line.startswith(f"{name}=")


@pytest.mark.parametrize("target", [0.0, -1.0, 3_600_001.0, float("nan"), float("inf")])
def test_a_target_that_is_no_time_is_refused(target: float) -> None:
    (line,) = problems(target_itl_ms=target)
    assert line.startswith("target_itl_ms=") and "from 0.001 to 3.6e+06" in line
    assert EngineConfig("model", target_itl_ms=20.5).target_itl_ms == 20.5


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        ({"exact": True}, "exact=True"),
        ({"quantization": "int4"}, "quantization='int4'"),
        ({"kv_cache_dtype": "int8"}, "kv_cache_dtype='int8'"),
    ],
)
def test_what_only_native_kernels_do_is_refused_elsewhere_by_name(setting: dict[str, Any], shown: str) -> None:
    assert problems(kernels="reference", **setting) == [f"{shown} needs the native kernels, and kernels='reference'"]
    (line,) = problems(device="cuda", **setting)
    assert line.startswith(f"{shown} needs the native kernels, which compute on the CPU")
    for kernels in ("auto", "native"):
        EngineConfig("model", kernels=kernels, **setting)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"kernels": "native", "device": "cuda"}, "kernels='native' computes on the CPU"),
        ({"quantization": "int3"}, "one of int8, int8-g32, int4, gguf"),
        ({"kv_cache_dtype": "fp8"}, "one of auto, float32, bfloat16, float16, int8"),
        ({"admission": "all"}, "one of predicted_peak, no_eviction, whole_prompt"),
        ({"eviction": "fifo"}, "one of lru, frequency_guarded"),
        ({"eviction": "frequency_guarded", "cache_ttl": 5.0}, "cache_ttl goes with eviction='lru'"),
        ({"cache_ttl": -1.0}, "a number from 0"),
        ({"threads": 65}, "from 1 to 64"),
        ({"threads": 0}, "from 1 to 64"),
        ({"overlap": 3}, "from 0 to 2"),
        ({"overlap": -1}, "from 0 to 2"),
        ({"max_running": 513}, "max_running=513 exceeds max_batched_tokens=512 (its default here)"),
        ({"max_running": 65, "max_batched_tokens": 64}, "max_running=65 exceeds max_batched_tokens=64:"),
        ({"kv_cache_bytes": 1 << 20, "memory_utilization": 0.5}, "give one of them"),
        ({"memory_utilization": 0.5, "device": "cpu"}, "give kv_cache_bytes"),
        ({"script": [[1]]}, "script is for worker='scripted' only"),
        ({"script_step_ms": 1.0, "worker": "inline"}, "script_step_ms is for worker='scripted' only"),
        ({"worker_python": "/bin/sh", "worker": "inline"}, "worker_python is for workers with a process"),
        ({"worker_python": "/no/python"}, "the path of an executable"),
        ({"script": "/no/file", "worker": "scripted"}, "an existing file"),
        ({"script": [], "worker": "scripted"}, "at least one list"),
        ({"script": [[1, -1]], "worker": "scripted"}, "0 or above"),
        ({"max_queued_requests": 0}, "at least 1"),
        ({"max_queued_tokens": 0}, "at least 1"),
        ({"max_ttft_ms": 0.0}, "milliseconds above 0"),
        ({"prefill_order": "lifo"}, "one of fcfs, shortest_uncached, longest_cached_prefix"),
        ({"tenant_weights": {"a": 0.0}}, "weights from 0.01 to 100"),
        ({"tenant_weights": {"": 1.0}}, "names of 1 to 256 bytes"),
        ({"memory_utilization": float("nan")}, "a fraction"),
        ({"script_step_ms": float("inf"), "worker": "scripted"}, "a number from 0"),
        ({"revision": " "}, "not empty"),
        ({"max_model_len": 1}, "at least 2"),
        ({"prefix_cache": 1}, "Expected `bool`"),
        ({"max_running": True}, "Expected `int`"),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_reason(settings: dict[str, Any], told: str) -> None:
    assert any(told in line for line in problems(**settings))


@given(st.integers(-2, 300))
def test_block_size_is_a_power_of_two_up_to_256(block_size: int) -> None:
    if block_size in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        assert EngineConfig("model", block_size=block_size).block_size == block_size
    else:
        assert problems(block_size=block_size)


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        EngineConfig("model").block_size = 32  # type: ignore[misc]


def test_replacing_a_field_checks_again(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        msgspec.structs.replace(EngineConfig("model"), block_size=5)


def test_config_errors_are_value_errors_with_a_stable_kind() -> None:
    with pytest.raises(ValueError, match="block_size") as raised:
        EngineConfig("model", block_size=0)
    assert isinstance(raised.value, DiptychError)
    assert raised.value.kind == "config"
    assert raised.value.details["problems"] == raised.value.problems  # type: ignore[attr-defined]


def test_messages_do_not_grow_with_the_value() -> None:
    (line,) = problems(dtype="x" * 100_000)
    assert len(line) < 300
