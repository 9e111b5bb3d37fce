"""From the fields of a request to `SamplingParams`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from diptych import SamplingParams, StructuredOutputs
from diptych.params import MAX_LOGPROBS
from diptych.validation import MAX_SHOWN
from diptych_service.errors import BadRequest
from diptych_service.logprobs import wanted_logprobs, wanted_prompt_logprobs
from diptych_service.schema import CompletionRequest, SamplingFields
from diptych_service.structured import structured_outputs
from diptych_service.tenants import ANYBODY, Caller

# Fields whose name and meaning are the same in `SamplingParams`; absent ones take the model's default.
_SAME = (
    "min_tokens",
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
    "spaces_between_special_tokens",
    "target_itl_ms",
    "priority",
    "timeout",
    "ttft_timeout",
    "cache_ttl",
    "cache_retention",
    "n",
    "best_of",
    "use_beam_search",
    "length_penalty",
    "early_stopping",
)
# The model's defaults for these say how to draw; a beam search does not draw.
_DRAWING = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")


def sampling_params(
    request: SamplingFields,
    defaults: Mapping[str, Any],
    max_tokens: int | None,
    caller: Caller = ANYBODY,
    *,
    explain: bool = False,
) -> SamplingParams:
    """Parameters of a request over the model's own defaults; not validated yet."""
    unused = _DRAWING if request.use_beam_search else ()
    chosen: dict[str, Any] = {name: value for name, value in defaults.items() if name not in unused}
    for name in _SAME:
        value = getattr(request, name)
        if value is not None:
            chosen[name] = value
    chosen["max_tokens"] = max_tokens
    chosen["tenant"] = caller.tenant
    if request.stop is not None:
        chosen["stop"] = [request.stop] if isinstance(request.stop, str) else request.stop
    if request.logit_bias is not None:
        chosen["logit_bias"] = _token_keys(request.logit_bias)
    chosen["cache_salt"] = _salt(request.cache_salt or "", caller.key_number)
    chosen["return_prompt_ids"] = bool(request.return_token_ids)
    chosen["logprobs"] = wanted_logprobs(request)
    chosen["structured_outputs"] = structured_outputs(request)
    if isinstance(request, CompletionRequest) and request.echo:
        chosen["return_prompt_text"] = True
        chosen["prompt_logprobs"] = chosen["logprobs"]
    if wanted_prompt_logprobs(request) is not None:
        # A token's rank is known where it is among those that come.
        chosen["prompt_logprobs"] = MAX_LOGPROBS
    chosen["explain"] = explain
    if request.use_beam_search:
        _refuse_beside_beams(request, chosen)
    return SamplingParams(**chosen)


def _refuse_beside_beams(request: SamplingFields, chosen: Mapping[str, Any]) -> None:
    """What the engine would refuse by another name, or with another value, than the client sent."""
    structured: StructuredOutputs | None = chosen["structured_outputs"]
    names = {
        "logprobs": chosen["logprobs"],
        "prompt_logprobs": request.prompt_logprobs,
        "structured_outputs" if structured is None else structured.asked_by.partition(".")[0]: structured,
    }
    for name, wanted in names.items():
        if wanted is not None:
            sent = msgspec.json.encode(getattr(request, name)).decode()
            sent = sent if len(sent) <= MAX_SHOWN else f"{sent[:MAX_SHOWN]}…"
            message = f"{name}={sent}: expected none: beam search goes by the log probabilities as they are"
            raise BadRequest(message, param=name, code="invalid_parameter")


def _salt(given: str, key_number: int | None) -> str:
    """Where the service has API keys, cached prefixes are shared only between requests with the same one."""
    return given if key_number is None else f"{key_number}:{given}"


def _token_keys(bias: Mapping[str, float]) -> dict[int, float]:
    result: dict[int, float] = {}
    for key, value in bias.items():
        if not (key.isascii() and key.isdecimal()) or len(key) > 10:
            message = f"logit_bias: the key {key[:40]!r} is not a token id."
            raise BadRequest(message, param="logit_bias", code="invalid_parameter")
        if int(key) in result:
            message = f"logit_bias names the token {int(key)} twice, once as {key!r}."
            raise BadRequest(message, param="logit_bias", code="invalid_parameter")
        result[int(key)] = value
    return result
