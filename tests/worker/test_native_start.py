"""The native worker's start: what it imports, says and keeps in the cache."""

import logging
import subprocess
import sys

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from worker_rig import Schedule, start_native, worker_init, write_random_llama

from diptych.worker import native
from diptych.worker.arithmetic import SettingError
from diptych.worker.packed_weights import packed_file
from diptych_core import kernels

pytestmark = pytest.mark.model
PROBE = """
import sys, msgspec
from diptych.worker import loop
class Port:
    def __init__(self): self.said = []
    def hello(self, info): self.said.append(info)
    def ready(self, info): self.said.append(info)
    def fail(self, error_class, message): sys.exit(f"{error_class}: {message}")
    def next(self): return None
    def progress(self): pass
assert loop.run(Port(), bytes.fromhex(sys.argv[1]))
print([name for name in ("torch", "transformers", "numpy", "safetensors", "gguf", "asyncio") if name in sys.modules])
"""


@pytest.fixture
def folder(tmp_path):
    write_random_llama(tmp_path)
    return tmp_path


def test_a_native_worker_imports_nothing_heavy(folder):
    init = msgspec.msgpack.encode(worker_init(folder, kernels="native"))
    probe = subprocess.run(
        [sys.executable, "-P", "-c", PROBE, init.hex()], capture_output=True, text=True, timeout=60, check=False
    )
    assert probe.returncode == 0, probe.stderr
    assert probe.stdout.strip() == "[]"


def test_what_was_chosen_is_logged(folder, caplog):
    with caplog.at_level(logging.INFO):
        started = native.start(worker_init(folder, kernels="native"))
    text = "\n".join(caplog.messages)
    best = kernels.instruction_sets()[0]
    assert f"instruction set: {best} (the fastest of this machine" in text
    assert "arithmetic: float32 (as configured), weights: auto, KV cache: float32" in text
    assert "1 threads; huge pages hold" in text
    assert "packing the weights into" in text
    assert started.hello["implementation"]["instruction_set"] == best
    assert started.hello["capabilities"] == ["exact"]
    assert set(started.timings) == {"weights", "kv"}


def test_packed_weights_are_kept_and_packed_anew_when_the_checkpoint_changes(folder, caplog):
    prompt = list(range(9))
    first = Schedule(start_native(folder)).generate([prompt], 8, 4)
    file = packed_file(folder, "auto")
    written = file.stat().st_mtime_ns
    assert Schedule(start_native(folder)).generate([prompt], 8, 4) == first
    assert file.stat().st_mtime_ns == written
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].flip(0)
    save_file(tensors, folder / "model.safetensors")
    with caplog.at_level(logging.INFO):
        changed = Schedule(start_native(folder)).generate([prompt], 8, 4)
    assert changed != first
    assert any("were made with a checkpoint" in line for line in caplog.messages)
    assert file.stat().st_mtime_ns != written


def test_a_damaged_packed_file_is_packed_anew(folder, caplog):
    first = Schedule(start_native(folder)).generate([[1, 2, 3]], 8, 4)
    file = packed_file(folder, "auto")
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)
    with caplog.at_level(logging.INFO):
        assert Schedule(start_native(folder)).generate([[1, 2, 3]], 8, 4) == first
    assert any("are damaged" in line for line in caplog.messages)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"device": "cuda"}, "compute on the CPU"),
        ({"dtype": "int8"}, "dtype = 'int8'"),
        ({"quantization": "gguf"}, "needs one .gguf file beside the model"),
    ],
)
def test_settings_that_do_not_go_together_are_refused_by_name(folder, changes, words):
    with pytest.raises(SettingError, match=words):
        native.start(worker_init(folder, kernels="native", **changes))


def test_formats_that_do_not_fit_the_model_are_refused_by_name(folder):
    # 48 and 80 inputs are no multiples of 32.
    with pytest.raises(kernels.PackedWeightsError, match="multiple of 32"):
        native.start(worker_init(folder, kernels="native", quantization="int4"))
    with pytest.raises(kernels.PackedWeightsError, match="int3"):
        native.start(worker_init(folder, kernels="native", quantization="int3"))
    with pytest.raises(kernels.KernelOptionsError, match='kv "fp8" is not known'):
        native.start(worker_init(folder, kernels="native", kv_cache_dtype="fp8"))


@pytest.mark.parametrize(("kv", "bytes_per_token"), [("float32", 256), ("bfloat16", 128), ("int8", 80)])
def test_the_cache_format_changes_the_number_of_blocks(folder, kv, bytes_per_token):
    # Two layers, keys and values, two heads of eight dimensions; int8 has two scales of four bytes a head besides.
    started = native.start(worker_init(folder, kernels="native", kv_cache_dtype=kv, block_size=16))
    layout = started.hello["kv_layout"]
    assert layout["dtype"] == kv
    assert layout["bytes_per_block"] >= 16 * bytes_per_token
    assert started.hello["num_blocks"] == (1 << 20) // layout["bytes_per_block"]


def test_greedy_ids_are_those_of_the_largest_logits(folder):
    runner = start_native(folder)
    schedule = Schedule(runner)
    request = schedule.add(0, range(7))
    logits = runner.logits(schedule.step([], [(request, 7)]))
    ids = runner.run(schedule.step([], [(request, 7)])).ids
    assert ids.tolist() == [int(torch.argmax(logits[0]))]
