"""The core under virtual time, beside the field's other schedulers; the core by itself; replays of event logs."""

from diptych_core._native import (
    Core,
    Plan,
    SimulationError,
    SimulationReport,
    demo_batching,
    replay,
    simulate,
    simulate_suite,
)

__all__ = [
    "Core",
    "Plan",
    "SimulationError",
    "SimulationReport",
    "demo_batching",
    "replay",
    "simulate",
    "simulate_suite",
]
