"""Which kernels serve a model: decided before a worker starts, without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from diptych.config import EngineConfig
from diptych.models.config import UnsupportedModelError
from diptych.models.registry import read_config

# The widest vector that attention takes apart at once.
HEAD_DIM_STEP = 8


class KernelChoice(NamedTuple):
    """`native` or `reference`, and why."""

    kernels: str
    why: str


def choose_kernels(config: EngineConfig, device: str, folder: Path) -> KernelChoice:
    """The kernels for the model in `folder` on `device` (cpu, cuda or auto)."""
    if config.kernels != "auto":
        return KernelChoice(config.kernels, "as configured")
    if device == "cuda":
        return KernelChoice("reference", "the native kernels compute on the CPU, and the device is cuda")
    if obstacle := native_obstacle(folder):
        return KernelChoice("reference", obstacle)
    return KernelChoice("native", "on a CPU, and they can serve this model")


def native_obstacle(folder: Path) -> str | None:
    """Why the native kernels cannot serve the model in `folder`; None where they can."""
    try:
        config = read_config(json.loads((folder / "config.json").read_bytes()))
    except (OSError, ValueError) as error:
        # Whoever loads the model says so again, and better.
        return str(error) if isinstance(error, UnsupportedModelError) else f"its config.json cannot be read: {error}"
    if config.head_dim % HEAD_DIM_STEP:
        return f"the native kernels take heads of a multiple of {HEAD_DIM_STEP} dimensions, not {config.head_dim}"
    if config.hidden % 2:
        return f"the native kernels take an even hidden_size, not {config.hidden}"
    return None
