"""The tools of a chat request, checked and made ready for the chat template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diptych_service.errors import BadRequest
from diptych_service.schema import ChatRequest

# OpenAI's API takes 128.
MAX_TOOLS = 1024
# It binds the arguments to the schema, which an unconstrained answer cannot promise.
_STRICT = "tools.function.strict"


def shown_tools(body: ChatRequest) -> tuple[list[dict[str, Any]] | None, list[str]]:
    """What the template shall show of the tools, and the names of fields without effect.

    None where there are no tools or the model may call none of them: what it is not told of, it does not call.
    """
    _check_choice(body.tool_choice)
    if body.tools is not None and len(body.tools) > MAX_TOOLS:
        message = f"tools: {len(body.tools)} are more than {MAX_TOOLS}, which is as many as are taken."
        raise BadRequest(message, param="tools", code="invalid_parameter")
    ignored: set[str] = set()
    tools = [_tool(f"tools[{index}]", tool, ignored) for index, tool in enumerate(body.tools or [])]
    if not tools or body.tool_choice == "none":
        return None, sorted(ignored)
    return tools, sorted(ignored)


def _check_choice(choice: str | Mapping[str, Any] | None) -> None:
    if choice is None or choice in ("auto", "none"):
        return
    if choice == "required" or isinstance(choice, Mapping):
        message = (
            "tool_choice: a call cannot be forced here yet: answers with tool calls follow no grammar. "
            'Send "auto", "none", or leave it out.'
        )
        raise BadRequest(message, param="tool_choice", code="unsupported_parameter")
    message = f'tool_choice: {str(choice)[:40]!r} is neither "auto" nor "none".'
    raise BadRequest(message, param="tool_choice", code="invalid_parameter")


def _tool(path: str, tool: Mapping[str, Any], ignored: set[str]) -> dict[str, Any]:
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
    if function.get("strict"):
        ignored.add(_STRICT)
    shown = {name: value for name, value in function.items() if value is not None and name != "strict"}
    return {**tool, "type": "function", "function": shown}


_NAMES: dict[type, str] = {str: "a non-empty string", dict: "an object", bool: "true or false"}


def _check(path: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind) or (path.endswith(".name") and not value):
        raise BadRequest(f"{path} must be {_NAMES[kind]}.", param=path, code="invalid_type")
