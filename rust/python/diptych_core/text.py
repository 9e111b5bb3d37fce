"""Tokenising, chat templates and incremental detokenising, as the engine does them; for tests and tools."""

from diptych_core._native import (
    ChatTemplate,
    StopStringError,
    TemplateError,
    TextError,
    TextStream,
    Tokenizer,
    TokenizerError,
)

__all__ = [
    "ChatTemplate",
    "StopStringError",
    "TemplateError",
    "TextError",
    "TextStream",
    "Tokenizer",
    "TokenizerError",
]
