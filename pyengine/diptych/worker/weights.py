"""Checkpoint tensors as torch's, mapped, not read twice."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from diptych.worker.checkpoint import StoredTensor, WeightsError, find_files, read_tensors


class Checkpoint:
    """Open, memory-mapped files of a model folder. A context manager; the mapping ends with it."""

    def __init__(self, folder: Path) -> None:
        self._stack = ExitStack()
        files = find_files(folder)
        self.tensors: dict[str, StoredTensor] = read_tensors(files)
        self._opened: dict[Path, Any] = {}
        for file in files:
            try:
                self._opened[file] = self._stack.enter_context(safe_open(file, framework="pt"))
            except SafetensorError as error:
                self.close()
                raise WeightsError(f"{file} is not a valid safetensors file: {error}") from error

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unmaps the files."""
        self._opened.clear()
        self._stack.close()

    def take(self, names: list[str], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """The named tensors joined along their first axis, in memory of its own."""
        shapes = [self.tensors[name].shape for name in names]
        rows = [shape[0] for shape in shapes]
        joined = torch.empty((sum(rows), *shapes[0][1:]), dtype=dtype, device=device)
        for part, name in zip(torch.split(joined, rows), names, strict=True):
            part.copy_(self._opened[self.tensors[name].file].get_tensor(name))
        return joined


def weight_bytes(shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> int:
    """Bytes of all tensors once loaded."""
    return sum(torch.Size(shape).numel() for shape in shapes.values()) * dtype.itemsize
