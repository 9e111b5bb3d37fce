"""Checkpoints are read strictly: every tensor that does not fit is named."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from worker_rig import (
    KERNELS,
    VOCABULARY,
    Schedule,
    start_either,
    start_runner,
    start_worker,
    worker_init,
    write_random_llama,
)

from diptych.models.config import UnsupportedModelError
from diptych.models.registry import read_config
from diptych.worker.arithmetic import SettingError, choose_dtype, cpu_flags
from diptych.worker.checkpoint import WeightsError
from diptych.worker.devices import choose_device
from diptych.worker.startup import start
from diptych.worker.weights import Checkpoint


@pytest.fixture
def folder(tmp_path):
    write_random_llama(tmp_path)
    return tmp_path


either_kernels = pytest.mark.parametrize("kernels", KERNELS)


def rewrite(folder, change):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


@either_kernels
def test_a_missing_tensor_is_named(folder, kernels):
    rewrite(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(WeightsError, match=r"missing model\.layers\.1\.mlp\.up_proj\.weight \[80, 48\]"):
        start_worker(kernels, folder)


@either_kernels
def test_an_unexpected_tensor_is_named(folder, kernels):
    rewrite(folder, lambda tensors: tensors.update({"model.layers.2.extra": torch.ones(2, 3)}))
    with pytest.raises(WeightsError, match=r"unexpected model\.layers\.2\.extra \[2, 3\]"):
        start_worker(kernels, folder)


@either_kernels
def test_another_shape_is_named_beside_the_expected_one(folder, kernels):
    rewrite(folder, lambda tensors: tensors.update({"model.norm.weight": torch.ones(40)}))
    with pytest.raises(WeightsError, match=r"model\.norm\.weight has shape \[40\], the configuration asks for \[48\]"):
        start_worker(kernels, folder)


@either_kernels
def test_all_problems_come_in_one_message(folder, kernels):
    rewrite(folder, lambda tensors: [tensors.pop("model.norm.weight"), tensors.update({"surplus": torch.ones(1)})])
    with pytest.raises(WeightsError, match=r"missing model\.norm\.weight .*unexpected surplus"):
        start_worker(kernels, folder)


@either_kernels
def test_leftover_rotary_buffers_are_tolerated(folder, kernels):
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    rewrite(folder, lambda tensors: tensors.update({name: torch.ones(4)}))
    start_worker(kernels, folder)


@either_kernels
@pytest.mark.parametrize("content", [None, b"", b"not safetensors at all, but long enough for a header"])
def test_no_or_broken_files_are_named(folder, kernels, content):
    file = folder / "model.safetensors"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(WeightsError, match=r"model\.safetensors"):
        start_worker(kernels, folder)


@either_kernels
def test_shards_give_the_same_ids_as_one_file(folder, kernels):
    prompt = list(range(9))
    with torch.inference_mode():
        whole = Schedule(start_either(kernels, folder)).generate([prompt], 8, 4)
        tensors = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        names = sorted(tensors)
        parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
        for file, part in parts.items():
            save_file({name: tensors[name] for name in part}, folder / file)
        index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        assert Schedule(start_either(kernels, folder)).generate([prompt], 8, 4) == whole
    (folder / "model-2.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"model-2\.safetensors not found"):
        start_worker(kernels, folder)


def test_one_file_twice_holding_a_tensor_is_refused(folder):
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors, folder / "again.safetensors")
    index = {"weight_map": {"a": "model.safetensors", "b": "again.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(WeightsError, match="another file of the checkpoint holds too"):
        Checkpoint(folder)


def test_sixteen_bit_weights_are_widened_exactly_for_float32(folder):
    rewrite(folder, lambda tensors: tensors.update({name: value.bfloat16() for name, value in tensors.items()}))
    model = start_runner(folder, dtype="float32").executors.model
    stored = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    assert model.weights.embedding.dtype == torch.float32
    assert torch.equal(model.weights.embedding, stored.float())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sliding_window": 4096}, "sliding_window = 4096"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}, "'yarn'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "sliding_attention"),
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"architectures": None}, "not named"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(folder, change, words):
    config = json.loads((folder / "config.json").read_text())
    with pytest.raises(UnsupportedModelError, match=words):
        read_config({**config, **change})


def test_settings_that_are_not_built_are_refused_by_name(folder):
    with pytest.raises(SettingError, match="kv_cache_dtype = 'fp8' needs the native kernels"):
        start(worker_init(folder, kv_cache_dtype="fp8"))
    with pytest.raises(SettingError, match="dtype = 'int8'"):
        start(worker_init(folder, dtype="int8"))
    with pytest.raises(SettingError, match="device = 'tpu'"):
        start(worker_init(folder, device="tpu"))
    with pytest.raises(SettingError, match=f"has 1000 ids, its model computes {VOCABULARY}"):
        start(worker_init(folder, vocabulary=1000))
    if not torch.cuda.is_available():
        with pytest.raises(SettingError, match="sees no CUDA device"):
            choose_device("cuda")


@pytest.mark.parametrize(
    ("name", "device", "stored", "flags", "dtype"),
    [
        ("auto", "cpu", "bfloat16", {"avx2"}, "float32"),
        ("auto", "cpu", "bfloat16", {"avx2", "avx512_bf16"}, "bfloat16"),
        ("auto", "cpu", "float16", {"amx_bf16"}, "bfloat16"),
        ("auto", "cpu", "float32", {"avx512_bf16"}, "float32"),
        ("auto", "cuda", "float16", {"avx2"}, "float16"),
        ("float32", "cuda", "bfloat16", set(), "float32"),
        ("bfloat16", "cpu", "float32", set(), "bfloat16"),
    ],
)
def test_the_arithmetic_follows_the_machine_and_the_checkpoint(name, device, stored, flags, dtype):
    assert choose_dtype(name, device, stored, frozenset(flags))[0] == dtype


def test_cpu_flags_are_read_from_the_first_processor(tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nflags\t\t: fpu avx2 avx512_bf16\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert cpu_flags(file) == {"fpu", "avx2", "avx512_bf16"}
    assert cpu_flags(tmp_path / "absent") == frozenset()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_greedy_ids_on_the_gpu_equal_those_of_the_cpu(folder):
    prompts = [list(range(7)), list(range(20, 50))]
    with torch.inference_mode():
        wanted = Schedule(start_runner(folder)).generate(prompts, 8, 9)
        assert Schedule(start_runner(folder, device="cuda")).generate(prompts, 8, 9) == wanted
