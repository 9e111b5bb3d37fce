"""The scheduler under virtual time: arrivals, a latency model, replicas behind a router, other policies beside ours.

Options and report are those of `rust/sim`; absent options have its defaults.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from diptych.errors import DiptychError
from diptych.hub.progress import Progress, Silent
from diptych_core.sim import SimulationError as _CoreSimulationError
from diptych_core.sim import SimulationReport, demo_batching
from diptych_core.sim import simulate as _simulate
from diptych_core.sim import simulate_suite as _simulate_suite

__all__ = ["SimulationError", "SimulationReport", "demo_batching", "run_suite", "simulate"]


class SimulationError(DiptychError):
    """Options that cannot work (`kind` is "config"), an unreadable trace, or a scheduler that broke its rules."""

    kind = "simulation"


class _Stages:
    """Tells a progress of one stage after the other: a policy, or an example of the suite."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._name: str | None = None

    def __call__(self, name: str, ended: int, expected: int, _virtual_s: float) -> None:
        if name != self._name:
            self._name = name
            self._progress.stage(name, expected, "requests")
        self._progress.advance_to(ended)


def simulate(options: Mapping[str, Any], *, progress: Progress | None = None) -> SimulationReport:
    """Run a workload once under each policy.

    Raises `SimulationError`. KeyboardInterrupt ends it within a tenth of a second.
    """
    try:
        return _simulate(json.dumps(options), _Stages(progress or Silent()))
    except _CoreSimulationError as error:
        raise _translated(error) from None


def run_suite(fuzz_requests: int, *, progress: Progress | None = None) -> tuple[str, bool]:
    """Run the examples that must hold: a page of results in Markdown, and whether all hold.

    The last example is `fuzz_requests` random requests with every invariant checked. Raises `SimulationError`.
    """
    try:
        return _simulate_suite(fuzz_requests, _Stages(progress or Silent()))
    except _CoreSimulationError as error:
        raise _translated(error) from None


def _translated(error: _CoreSimulationError) -> SimulationError:
    kind = "config" if error.kind == "options" else error.kind
    return SimulationError(str(error), kind=kind)
