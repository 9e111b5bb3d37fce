"""The core under virtual time: simulations, and the field's other schedulers beside it."""

from diptych_core._native import SimulationError, SimulationReport, demo_batching, simulate, simulate_suite

__all__ = ["SimulationError", "SimulationReport", "demo_batching", "simulate", "simulate_suite"]
