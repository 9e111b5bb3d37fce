"""Chat messages as clients send them, made ready for the chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from diptych_service.errors import BadRequest

TEMPLATE_FIELDS = frozenset({"role", "content", "name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content"})
# What clients hand back from earlier answers, and templates do not show.
NO_EFFECT_IN_MESSAGES = frozenset({"annotations", "refusal"})
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})


def template_messages(messages: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Messages with plain text as content, and the names of fields without effect."""
    if not messages:
        raise BadRequest("messages is empty: send at least one message.", param="messages", code="invalid_prompt")
    ignored: set[str] = set()
    result = [_message(f"messages[{index}]", message, ignored) for index, message in enumerate(messages)]
    return result, sorted(ignored)


def _message(path: str, message: Mapping[str, Any], ignored: set[str]) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise BadRequest(f"{path}.role must be a non-empty string.", param=f"{path}.role", code="invalid_type")
    result: dict[str, Any] = {}
    for name, value in message.items():
        if value is None or (name in NO_EFFECT_IN_MESSAGES and not value):
            continue
        if name in NO_EFFECT_IN_MESSAGES:
            ignored.add(f"messages.{name}")
        elif name in TEMPLATE_FIELDS:
            result[name] = value
        else:
            shown = f"{path}.{name[:100]}"
            raise BadRequest(f"Unknown field {shown!r}.", param=shown, code="unknown_parameter")
    if "content" not in result and "tool_calls" not in result:
        raise BadRequest(f"{path}.content is missing.", param=f"{path}.content", code="missing_field")
    result["content"] = _text(f"{path}.content", result.get("content", ""))
    if "tool_calls" in result:
        result["tool_calls"] = _tool_calls(f"{path}.tool_calls", result["tool_calls"])
    return result


def _tool_calls(path: str, calls: Any) -> list[dict[str, Any]]:
    """Earlier calls, with their arguments as templates take them: objects, not JSON in a string."""
    if not isinstance(calls, list):
        raise BadRequest(f"{path} must be a list.", param=path, code="invalid_type")
    return [_tool_call(f"{path}[{index}]", call) for index, call in enumerate(calls)]


def _tool_call(path: str, call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        message = f"{path} must be an object with a function that has a name."
        raise BadRequest(message, param=path, code="invalid_type")
    return {**call, "function": {**function, "arguments": _arguments(function.get("arguments"))}}


def _arguments(arguments: Any) -> Any:
    """What a model once wrote as arguments need not be JSON: then the template gets it as it is."""
    if not arguments:
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        decoded = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return arguments
    return decoded if isinstance(decoded, dict) else arguments


def _text(path: str, content: Any) -> str:
    """A string, or the text parts of a list joined by line ends, as peers do."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRequest(f"{path} must be a string or a list of parts.", param=path, code="invalid_type")
    return "\n".join(_part(f"{path}[{index}]", part) for index, part in enumerate(content))


def _part(path: str, part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise BadRequest(f"{path} must be an object.", param=path, code="invalid_type")
    kind = part.get("type")
    if kind not in _TEXT_PARTS:
        message = f"{path}: parts of type {str(kind)[:40]!r} are not supported, only text."
        raise BadRequest(message, param=path, code="unsupported_content")
    text = part.get("text")
    if not isinstance(text, str):
        raise BadRequest(f"{path}.text must be a string.", param=f"{path}.text", code="invalid_type")
    return text
