"""The worker that computes with torch: every device, and the oracle of the native kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from diptych.worker import startup
from diptych.worker.executors import StepKind
from diptych.worker.init import WorkerInit
from diptych.worker.preparation import Started
from diptych.worker.runner import ModelRunner


def start(init: WorkerInit) -> Started:
    """See `startup.start`."""
    with torch.inference_mode():
        started = startup.start(init)
    return Started(ReferenceWorker(started.runner), started.hello, started.timings)


class ReferenceWorker:
    """See `preparation.StepWorker`."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner

    def run(self, step: Any, port: Any) -> tuple[Any, Any, Any, Any, Any]:
        """See `preparation.StepWorker`."""
        self._runner.executors.on_layer = port.progress
        with torch.inference_mode():
            result = self._runner.run(step, _marker(step))
        status, ids, logprobs, *candidates = (part.numpy() for part in result)
        return status, ids, logprobs, candidates[0], candidates[1]

    def reset(self) -> None:
        """See `preparation.StepWorker`."""
        with torch.inference_mode():
            self._runner.state.reset()

    def stats(self) -> dict[str, Any]:
        """Steps by kind."""
        return {"steps": dict(self._runner.executors.steps)}


def _marker(step: Any) -> Callable[[StepKind], None]:
    def forward_done(kind: StepKind) -> None:
        # In a mixed step both parts end together: the linear layers ran fused.
        for part in ("prefill", "decode"):
            if kind in (part, "mixed"):
                step.mark(f"{part}_done")

    return forward_done
