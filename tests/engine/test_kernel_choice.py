"""Which kernels serve: decided without torch, told with the reason."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_folder import write_folder

from diptych import EngineConfig
from diptych.errors import ConfigError
from diptych.kernel_choice import choose_kernels
from diptych.model_info import read_model_info
from diptych.options import engine_options, resolve_config


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = write_folder(tmp_path)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    change(folder, **sizes, head_dim=16)
    return folder


def resolved(folder: Path, **settings: Any) -> EngineConfig:
    return resolve_config(EngineConfig(str(folder), device="cpu", **settings), read_model_info(folder))


def change(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_native_kernels_serve_on_a_cpu_and_are_exact(folder: Path) -> None:
    config = resolved(folder)
    assert (config.kernels, config.exact) == ("native", True)
    options = engine_options(config, read_model_info(folder), {})["worker"]["options"]
    assert (options["kernels"], options["quantization"], options["kv_cache_dtype"]) == ("native", None, "auto")


def test_what_is_asked_for_is_taken(folder: Path) -> None:
    assert (resolved(folder, kernels="reference").kernels, resolved(folder, kernels="reference").exact) == (
        "reference",
        False,
    )
    assert resolved(folder, exact=False).exact is False
    assert resolved(folder, quantization="int8", kv_cache_dtype="int8").kernels == "native"


def test_a_cuda_device_takes_the_reference_kernels(folder: Path) -> None:
    choice = choose_kernels(EngineConfig(str(folder)), "cuda", folder)
    assert choice.kernels == "reference"
    assert "compute on the CPU" in choice.why


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"head_dim": 12}, "heads of a multiple of 8 dimensions, not 12"),
        ({"hidden_size": 33}, "an even hidden_size, not 33"),
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"sliding_window": 4096}, "sliding_window = 4096"),
    ],
)
def test_a_model_that_native_kernels_do_not_serve_takes_the_others(folder: Path, changes: Any, why: str) -> None:
    change(folder, **changes)
    choice = choose_kernels(EngineConfig(str(folder)), "cpu", folder)
    assert choice.kernels == "reference"
    assert why in choice.why
    with pytest.raises(ConfigError, match=r"exact=True needs the native kernels, which do not serve here: .*") as error:
        resolved(folder, exact=True, quantization="int4")
    assert len(error.value.problems) == 2
    assert all(why in line for line in error.value.problems)


def test_scripted_workers_have_no_kernels(folder: Path) -> None:
    config = resolved(folder, worker="scripted")
    assert (config.kernels, config.exact) == ("auto", True)


def test_threads_come_from_the_machine_and_end_at_64(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diptych.options.available_cpus", lambda: 200)
    assert resolved(folder).threads == 64
    monkeypatch.setattr("diptych.options.available_cpus", lambda: 3)
    assert resolved(folder).threads == 3
