"""The worker's side: a port that yields step plans as arrays and takes sampled ids back."""

from diptych_core._native import (
    Array,
    Control,
    Port,
    Step,
    WorkerConnectionError,
    WorkerError,
    WorkerProtocolError,
    WorkerUsageError,
    run_scripted,
)

__all__ = [
    "Array",
    "Control",
    "Port",
    "Step",
    "WorkerConnectionError",
    "WorkerError",
    "WorkerProtocolError",
    "WorkerUsageError",
    "run_scripted",
]
