"""From the fields of a request to `SamplingParams` and prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from diptych import SamplingParams
from diptych_service.errors import BadRequest
from diptych_service.schema import SamplingFields

MAX_PROMPTS = 1024

# Fields whose name and meaning are the same in `SamplingParams`; absent ones take the model's default.
_SAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop_token_ids",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
)


def sampling_params(request: SamplingFields, defaults: Mapping[str, Any], max_tokens: int | None) -> SamplingParams:
    """Parameters of a request over the model's own defaults; not validated yet."""
    chosen: dict[str, Any] = dict(defaults)
    for name in _SAME:
        value = getattr(request, name)
        if value is not None:
            chosen[name] = value
    chosen["max_tokens"] = max_tokens
    if request.stop is not None:
        chosen["stop"] = [request.stop] if isinstance(request.stop, str) else request.stop
    if request.logit_bias is not None:
        chosen["logit_bias"] = _token_keys(request.logit_bias)
    chosen["return_prompt_ids"] = bool(request.return_token_ids)
    return SamplingParams(**chosen)


def _token_keys(bias: Mapping[str, float]) -> dict[int, float]:
    result = {}
    for key, value in bias.items():
        if not (key.isascii() and key.isdecimal()) or len(key) > 10:
            message = f"logit_bias: the key {key[:40]!r} is not a token id."
            raise BadRequest(message, param="logit_bias", code="invalid_parameter")
        result[int(key)] = value
    return result


def prompts_of(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """The prompts in a completion request: text, ids, or a list of either (never mixed)."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise _bad_prompt("The prompt is an empty list.")
    # By type and without a copy: a list of ids may be long, and the event loop waits for this.
    kinds = set(map(type, prompt))
    if kinds == {int}:
        return [cast("list[int]", prompt)]
    if kinds != {str} and kinds != {list}:
        raise _bad_prompt("A list of prompts must hold only texts, only token ids, or only lists of token ids.")
    if len(prompt) > MAX_PROMPTS:
        raise _bad_prompt(f"There are {len(prompt)} prompts; at most {MAX_PROMPTS} are taken at once.")
    return cast("list[str | list[int]]", prompt)


def _bad_prompt(message: str) -> BadRequest:
    return BadRequest(message, param="prompt", code="invalid_prompt")
