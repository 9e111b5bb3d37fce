"""The events of streamed answers, for services: the text crate builds them, from outputs of the engine."""

from diptych_core.text import KEEP_ALIVE, AnswerChunks

__all__ = ["KEEP_ALIVE", "AnswerChunks"]
