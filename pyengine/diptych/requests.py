"""Prompts in the form the core takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from diptych.errors import InvalidParameterError, InvalidPromptError


@dataclass(frozen=True, slots=True)
class Prompt:
    """`content`: text, token ids, or with `chat` the JSON that the template is rendered from."""

    content: str | Sequence[int]
    add_special_tokens: bool = True
    chat: bool = False


def chat_prompt(
    messages: Sequence[dict[str, Any]],
    add_generation_prompt: bool,
    continue_final_message: bool,
    chat_template_kwargs: dict[str, Any] | None,
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
    request = {
        "messages": list(messages),
        "add_generation_prompt": add_generation_prompt,
        "continue_final_message": continue_final_message,
        "tools": None,
        "chat_template_kwargs": chat_template_kwargs or {},
    }
    try:
        encoded = msgspec.json.encode(request).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidPromptError(f"messages cannot be written as JSON: {error}") from error
    return Prompt(encoded, add_special_tokens=False, chat=True)
