"""A model's weights as the native kernels read them: packed once, kept in the user's cache, opened from there.

A packed file is found by where its checkpoint lies, by its formats and by the version of diptych; it holds the digest
of what it was made from, so that a changed checkpoint is packed anew.
"""

import hashlib
import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

from diptych.cache_folder import cache_root
from diptych.models.config import LlamaConfig, rotary_frequencies, weight_shapes
from diptych.worker.arithmetic import SettingError
from diptych.worker.checkpoint import check_tensors, find_files, read_tensors
from diptych_core import __version__, kernels

log = logging.getLogger(__name__)

# Fields of a model's shape that packing has no use for.
_NOT_PACKED = frozenset({"max_positions", "rope"})


@dataclass(frozen=True, slots=True)
class WeightSource:
    """What is packed: a folder of safetensors files or a GGUF file, and the dtype that most of it is stored in."""

    path: Path
    stored: str


def find_source(folder: Path, config: LlamaConfig, quantization: str | None) -> WeightSource:
    """The weights to pack. Raises WeightsError for a checkpoint that does not fit, SettingError for no GGUF file."""
    if quantization == "gguf":
        files = sorted(folder.glob("*.gguf"))
        if len(files) != 1:
            found = ", ".join(file.name for file in files) or "none"
            raise SettingError(f"quantization = 'gguf' needs one .gguf file beside the model; {folder} holds {found}")
        return WeightSource(files[0], "bfloat16")
    tensors = read_tensors(find_files(folder))
    check_tensors(tensors, weight_shapes(config))
    return WeightSource(folder, tensors["model.norm.weight"].dtype)


def open_weights(source: WeightSource, config: LlamaConfig, formats: str, threads: int) -> kernels.Weights:
    """The packed weights, made now unless the cache holds them. Raises `kernels.PackedWeightsError`."""
    shape = {name: value for name, value in asdict(config).items() if name not in _NOT_PACKED}
    options = {
        "source": str(source.path),
        "shape": {**shape, "rope_frequencies": rotary_frequencies(config)},
        "formats": formats,
        "file": str(packed_file(source.path, formats)),
        "threads": threads,
        "huge_pages": True,
    }
    return kernels.Weights(json.dumps(options).encode(), lambda line: log.info("weights: %s", line))


def packed_file(source: Path, formats: str) -> Path:
    """Where the packed weights of a checkpoint are kept."""
    place = source.resolve()
    digest = hashlib.sha256(str(place).encode()).hexdigest()[:16]
    return cache_root() / "packed" / f"{place.name}-{formats}-{digest}-{__version__}.packed"
