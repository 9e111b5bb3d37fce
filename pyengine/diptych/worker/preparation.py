"""What every kernel set does before it loads a model, and what a started worker is."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from diptych.models.config import LlamaConfig
from diptych.models.registry import read_config
from diptych.worker.arithmetic import SettingError
from diptych.worker.init import WorkerInit


class StepWorker(Protocol):
    """A started worker, whatever computes in it."""

    def run(self, step: Any, port: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Runs a step, marking its parts and bumping the port's progress once a layer: status [S] and ids [S]
        int32, log probabilities [S] float32 (0 where not asked for), and for the rows that ask for their likeliest ids
        those [C] int32 with log probabilities [C] float32, one row's after the other's; by the buffer protocol.

        Raises PlanError for a bad plan.
        """

    def reset(self) -> None:
        """Forgets block tables and last ids."""

    def stats(self) -> dict[str, Any]:
        """What it has done."""


@dataclass(frozen=True, slots=True)
class Started:
    """A warm worker, what `hello` says of it, and the seconds each part of the start took."""

    worker: StepWorker
    hello: dict[str, Any]
    timings: dict[str, float]


class Clock:
    """Seconds of each part, by name."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        """Ends the part called `name`."""
        now = time.monotonic()
        self.parts[name] = round(now - self._last, 6)
        self._last = now


def read_model_config(init: WorkerInit, folder: Path) -> LlamaConfig:
    """The model's shapes. Raises SettingError for a folder without a usable config.json, or another's tokenizer."""
    file = folder / "config.json"
    try:
        config = read_config(json.loads(file.read_text()))
    except FileNotFoundError:
        raise SettingError(f"model = {str(folder)!r}: there is no {file}") from None
    except json.JSONDecodeError as error:
        raise SettingError(f"{file} is not valid JSON: {error}") from error
    if init.vocabulary > config.vocabulary:
        raise SettingError(
            f"the tokenizer of {folder} has {init.vocabulary} ids, its model computes {config.vocabulary}: "
            "the tokenizer belongs to another model"
        )
    return config
