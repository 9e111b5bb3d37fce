"""Which tools a model is shown, and how its answer may or must call them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from diptych.errors import InvalidParameterError
from diptych.validation import json_text, shown

# Of a function that says of no parameters: as in OpenAI's API it has none.
_NO_PARAMETERS = '{"type": "object", "properties": {}, "additionalProperties": false}'
_FORMS = '"auto", "none", "required", a function by its name, or allowed_tools with a mode and tools'


@dataclass(frozen=True, slots=True)
class ToolUse:
    """`shown`: the tools as the template prints them. `max_calls`: with so many the answer is complete. `grammar`: what
    calls follow, as the core reads it; None where the model writes what it likes."""

    shown: list[dict[str, Any]] | None = None
    max_calls: int | None = None
    grammar: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class _Choice:
    """`names`: the only tools that may be called; None for all."""

    kind: Literal["none", "auto", "required", "named"]
    names: frozenset[str] | None = field(default=None)


@dataclass(frozen=True, slots=True)
class _Function:
    """`parameters`: its schema as JSON. `path`: where the request has the function."""

    name: str
    parameters: str | None
    strict: bool
    path: str


def tool_use(
    tools: Sequence[dict[str, Any]] | None, choice: str | Mapping[str, Any] | None, *, parallel: bool
) -> ToolUse:
    """What follows from tools in the form of OpenAI's API, `tool_choice` and `parallel_tool_calls`.

    Raises `InvalidParameterError` for tools that nobody could call or tell apart, for a choice that is none or names
    no tool, and for a `parallel` that is no bool.
    """
    if not isinstance(parallel, bool):
        raise InvalidParameterError(f"parallel_tool_calls={shown(parallel)}: expected True or False")
    functions = [_function(index, tool) for index, tool in enumerate(tools or ())]
    _refuse_namesakes(functions)
    chosen = _choice(choice, {function.name for function in functions})
    if not tools or chosen.kind == "none":
        return ToolUse()
    may_call = [function for function in functions if chosen.names is None or function.name in chosen.names]
    return ToolUse(
        shown=[_without_strict(tool) for tool in tools],
        max_calls=None if parallel else 1,
        grammar=_grammar(chosen, may_call, several=parallel and chosen.kind != "named"),
    )


def _grammar(chosen: _Choice, functions: list[_Function], *, several: bool) -> dict[str, Any] | None:
    is_free = chosen.kind == "auto"
    if is_free and chosen.names is None and not any(function.strict for function in functions):
        return None
    told = [
        {
            "name": function.name,
            "parameters": None if is_free and not function.strict else function.parameters or _NO_PARAMETERS,
            "field": f"{function.path}.parameters",
        }
        for function in functions
    ]
    return {"choice": chosen.kind, "several": several, "functions": told}


def _refuse_namesakes(functions: list[_Function]) -> None:
    """A call says its function's name alone, so nobody could tell whose schema it follows."""
    first: dict[str, _Function] = {}
    for function in functions:
        if (other := first.setdefault(function.name, function)) is not function:
            told = f"{function.path}.name={shown(function.name)}"
            raise InvalidParameterError(f"{told}: expected a name of its own, {other.path} has the same")


def _function(index: int, tool: Any) -> _Function:
    """What has no name cannot be called."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        raise InvalidParameterError(f"tools[{index}]={shown(tool)}: expected an object with a function that has a name")
    path = f"tools[{index}].function" if "function" in tool else f"tools[{index}]"
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise InvalidParameterError(f"{path}.parameters={shown(parameters)}: expected a JSON schema, as an object")
    schema = None if parameters is None else json_text(f"{path}.parameters", parameters)
    return _Function(name, schema, function.get("strict") is True, path)


def _without_strict(tool: dict[str, Any]) -> dict[str, Any]:
    """It is said to the server, not to the model."""
    kept = {name: value for name, value in tool.items() if name != "strict"}
    function = kept.get("function")
    if isinstance(function, Mapping):
        kept["function"] = {name: value for name, value in function.items() if name != "strict"}
    return kept


def _choice(choice: str | Mapping[str, Any] | None, known: set[str]) -> _Choice:
    if choice is None or choice == "auto":
        return _Choice("auto")
    if choice == "none":
        return _Choice("none")
    if not known:
        raise InvalidParameterError(f"tool_choice={shown(choice)}: there are no tools to choose from")
    if choice == "required":
        return _Choice("required")
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if isinstance(choice, Mapping) and kind == "function":
        return _Choice("named", frozenset([_name_in(choice, known)]))
    if isinstance(choice, Mapping) and kind == "allowed_tools":
        return _allowed(choice.get("allowed_tools"), known)
    raise InvalidParameterError(f"tool_choice={shown(choice)}: expected {_FORMS}")


def _allowed(allowed: Any, known: set[str]) -> _Choice:
    mode = allowed.get("mode") if isinstance(allowed, Mapping) else None
    tools = allowed.get("tools") if isinstance(allowed, Mapping) else None
    if mode not in ("auto", "required") or not isinstance(tools, list | tuple) or not tools:
        expected = 'a mode, "auto" or "required", and a list of tools'
        raise InvalidParameterError(f"tool_choice: allowed_tools={shown(allowed)}: expected an object with {expected}")
    return _Choice(mode, frozenset(_name_in(tool, known) for tool in tools))


def _name_in(chosen: Any, known: set[str]) -> str:
    function = chosen.get("function") if isinstance(chosen, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise InvalidParameterError(f"tool_choice: {shown(chosen)} has no function with a name")
    if name not in known:
        raise InvalidParameterError(f"tool_choice: the function {shown(name)} is not among the tools")
    return name
