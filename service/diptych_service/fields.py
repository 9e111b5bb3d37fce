"""What each endpoint does with each field of a request: honour it, accept it without effect, or refuse it.

A field is in exactly one list. Null always passes, and so does the neutral value of a refused field, because it asks
for what happens anyway. A name in no list is refused: a misspelt field must not change the answer silently.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from diptych_service.errors import BadRequest
from diptych_service.schema import ChatRequest, CompletionRequest


class FieldTable(NamedTuple):
    """The three lists of one endpoint; `refused` gives the neutral values that pass nevertheless."""

    honoured: frozenset[str]
    no_effect: frozenset[str]
    refused: Mapping[str, tuple[Any, ...]]


# Fields that change nothing here, at either endpoint. The header `x-diptych-ignored` names those that a request used.
_NO_EFFECT = frozenset(
    {
        "metadata",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "request_id",
        "safety_identifier",
        "service_tier",
        "session_id",
        "store",
        "user",
    }
)
_REFUSED: dict[str, tuple[Any, ...]] = {
    "allowed_token_ids": (),
    "bad_words": ([],),
    "kv_transfer_params": ({},),
    "logprob_token_ids": ([],),
    "repetition_detection": (),
    "return_prompt_text": (False,),
    "return_tokens_as_token_ids": (False,),
    "stream_interval": (1,),
    "thinking_token_budget": (),
    "truncate_prompt_tokens": (),
    "truncation_side": (),
    "vllm_xargs": ({},),
}

COMPLETION_FIELDS = FieldTable(
    honoured=frozenset(CompletionRequest.__struct_fields__),
    # There is no reasoning to leave out.
    no_effect=_NO_EFFECT | {"include_reasoning"},
    refused=_REFUSED | {"prompt_embeds": (), "suffix": ("",)},
)
CHAT_FIELDS = FieldTable(
    honoured=frozenset(ChatRequest.__struct_fields__),
    # They steer models that know them.
    no_effect=_NO_EFFECT | {"reasoning_effort", "verbosity"},
    refused=_REFUSED
    | {
        "add_special_tokens": (False,),
        "audio": (),
        "chat_template": (),
        "echo": (False,),
        "function_call": ("none", "auto"),
        "functions": ([],),
        "mm_processor_kwargs": ({},),
        "modalities": (["text"],),
        "moderation": (),
        "web_search_options": (),
    },
)


# Neutral values are shorter.
_LONGEST_NEUTRAL = 64


def screen(body: Mapping[str, Raw], table: FieldTable) -> tuple[dict[str, Raw], list[str]]:
    """Split a request into its honoured fields and the names of those without effect; raise 400 for the others."""
    honoured: dict[str, Raw] = {}
    ignored: list[str] = []
    for name, value in body.items():
        given = bytes(memoryview(value)[:5]) != b"null"
        if name in table.honoured:
            if given:
                honoured[name] = value
        elif name in table.no_effect:
            if given:
                ignored.append(name)
        elif name in table.refused:
            if given and not _is_neutral(value, table.refused[name]):
                raise BadRequest(_refusal(name, table.refused[name]), param=name, code="unsupported_parameter")
        else:
            shown = name if len(name) <= 100 else name[:100] + "…"
            raise BadRequest(f"Unknown field {shown!r}.", param=shown, code="unknown_parameter")
    return honoured, ignored


def _is_neutral(value: Raw, neutral: tuple[Any, ...]) -> bool:
    if memoryview(value).nbytes > _LONGEST_NEUTRAL:
        return False
    try:
        decoded = msgspec.json.decode(value)
    except msgspec.ValidationError:  # a number beyond all ranges
        return False
    return any(_equal(decoded, one) for one in neutral)


def _equal(value: Any, neutral: Any) -> bool:
    """JSON equality: true is not 1, but 1.0 is."""
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)


def _refusal(name: str, neutral: tuple[Any, ...]) -> str:
    allowed = " or ".join(["null", *(json.dumps(value) for value in neutral)])
    return f"The field {name!r} is not supported here: leave it out, or send {allowed}."
