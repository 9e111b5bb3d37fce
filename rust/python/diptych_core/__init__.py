"""The Rust core of Diptych, seen from Python: `engine` for hosts, `worker` for workers, `text` and `sim` for tools.

Errors carry `kind`, a snake_case name that stays the same across releases; messages are for people and may change.
Their bases are `EngineError`, `worker.WorkerError`, `text.TextError` and `sim.SimulationError`.
"""

import os as _os
import sys as _sys


def _libc() -> str | None:
    try:
        return _os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, ValueError, OSError):
        return None


if _sys.platform != "linux" or _libc() is None:
    raise ImportError(
        f"diptych_core runs on Linux with glibc only, and this is {_sys.platform} with "
        f"{_libc() or 'another C library'}: use a glibc-based Linux system or container image (for example debian or "
        "ubuntu, not alpine)"
    )

# The check above explains what a failed load of the binary would not.
from diptych_core._native import (  # noqa: E402
    EngineClosed,
    EngineError,
    EngineForked,
    EngineOptionsError,
    EngineStartError,
    EngineSystemError,
    InvalidRequest,
    __version__,
    build_profile,
    now_ns,
)

__all__ = [
    "EngineClosed",
    "EngineError",
    "EngineForked",
    "EngineOptionsError",
    "EngineStartError",
    "EngineSystemError",
    "InvalidRequest",
    "__version__",
    "build_profile",
    "now_ns",
]
