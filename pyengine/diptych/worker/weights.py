"""Checkpoint tensors from safetensors files: strictly those that the model names, mapped, not read twice."""

import json
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

# Left behind by older exporters, recomputed by every reader; the second is the embedding again where they are tied.
_LEFTOVER = re.compile(r"(^|\.)rotary_emb\.inv_freq$")
_TIED_HEAD = "lm_head.weight"


class WeightsError(ValueError):
    """The checkpoint's files do not hold exactly the tensors of the model."""


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


class Checkpoint:
    """Open, memory-mapped files of a model folder. A context manager; the mapping ends with it."""

    def __init__(self, folder: Path) -> None:
        self._stack = ExitStack()
        self._where: dict[str, Any] = {}
        for file in find_files(folder):
            try:
                opened = self._stack.enter_context(safe_open(file, framework="pt"))
            except SafetensorError as error:
                self.close()
                raise WeightsError(f"{file} is not a valid safetensors file: {error}") from error
            for name in opened.keys():  # noqa: SIM118 - safe_open is no mapping
                if name in self._where:
                    self.close()
                    raise WeightsError(f"{file} holds {name}, which another file of the checkpoint holds too")
                self._where[name] = opened

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unmaps the files."""
        self._where.clear()
        self._stack.close()

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raises one WeightsError naming every tensor that is missing, unexpected or of another shape."""
        problems = [f"missing {name} {list(shape)}" for name, shape in shapes.items() if name not in self._where]
        for name in self._where:
            found = tuple(self._where[name].get_slice(name).get_shape())
            if name in shapes:
                if found != shapes[name]:
                    problems.append(f"{name} has shape {list(found)}, the configuration asks for {list(shapes[name])}")
            elif not (_LEFTOVER.search(name) or name == _TIED_HEAD):
                problems.append(f"unexpected {name} {list(found)}")
        if problems:
            shown = "; ".join(problems[:20]) + (f"; and {len(problems) - 20} more" if len(problems) > 20 else "")
            raise WeightsError(f"the checkpoint does not fit its config.json: {shown}")

    def dtype(self, name: str) -> torch.dtype:
        """The stored dtype of a tensor."""
        stored: torch.Tensor = self._where[name].get_tensor(name)
        return stored.dtype

    def take(self, names: list[str], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """The named tensors joined along their first axis, in memory of its own."""
        slices = [self._where[name].get_slice(name).get_shape() for name in names]
        rows = [shape[0] for shape in slices]
        joined = torch.empty((sum(rows), *slices[0][1:]), dtype=dtype, device=device)
        for part, name in zip(torch.split(joined, rows), names, strict=True):
            part.copy_(self._where[name].get_tensor(name))
        return joined


def weight_bytes(shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> int:
    """Bytes of all tensors once loaded."""
    return sum(torch.Size(shape).numel() for shape in shapes.values()) * dtype.itemsize
