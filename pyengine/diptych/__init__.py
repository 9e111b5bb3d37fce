"""The engine API of Diptych.

Importing this package loads neither torch nor transformers, starts nothing and changes nothing; names load at first
use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from diptych import errors
    from diptych.async_engine import AsyncEngine
    from diptych.config import EngineConfig
    from diptych.explanation import Explanation
    from diptych.kv_events import KvEvents, KvSnapshot
    from diptych.model_info import ModelInfo
    from diptych.offline import LLM
    from diptych.output import (
        Completion,
        Output,
        Timings,
        TokenLogprob,
        TokenLogprobs,
        ToolCall,
        ToolCallDelta,
        Usage,
    )
    from diptych.params import SamplingParams
    from diptych.stats import EngineStats
    from diptych.structured import StructuredOutputs
    from diptych.tool_calls import joined_tool_calls

_MODULES = {
    "AsyncEngine": "async_engine",
    "Completion": "output",
    "EngineConfig": "config",
    "EngineStats": "stats",
    "Explanation": "explanation",
    "KvEvents": "kv_events",
    "KvSnapshot": "kv_events",
    "LLM": "offline",
    "ModelInfo": "model_info",
    "Output": "output",
    "SamplingParams": "params",
    "StructuredOutputs": "structured",
    "Timings": "output",
    "TokenLogprob": "output",
    "TokenLogprobs": "output",
    "ToolCall": "output",
    "ToolCallDelta": "output",
    "Usage": "output",
    "joined_tool_calls": "tool_calls",
}

__all__ = [
    "LLM",
    "AsyncEngine",
    "Completion",
    "EngineConfig",
    "EngineStats",
    "Explanation",
    "KvEvents",
    "KvSnapshot",
    "ModelInfo",
    "Output",
    "SamplingParams",
    "StructuredOutputs",
    "Timings",
    "TokenLogprob",
    "TokenLogprobs",
    "ToolCall",
    "ToolCallDelta",
    "Usage",
    "errors",
    "joined_tool_calls",
]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("diptych.errors")
    if name not in _MODULES:
        raise AttributeError(f"module 'diptych' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"diptych.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
