"""Tokenising, chat templates and incremental detokenising, for tests and tools; the events of streamed answers."""

from diptych_core._native import (
    KEEP_ALIVE,
    AnswerChunks,
    ChatTemplate,
    StopStringError,
    TemplateError,
    TextError,
    TextStream,
    Tokenizer,
    TokenizerError,
)

__all__ = [
    "KEEP_ALIVE",
    "AnswerChunks",
    "ChatTemplate",
    "StopStringError",
    "TemplateError",
    "TextError",
    "TextStream",
    "Tokenizer",
    "TokenizerError",
]
