"""Which tensors a model folder holds, read from the headers of its safetensors files: strictly those of the model."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
# As safetensors itself limits it.
_MOST_HEADER_BYTES = 100_000_000

# Left behind by older exporters, recomputed by every reader; the second is the embedding again where they are tied.
_LEFTOVER = re.compile(r"(^|\.)rotary_emb\.inv_freq$")
_TIED_HEAD = "lm_head.weight"
_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


class WeightsError(ValueError):
    """The checkpoint's files do not hold exactly the tensors of the model."""


class StoredTensor(NamedTuple):
    """A tensor of a checkpoint. `dtype` is float32, bfloat16, float16, or safetensors' own name for another."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


def find_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder. Raises WeightsError naming what is not there."""
    index = folder / INDEX
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise WeightsError(f"{index} is not a safetensors index: {error!r}") from error
        files = [folder / name for name in names]
    else:
        files = [folder / SINGLE]
    if missing := [str(file) for file in files if not file.is_file()]:
        raise WeightsError(f"no weights: {', '.join(missing)} not found (safetensors files are read, no other format)")
    return files


def read_tensors(files: list[Path]) -> dict[str, StoredTensor]:
    """Every tensor of these files, by name. Raises WeightsError for a damaged file or a name that two files hold."""
    found: dict[str, StoredTensor] = {}
    for file in files:
        for name, entry in _read_header(file).items():
            if name in found:
                raise WeightsError(f"{file} holds {name}, which another file of the checkpoint holds too")
            found[name] = entry
    return found


def check_tensors(found: Mapping[str, StoredTensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises one WeightsError naming every tensor that is missing, unexpected or of another shape."""
    problems = [f"missing {name} {list(shape)}" for name, shape in shapes.items() if name not in found]
    for name, stored in found.items():
        if name in shapes:
            if stored.shape != shapes[name]:
                wanted = list(shapes[name])
                problems.append(f"{name} has shape {list(stored.shape)}, the configuration asks for {wanted}")
        elif not (_LEFTOVER.search(name) or name == _TIED_HEAD):
            problems.append(f"unexpected {name} {list(stored.shape)}")
    if problems:
        shown = "; ".join(problems[:20]) + (f"; and {len(problems) - 20} more" if len(problems) > 20 else "")
        raise WeightsError(f"the checkpoint does not fit its config.json: {shown}")


def _read_header(file: Path) -> dict[str, StoredTensor]:
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if length > min(_MOST_HEADER_BYTES, file.stat().st_size - 8):
                raise ValueError(f"its header of {length} bytes ends past the file")
            header = json.loads(opened.read(length))
        return {
            name: StoredTensor(file, _DTYPES.get(entry["dtype"], entry["dtype"]), tuple(entry["shape"]))
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{file} is not a valid safetensors file: {error}") from error
