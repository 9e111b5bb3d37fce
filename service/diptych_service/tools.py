"""The tools of a chat request, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from diptych_service.errors import BadRequest

# OpenAI's API takes 128.
MAX_TOOLS = 1024


def checked_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """The tools of a request, without what is null in them; what `tool_choice` says of them the engine judges."""
    if not tools:
        return None
    if len(tools) > MAX_TOOLS:
        message = f"tools: {len(tools)} are more than {MAX_TOOLS}, which is as many as are taken."
        raise BadRequest(message, param="tools", code="invalid_parameter")
    return [_tool(f"tools[{index}]", tool) for index, tool in enumerate(tools)]


def _tool(path: str, tool: Mapping[str, Any]) -> dict[str, Any]:
    kind = tool.get("type", "function")
    if kind != "function":
        message = f"{path}: tools of type {str(kind)[:40]!r} are not supported, only functions."
        raise BadRequest(message, param=f"{path}.type", code="unsupported_parameter")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise BadRequest(f"{path}.function must be an object.", param=f"{path}.function", code="invalid_type")
    _check(f"{path}.function.name", function.get("name"), str)
    for name, expected in (("description", str), ("parameters", dict), ("strict", bool)):
        if function.get(name) is not None:
            _check(f"{path}.function.{name}", function[name], expected)
    given = {name: value for name, value in function.items() if value is not None}
    return {**tool, "type": "function", "function": given}


_NAMES: dict[type, str] = {str: "a non-empty string", dict: "an object", bool: "true or false"}


def _check(path: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind) or (path.endswith(".name") and not value):
        raise BadRequest(f"{path} must be {_NAMES[kind]}.", param=path, code="invalid_type")
