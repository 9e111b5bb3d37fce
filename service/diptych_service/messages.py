"""Chat messages as clients send them, made ready for the chat template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from diptych_service.body import MAX_VALUES, num_values
from diptych_service.errors import BadRequest

TEMPLATE_FIELDS = frozenset({"role", "content", "name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content"})
# What clients hand back from earlier answers, and templates do not show.
NO_EFFECT_IN_MESSAGES = frozenset({"annotations", "refusal"})
# Of arguments: serde_json reads 128 levels, eight of which are around them.
MAX_DEPTH = 120
# A tuple, since what a client sends as a type need not be hashable.
_TEXT_PARTS = ("text", "input_text", "output_text")


def template_messages(messages: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Messages with plain text as content, and the names of fields without effect."""
    if not messages:
        raise BadRequest("messages is empty: send at least one message.", param="messages", code="invalid_prompt")
    if sum(num_values(arguments.encode()) for arguments in _written_arguments(messages)) > MAX_VALUES:
        message = f"messages: the arguments of their tool calls have more than {MAX_VALUES} values in them."
        raise BadRequest(message, param="messages", code="invalid_json")
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


def _written_arguments(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What `_arguments` will decode."""
    for message in messages:
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, dict) else None
            arguments = function.get("arguments") if isinstance(function, dict) else None
            if isinstance(arguments, str):
                yield arguments


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
    return decoded if isinstance(decoded, dict) and not _is_deep(decoded) else arguments


def _is_deep(value: Any) -> bool:
    """Whether it is nested more deeply than the engine reads within a conversation."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inner = [one.values() if isinstance(one, dict) else one for one in level]
        level = [one for values in inner for one in values if isinstance(one, dict | list)]
        if not level:
            return False
    return True


def _text(path: str, content: Any) -> str:
    """A string, or the text parts of a list joined by line ends, as peers do."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRequest(f"{path} must be a string or a list of parts.", param=path, code="invalid_type")
    texts = []
    for index, part in enumerate(content):
        text = part if isinstance(part, str) else _part(part)
        if text is None:
            raise _bad_part(f"{path}[{index}]", part)
        texts.append(text)
    return "\n".join(texts)


def _part(part: Any) -> str | None:
    """The text of a part; None if it is none."""
    if not isinstance(part, dict) or part.get("type") not in _TEXT_PARTS:
        return None
    text = part.get("text")
    return text if isinstance(text, str) else None


def _bad_part(path: str, part: Any) -> BadRequest:
    if not isinstance(part, dict):
        return BadRequest(f"{path} must be an object.", param=path, code="invalid_type")
    kind = part.get("type")
    if kind not in _TEXT_PARTS:
        message = f"{path}: parts of type {str(kind)[:40]!r} are not supported, only text."
        return BadRequest(message, param=path, code="unsupported_content")
    return BadRequest(f"{path}.text must be a string.", param=f"{path}.text", code="invalid_type")
