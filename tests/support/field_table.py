"""The page of request fields, made from the schemas and lists that the service itself goes by."""

import json
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from diptych_service.fields import CHAT_FIELDS, COMPLETION_FIELDS, FieldTable
from diptych_service.messages import NO_EFFECT_IN_MESSAGES, TEMPLATE_FIELDS
from diptych_service.schema import ChatRequest, CompletionRequest

HEAD = """\
# Fields of requests

What the service does with each field of a request. A test writes this page from the schemas and lists that the service
itself goes by (`DIPTYCH_BLESS=1 pytest tests/service/test_field_table.py` writes it anew), so it is never out of date.

- **honoured**: it does what its name says; the type stands beside it.
- *no effect here*: accepted, and named in the response header `x-diptych-ignored`.
- refused: a 400 that names it, unless its value is null or one of those given here, which ask for what happens anyway.
- unknown: a 400, as for every name that is not in this table.

| field | `/v1/completions` | `/v1/chat/completions` |
|---|---|---|
"""
_NAMES = {str: "text", int: "integer", float: "number", bool: "true or false", Any: "anything", msgspec.Raw: "prompts"}


def page() -> str:
    names = sorted(_known(COMPLETION_FIELDS) | _known(CHAT_FIELDS))
    tables = ((COMPLETION_FIELDS, CompletionRequest), (CHAT_FIELDS, ChatRequest))
    rows = [f"| `{name}` | " + " | ".join(_cell(name, *table) for table in tables) + " |" for name in names]
    return HEAD + "\n".join(rows) + "\n\n" + _messages() + _tools()


_NAMED = '`{"type": "function", "function": {"name": ...}}`'
_ALLOWED = '`{"type": "allowed_tools", "allowed_tools": {"mode": ..., "tools": [...]}}`'
_CHOICES = [
    (
        '`"auto"`, null',
        "text or calls, as the model likes; arguments of functions with `strict` follow their `parameters`",
        "`tool_calls` with calls, else `stop`",
    ),
    ('`"none"`', "text; the model is shown no tools", "`stop`"),
    ('`"required"`', "calls and nothing else; exactly one with `parallel_tool_calls` false", "`tool_calls`"),
    (_NAMED, "one call of that function", "`stop`"),
    (_ALLOWED, "as with `auto` or `required`, of these tools only; the model is shown all", "as there"),
]
_TOOLS = """
## Tools

The model is shown all that a tool has but `strict`. What the answer is `tool_choice` says:

| `tool_choice` | the answer | `finish_reason` of one that is complete |
|---|---|---|
{choices}

A forced or strict function without `parameters` has none. A call that is cut off, by `max_tokens` or a stop string,
leaves `finish_reason` at `length` or `stop`. A forced call beside `response_format` or another structured output, of a
tool that is not there, or of a model whose calls cannot be read, is a 400, as is a schema that cannot be compiled
(`tools[0].function.parameters`). With `"auto"` beside a structured output the answer is that, and calls nothing. Where
the model thinks, a forced call or structured output begins behind the reasoning.
"""


def _tools() -> str:
    return _TOOLS.format(choices="\n".join("| " + " | ".join(choice) + " |" for choice in _CHOICES))


def _messages() -> str:
    shown = ", ".join(f"`{name}`" for name in sorted(TEMPLATE_FIELDS))
    ignored = ", ".join(f"`{name}`" for name in sorted(NO_EFFECT_IN_MESSAGES))
    return (
        "## Fields of messages\n\n"
        f"The chat template is given {shown}. Without effect are {ignored}. Any other is unknown.\n"
    )


def _known(table: FieldTable) -> set[str]:
    return {*table.honoured, *table.no_effect, *table.refused}


def _cell(name: str, table: FieldTable, struct: type[msgspec.Struct]) -> str:
    if name in table.honoured:
        required = next(field.required for field in msgspec.structs.fields(struct) if field.name == name)
        return f"**honoured**: {_type(get_type_hints(struct)[name])}" + (", required" if required else "")
    if name in table.no_effect:
        return "*no effect here*"
    if name in table.refused:
        neutral = " or ".join(f"`{json.dumps(value)}`" for value in table.refused[name])
        return f"refused, but for {neutral}" if neutral else "refused"
    return "unknown"


def _type(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_type(one) for one in arguments if one is not types.NoneType)
    if origin is Literal:
        return " or ".join(f"`{json.dumps(value)}`" for value in arguments)
    if origin is list:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return "object" if arguments[1] is Any else f"object of {_type(arguments[1])}"
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return "object with " + ", ".join(f"`{field.name}`" for field in msgspec.structs.fields(hint))
    return _NAMES[hint]
