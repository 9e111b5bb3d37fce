"""Prompts in the form the core takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from diptych.errors import InvalidParameterError, InvalidPromptError
from diptych.tool_choice import tool_use


@dataclass(frozen=True, slots=True)
class Prompt:
    """`content`: text, token ids, or with `chat` the JSON that the template is rendered from.

    `max_tool_calls`: the answer is complete with so many calls. `calls`: the grammar that they follow, if any.
    """

    content: str | Sequence[int]
    add_special_tokens: bool = True
    chat: bool = False
    max_tool_calls: int | None = None
    calls: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ChatExtras:
    """What a conversation has beside its messages: for the template, and of what its answer may call."""

    tools: Sequence[dict[str, Any]] | None = None
    documents: Sequence[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tool_choice: str | Mapping[str, Any] | None = None
    parallel_tool_calls: bool = True


def chat_prompt(
    messages: Sequence[dict[str, Any]],
    extras: ChatExtras,
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
) -> Prompt:
    """The prompt of a conversation. Raises `InvalidPromptError` or `InvalidParameterError`.

    The template writes the special tokens itself, so the tokenizer adds none.
    """
    if add_generation_prompt and continue_final_message:
        raise InvalidParameterError(
            "add_generation_prompt and continue_final_message exclude each other: one begins a new message, the other "
            "goes on with the last one"
        )
    if not messages:
        raise InvalidPromptError("messages is empty: expected at least one message")
    use = tool_use(extras.tools, extras.tool_choice, parallel=extras.parallel_tool_calls)
    request = {
        "messages": list(messages),
        "add_generation_prompt": add_generation_prompt,
        "continue_final_message": continue_final_message,
        "tools": use.shown,
        "documents": list(extras.documents) if extras.documents else None,
        "chat_template_kwargs": extras.chat_template_kwargs or {},
    }
    try:
        encoded = msgspec.json.encode(request).decode()
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidPromptError(f"the conversation cannot be written as JSON: {error}") from error
    return Prompt(encoded, add_special_tokens=False, chat=True, max_tool_calls=use.max_calls, calls=use.grammar)
