"""The prompts of a completion request."""

from __future__ import annotations

import asyncio
import re
from typing import Any, cast

import msgspec
from msgspec import Raw

from diptych_service.body import decode_field
from diptych_service.errors import BadRequest

MAX_PROMPTS = 1024
# After so many bytes of token ids other requests have their turn. Decoding them takes some milliseconds.
SLICE_BYTES = 512 * 1024

_KIND = re.compile(rb'\[?\s*(["\[\]]?)')
_TEXT: msgspec.json.Decoder[str] = msgspec.json.Decoder(str)
_TEXTS: msgspec.json.Decoder[list[str]] = msgspec.json.Decoder(list[str])
_IDS: msgspec.json.Decoder[list[int]] = msgspec.json.Decoder(list[int])
_PARTS: msgspec.json.Decoder[list[Raw]] = msgspec.json.Decoder(list[Raw])


async def prompts_of(prompt: Raw) -> list[str | list[int]]:
    """Text, token ids, or a list of either (never mixed): the first element says which."""
    raw = bytes(prompt)
    if raw.startswith(b'"'):
        return [decode_field("prompt", prompt, _TEXT)]
    if not raw.startswith(b"["):
        raise _bad_prompt("prompt must be a text, a list of token ids, or a list of either.", "invalid_type")
    kind = _KIND.match(raw)
    first = kind[1] if kind else b""
    if first == b"]":
        raise _bad_prompt("The prompt is an empty list.")
    if first == b'"':
        return _texts(prompt, raw)
    if first == b"[":
        return await _lists_of_ids(prompt, raw)
    return [await _ids(prompt, raw)]


def _texts(prompt: Raw, raw: bytes) -> list[str | list[int]]:
    # Each text has two quotes of its own, and no more than one of them follows a backslash.
    if raw.count(b'"') - raw.count(b'\\"') > 2 * MAX_PROMPTS:
        raise _too_many()
    texts = _elements("prompt", prompt, _TEXTS)
    if len(texts) > MAX_PROMPTS:
        raise _too_many()
    return [*texts]


async def _ids(prompt: Raw, raw: bytes) -> list[int]:
    """Decoded in slices, which end at commas; whatever is wrong with one is told from the whole."""
    ids: list[int] = []
    begin = 1
    while (end := raw.find(b",", begin + SLICE_BYTES)) != -1:
        try:
            ids += _IDS.decode(b"[%b]" % raw[begin:end])
        except msgspec.DecodeError:
            return cast("list[int]", _elements("prompt", prompt, _IDS))
        begin = end + 1
        await asyncio.sleep(0)
    if begin == 1:
        return cast("list[int]", _elements("prompt", prompt, _IDS))
    return ids + cast("list[int]", _elements("prompt", Raw(b"[" + raw[begin:]), _IDS))


async def _lists_of_ids(prompt: Raw, raw: bytes) -> list[str | list[int]]:
    if raw.count(b"[") > MAX_PROMPTS + 1:
        raise _too_many()
    await asyncio.sleep(0)
    prompts: list[str | list[int]] = []
    size = 0
    for index, part in enumerate(_elements("prompt", prompt, _PARTS)):
        prompts.append(_elements(f"prompt[{index}]", part, _IDS))
        size += memoryview(part).nbytes
        if size >= SLICE_BYTES:
            size = 0
            await asyncio.sleep(0)
    return prompts


def _elements(name: str, value: Raw, decoder: msgspec.json.Decoder[Any]) -> Any:
    try:
        return decode_field(name, value, decoder)
    except BadRequest as error:
        hint = "A list of prompts must hold only texts, only token ids, or only lists of token ids."
        raise BadRequest(f"{error.message} {hint}", param=error.param, code="invalid_prompt") from None


def _too_many() -> BadRequest:
    return _bad_prompt(f"There are more than {MAX_PROMPTS} prompts, which is as many as are taken at once.")


def _bad_prompt(message: str, code: str = "invalid_prompt") -> BadRequest:
    return BadRequest(message, param="prompt", code=code)
