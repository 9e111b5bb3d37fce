"""Events of a streamed answer, as far as measurements look: one decoder for every client of ours."""

from __future__ import annotations

from typing import Any

import msgspec


class Choice(msgspec.Struct):
    text: str | None = None
    delta: dict[str, Any] | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Chunk(msgspec.Struct):
    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


decode_chunk = msgspec.json.Decoder(Chunk).decode
