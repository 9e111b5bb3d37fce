"""`quantize` and GGUF files: folders whose weights are packed or quantized already, as native workers open them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from tiny_gguf import write_gguf
from worker_rig import Schedule, start_native, start_runner, step_logits, write_random_llama

from diptych.errors import ModelError
from diptych.hub import WEIGHT_FORMATS, gguf_folder, quantize, resolve_model
from diptych.hub.progress import Silent
from diptych.models.config import PACKED_WEIGHTS
from diptych.worker.arithmetic import SettingError
from diptych_core import kernels
from diptych_service.cli import main

pytestmark = pytest.mark.model

TOKENS = [(7 * index * index + 3 * index + 1) % 96 for index in range(40)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_random_llama(folder, hidden_size=64, intermediate_size=96, num_attention_heads=4, head_dim=16)
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "diptych"


def logits_of(folder, start=start_native, **options):
    runner = start(folder, **options)
    schedule = Schedule(runner)
    request = schedule.add(0, TOKENS)
    return step_logits(runner, schedule.step([], [(request, len(TOKENS))]))


@pytest.mark.parametrize("formats", WEIGHT_FORMATS)
def test_a_quantized_folder_computes_what_quantization_at_load_does(folder, tmp_path, formats):
    packed = quantize(str(folder), formats, tmp_path / "packed", progress=False)
    asked = {"quantization": formats} if formats.startswith("int") else {"dtype": formats}
    arithmetic = {"dtype": asked.get("dtype", "float32")}
    assert torch.equal(logits_of(packed, **arithmetic), logits_of(folder, **{**arithmetic, **asked}))


def test_a_quantized_folder_holds_what_it_takes_and_no_more(folder, tmp_path, capsys):
    output = tmp_path / "deeper" / "packed"
    assert main(["quantize", str(folder), "--to", "int8", "--output", str(output)]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [str(output)]
    assert "packing as int8 100 %" in printed.err
    names = {file.name for file in output.iterdir()}
    assert names == {"config.json", "generation_config.json", "tokenizer.json", PACKED_WEIGHTS}
    assert [path.name for path in output.parent.iterdir()] == ["packed"]
    config = json.loads((output / "config.json").read_text())
    assert config.pop("quantization_config") == {"quant_method": "diptych", "format": "int8"}
    assert config == json.loads((folder / "config.json").read_text())
    assert resolve_model(str(output)) == output


def test_what_cannot_be_quantized_is_told_and_leaves_nothing(folder, tmp_path, capsys):
    packed = quantize(str(folder), "int8", tmp_path / "packed", progress=False)
    for model, output, told in (
        (folder, packed, "exists already"),
        (packed, tmp_path / "again", "packed as 'int8' already"),
        (tmp_path / "nothing", tmp_path / "new", "no model"),
    ):
        with pytest.raises(ModelError, match=told):
            quantize(str(model), "int4", output, progress=False)
    with pytest.raises(ModelError, match="int3"):
        quantize(str(folder), "int3", tmp_path / "new", progress=False)
    odd = tmp_path / "odd"
    odd.mkdir()
    write_random_llama(odd)
    (odd / "tokenizer.json").write_text("{}")
    assert main(["quantize", str(odd), "--to", "int4", "--output", str(tmp_path / "new")]) == 1
    assert "model.embed_tokens.weight" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"packed", "odd"}


def test_packed_weights_are_for_their_own_configuration_and_native_kernels(folder, tmp_path):
    packed = quantize(str(folder), "int8", tmp_path / "packed", progress=False)
    with pytest.raises(SettingError, match="packed as 'int8' already"):
        start_native(packed, quantization="int4")
    with pytest.raises(SettingError, match="only the native kernels read"):
        start_runner(packed)
    config = json.loads((packed / "config.json").read_text())
    (packed / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-3}))
    with pytest.raises(kernels.PackedWeightsError, match=r"another config\.json"):
        start_native(packed)
    (packed / "config.json").write_text(json.dumps(config))
    start_native(packed)
    with open(packed / PACKED_WEIGHTS, "r+b") as file:
        file.seek(-4096, 2)
        byte = file.read(1)[0]
        file.seek(-4096, 2)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(kernels.PackedWeightsError, match="damaged"):
        start_native(packed)


def test_another_quantization_is_refused_by_name(folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "awq"}}))
    with pytest.raises(ValueError, match="awq"):
        start_native(tmp_path)


@pytest.fixture
def gguf_file(tmp_path):
    return write_gguf(tmp_path / "tiny.gguf", marks=False)


def test_a_gguf_file_is_served_in_its_own_quantization(cache, tmp_path, gguf_file):
    folder = resolve_model(str(gguf_file))
    assert folder.parent == cache / "models"
    names = {"chat_template.jinja", "config.json", "generation_config.json", "diptych.json", "tiny.gguf"}
    assert {path.name for path in folder.iterdir()} == names | {"tokenizer.json", "tokenizer_config.json"}
    assert (folder / "tiny.gguf").resolve() == gguf_file
    assert resolve_model(str(gguf_file)) == folder
    # The same weights widened to float32: what they are, in another arithmetic.
    widened = logits_of(write_widened(gguf_file, tmp_path / "widened"), start_runner)[:, :96]
    for options in ({}, {"quantization": "gguf"}, {"dtype": "bfloat16"}):
        found = logits_of(folder, **options)
        assert (found - widened).abs().max() < 0.02 * widened.abs().max(), options
    told = logits_of(folder, quantization="int4")
    assert 0 < (told - widened).abs().max() < 0.5 * widened.abs().max()


def write_widened(gguf_file: Path, folder: Path) -> Path:
    """The folder of the GGUF file's model in float32."""
    folder.mkdir()
    gguf_folder.convert(gguf_file, folder, Silent())
    import gguf
    from safetensors.numpy import save_file

    with safe_open(folder / "model.safetensors", "pt") as halves:
        shapes = {name: tuple(halves.get_slice(name).get_shape()) for name in halves.keys()}  # noqa: SIM118
    values = {}
    for tensor in gguf.GGUFReader(gguf_file).tensors:
        name = gguf_folder.hf_name(tensor.name)
        rows = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(shapes[name]).astype(np.float32)
        heads = 4 if "q_proj" in name else 2 if "k_proj" in name else 0
        values[name] = np.ascontiguousarray(gguf_folder.unpermute(rows, heads) if heads else rows)
    save_file(values, folder / "model.safetensors")
    return folder


def test_a_gguf_file_that_changed_is_described_again(cache, gguf_file):
    folder = resolve_model(str(gguf_file))
    (folder / "config.json").unlink()
    assert (resolve_model(str(gguf_file)) / "config.json").is_file()
    gguf_file.write_bytes(gguf_file.read_bytes()[:100])
    with pytest.raises(ModelError, match="not a valid GGUF file"):
        resolve_model(str(gguf_file))
    with pytest.raises(ModelError, match="leave it out"):
        resolve_model(str(gguf_file), "main")


def test_a_quantized_folder_is_made_from_a_gguf_file(cache, tmp_path, gguf_file):
    packed = quantize(str(gguf_file), "int8-g32", tmp_path / "packed", progress=False)
    assert {"chat_template.jinja", "tokenizer.json", PACKED_WEIGHTS} <= {path.name for path in packed.iterdir()}
    assert not list(packed.glob("*.gguf"))
    assert torch.isfinite(logits_of(packed)).all()
