"""`quantize`: a model folder whose weights are packed in other formats, once, for native kernels to map."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from diptych.errors import ModelError
from diptych.hardware import available_cpus
from diptych.hub.cache import MANIFEST, publish, workspace
from diptych.hub.progress import Progress, make_progress
from diptych.hub.resolve import resolve_model
from diptych.models.config import PACKED_WEIGHTS, QUANT_METHOD, LlamaConfig, packed_shape
from diptych.models.registry import read_config

WEIGHT_FORMATS = ("int8", "int8-g32", "int4", "bfloat16", "float16", "float32")
# What of a model folder is neither weights nor about them.
_KEPT = ("*.json", "*.jinja", "*.txt", "tokenizer.model", "LICENSE*")
_NOT_KEPT = frozenset({"config.json", MANIFEST})


def quantize(model: str, to: str, output: Path, *, revision: str | None = None, progress: bool = True) -> Path:
    """Write the folder `output`: the model with its weights packed in the formats `to`, whole or not at all.

    `serve` takes the folder as a model; no other engine reads it. `model` is what `resolve_model` takes. Raises
    `ModelError`.
    """
    if to not in WEIGHT_FORMATS:
        raise ModelError(f"weights cannot be packed as {to!r}: {', '.join(WEIGHT_FORMATS)} are known")
    output = output.expanduser().absolute()
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ModelError(f"{output} exists already: give a new or an empty folder")
    folder = resolve_model(model, revision, progress=progress)
    config, shape = _read_config(folder)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with make_progress(progress) as shown, workspace(output.parent, output.name) as scratch:
            built = scratch / "folder"
            built.mkdir()
            _copy(folder, built)
            quantized = {**config, "quantization_config": {"quant_method": QUANT_METHOD, "format": to}}
            (built / "config.json").write_text(json.dumps(quantized, indent=2) + "\n")
            _pack(_source(folder), shape, to, built / PACKED_WEIGHTS, shown)
            publish(built, output, scratch)
    except OSError as error:
        raise ModelError(f"cannot write {output}: {error}") from error
    return output


def _read_config(folder: Path) -> tuple[dict[str, Any], LlamaConfig]:
    """The content of config.json, and the shape that it describes."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
        shape = read_config(config)
    except ValueError as error:
        raise ModelError(f"the model in {folder} cannot be packed: {error}") from error
    if shape.packed is not None:
        raise ModelError(f"the weights in {folder} are packed as {shape.packed!r} already: give the original model")
    return config, shape


def _source(folder: Path) -> Path:
    """The folder if it holds safetensors files, else its GGUF file."""
    files = sorted(folder.glob("*.gguf"))
    return files[0] if len(files) == 1 and not any(folder.glob("*.safetensors")) else folder


def _copy(folder: Path, built: Path) -> None:
    names = {file.name for pattern in _KEPT for file in folder.glob(pattern) if file.is_file()}
    for name in names - _NOT_KEPT:
        if not name.endswith(".safetensors.index.json"):
            shutil.copyfile(folder / name, built / name)


def _pack(source: Path, shape: LlamaConfig, to: str, file: Path, shown: Progress) -> None:
    from diptych_core import kernels

    options = {
        "source": str(source),
        "shape": packed_shape(shape),
        "formats": to,
        "file": str(file),
        "threads": available_cpus(),
    }
    begun: list[int] = []

    def report(done: int, total: int) -> None:
        if not begun:
            begun.append(total)
            shown.stage(f"packing as {to}", total, "B")
        shown.advance_to(done)

    try:
        kernels.pack_weights(json.dumps(options).encode(), report)
    except kernels.PackedWeightsError as error:
        raise ModelError(str(error)) from error
