"""Log probabilities: how a client asks for them, and the shapes in which each endpoint gives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from diptych import Output, TokenLogprob, TokenLogprobs
from diptych.params import MAX_LOGPROBS
from diptych_service.errors import BadRequest
from diptych_service.schema import ChatRequest, CompletionRequest, SamplingFields

# JSON knows no infinity.
LEAST_LOGPROB = -9999.0


def wanted_logprobs(body: SamplingFields) -> int | None:
    """How many of the likeliest tokens a client wants beside each of its answer; None where it wants nothing of it."""
    if isinstance(body, ChatRequest):
        return _of_chat(body)
    if not isinstance(body, CompletionRequest) or body.logprobs is None or body.logprobs is False:
        return None
    if body.logprobs is True or not 0 <= body.logprobs <= MAX_LOGPROBS:
        raise _wrong("logprobs", body.logprobs)
    return body.logprobs


def wanted_prompt_logprobs(body: SamplingFields) -> int | None:
    """How many of the likeliest tokens a client wants beside each of its prompt, in vLLM's shape; None for nothing."""
    wanted = body.prompt_logprobs
    if wanted is not None and not 0 <= wanted <= MAX_LOGPROBS:
        raise _wrong("prompt_logprobs", wanted)
    return wanted


def _of_chat(body: ChatRequest) -> int | None:
    wanted = body.top_logprobs or 0
    if not 0 <= wanted <= MAX_LOGPROBS:
        raise _wrong("top_logprobs", wanted)
    if body.logprobs:
        return wanted
    if wanted:
        message = f"top_logprobs={wanted} is only allowed when logprobs is true."
        raise BadRequest(message, param="top_logprobs", code="invalid_parameter")
    return None


def _wrong(name: str, value: int) -> BadRequest:
    message = f"{name}={str(value)[:40]}: expected a number from 0 to {MAX_LOGPROBS}"
    return BadRequest(message, param=name, code="invalid_parameter")


class PendingLogprobs:
    """Those of one streamed choice. They wait for a chunk that is sent anyway; where the shape tells offsets, tokens
    whose text is held back wait with it, because a stop string may cut it."""

    def __init__(self, shape: Callable[[Sequence[TokenLogprobs], int], dict[str, Any]], *, holds_back: bool) -> None:
        self._shape, self._holds_back = shape, holds_back
        self._waiting: list[TokenLogprobs] = []
        self._length = 0

    def take(self, output: Output, *, makes_chunk: bool) -> bytes | None:
        """The JSON of those that go out with the chunk of an output; None for none."""
        self._waiting += output.logprobs
        self._length += len(output.text)
        count = len(self._waiting) if makes_chunk else 0
        if self._holds_back and output.finish_reason is None:
            count = sum(1 for entry in self._waiting[:count] if entry.offset < self._length)
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return msgspec.json.encode(self._shape(taken, self._length)) if taken else None


def chat_logprobs(entries: Sequence[TokenLogprobs], _length: int = 0) -> dict[str, Any]:
    """One entry for each token, those of reasoning and tool calls too."""
    content = [
        {**_shown(entry.token), "top_logprobs": [_shown(other) for other in entry.likeliest]} for entry in entries
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(entries: Sequence[TokenLogprobs], length: int) -> dict[str, Any]:
    """Parallel lists for a text of `length` characters: what begins behind a cut is at its end. Nothing precedes the
    first token of an echoed prompt: it has none."""
    return {
        "text_offset": [min(entry.offset, length) for entry in entries],
        "token_logprobs": [None if entry.is_first else _finite(entry.token.logprob) for entry in entries],
        "tokens": [token_text(entry.token) for entry in entries],
        "top_logprobs": [None if entry.is_first else _by_text(entry) for entry in entries],
    }


def prompt_logprobs(entries: Sequence[TokenLogprobs], most: int) -> list[dict[str, Any] | None]:
    """vLLM's shape: for each token of a prompt but the first, by their ids as text, itself and the `most` likeliest in
    its place. A rank counts from 1 in order of probability; None where the token is none of the likeliest that came."""
    return [None if entry.is_first else _ranked(entry, most) for entry in entries]


def _ranked(entry: TokenLogprobs, most: int) -> dict[str, Any]:
    ranks = {token.token_id: rank for rank, token in enumerate(entry.likeliest, start=1)}
    return {
        str(token.token_id): {
            "logprob": _finite(token.logprob),
            "rank": ranks.get(token.token_id),
            "decoded_token": token.raw.decode(errors="replace"),
        }
        for token in (entry.token, *entry.likeliest[:most])
    }


def token_text(token: TokenLogprob) -> str:
    """A token as text; a part of a character as its bytes, so that each has a name of its own."""
    try:
        return token.raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.raw)


def _shown(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token_text(token), "logprob": _finite(token.logprob), "bytes": list(token.raw)}


def _by_text(entry: TokenLogprobs) -> dict[str, float]:
    """The likeliest tokens and the one that came; of several with one text the likeliest."""
    found: dict[str, float] = {}
    for token in (*entry.likeliest, entry.token):
        found.setdefault(token_text(token), _finite(token.logprob))
    return found


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
