"""A model's weights as the native kernels read them: packed once, kept in the user's cache, opened from there.

A packed file is found by where its checkpoint lies, by its formats and by the version of diptych; it holds the digest
of what it was made from, so that a changed checkpoint is packed anew.
"""

import hashlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diptych.cache_folder import cache_root
from diptych.models.config import PACKED_WEIGHTS, LlamaConfig, packed_shape, weight_shapes
from diptych.worker.arithmetic import SettingError
from diptych.worker.checkpoint import check_tensors, find_files, read_tensors
from diptych_core import __version__, kernels

log = logging.getLogger(__name__)

_FLOATS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class WeightSource:
    """Where weights come from: a folder of safetensors files, a GGUF file, or a file of packed weights.

    `stored`: the dtype that most of them are stored in. `formats`: those that the file is quantized in, if it is.
    """

    path: Path
    stored: str
    formats: str | None = None

    @property
    def packed(self) -> bool:
        """Whether the weights are packed already."""
        return self.path.name == PACKED_WEIGHTS


def find_source(folder: Path, config: LlamaConfig, quantization: str | None) -> WeightSource:
    """The weights to open. Raises WeightsError for a checkpoint that does not fit, SettingError for no GGUF file."""
    if config.packed is not None:
        return _find_packed(folder, config.packed, quantization)
    files = sorted(folder.glob("*.gguf"))
    if quantization == "gguf" or (files and not any(folder.glob("*.safetensors"))):
        if len(files) != 1:
            found = ", ".join(file.name for file in files) or "none"
            raise SettingError(f"quantization = 'gguf' needs one .gguf file beside the model; {folder} holds {found}")
        return WeightSource(files[0], "bfloat16", "gguf")
    tensors = read_tensors(find_files(folder))
    check_tensors(tensors, weight_shapes(config))
    return WeightSource(folder, tensors["model.norm.weight"].dtype)


def _find_packed(folder: Path, packed: str, quantization: str | None) -> WeightSource:
    if quantization not in (None, packed):
        raise SettingError(f"quantization = {quantization!r}: the weights in {folder} are packed as {packed!r} already")
    return WeightSource(folder / PACKED_WEIGHTS, packed if packed in _FLOATS else "bfloat16", packed)


def open_weights(source: WeightSource, config: LlamaConfig, formats: str, threads: int) -> kernels.Weights:
    """The packed weights, made now unless the cache holds them. Raises `kernels.PackedWeightsError`."""
    options: dict[str, Any] = {"shape": packed_shape(config), "threads": threads, "huge_pages": True}
    if source.packed:
        options["file"] = str(source.path)
    else:
        options |= {"source": str(source.path), "formats": formats, "file": str(packed_file(source.path, formats))}
    return kernels.Weights(json.dumps(options).encode(), lambda line: log.info("weights: %s", line))


def packed_file(source: Path, formats: str) -> Path:
    """Where the packed weights of a checkpoint are kept."""
    place = source.resolve()
    digest = hashlib.sha256(str(place).encode()).hexdigest()[:16]
    return cache_root() / "packed" / f"{place.name}-{formats}-{digest}-{__version__}.packed"
