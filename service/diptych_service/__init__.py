"""The OpenAI-compatible microservice: `create_app` for a host of one's own, `diptych serve` for the whole of it.

Names load at first use, so that the command can answer signals before all is imported.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from diptych_service.app import create_app
    from diptych_service.config import ServiceConfig

_MODULES = {"ServiceConfig": "config", "create_app": "app"}

__all__ = ["ServiceConfig", "__version__", "create_app"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'diptych_service' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"diptych_service.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
