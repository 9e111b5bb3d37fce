"""Prompts in the form the core takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from diptych.errors import InvalidParameterError, InvalidPromptError
from diptych.validation import shown


@dataclass(frozen=True, slots=True)
class Prompt:
    """`content`: text, token ids, or with `chat` the JSON that the template is rendered from.

    `max_tool_calls`: the answer is complete with so many calls.
    """

    content: str | Sequence[int]
    add_special_tokens: bool = True
    chat: bool = False
    max_tool_calls: int | None = None


@dataclass(frozen=True, slots=True)
class ChatExtras:
    """What the template is given beside the messages."""

    tools: Sequence[dict[str, Any]] | None = None
    documents: Sequence[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
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
    _check_tools(extras.tools or ())
    request = {
        "messages": list(messages),
        "add_generation_prompt": add_generation_prompt,
        "continue_final_message": continue_final_message,
        "tools": list(extras.tools) if extras.tools else None,
        "documents": list(extras.documents) if extras.documents else None,
        "chat_template_kwargs": extras.chat_template_kwargs or {},
    }
    try:
        encoded = msgspec.json.encode(request).decode()
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidPromptError(f"the conversation cannot be written as JSON: {error}") from error
    max_tool_calls = 1 if extras.tools and not extras.parallel_tool_calls else None
    return Prompt(encoded, add_special_tokens=False, chat=True, max_tool_calls=max_tool_calls)


def _check_tools(tools: Sequence[dict[str, Any]]) -> None:
    """What has no name cannot be called."""
    for index, tool in enumerate(tools):
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not name:
            raise InvalidParameterError(
                f"tools[{index}]={shown(tool)}: expected an object with a function that has a name"
            )
