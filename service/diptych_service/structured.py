"""The fields that ask for structured outputs, under all the names that clients have for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from diptych import StructuredOutputs
from diptych_service.body import bad_field
from diptych_service.errors import BadRequest
from diptych_service.schema import SamplingFields

_KINDS = ("json", "json_object", "regex", "choice", "grammar")
_GUIDED = ("json", "regex", "choice", "grammar")


def structured_outputs(request: SamplingFields) -> StructuredOutputs | None:
    """What the answer must look like. Raises a 400 if two fields ask for different things."""
    asked = list(_asked(request))
    for other in asked[1:]:
        if msgspec.structs.replace(other, asked_by=asked[0].asked_by) != asked[0]:
            message = f"{asked[0].asked_by} and {other.asked_by} ask for different outputs: send one of them."
            raise BadRequest(message, param=other.asked_by, code="invalid_parameter")
    return asked[0] if asked else None


def _asked(request: SamplingFields) -> Iterator[StructuredOutputs]:
    if request.response_format is not None and (found := _of_format(request.response_format)) is not None:
        yield found
    if request.structured_outputs is not None:
        yield _of_vllm(request.structured_outputs)
    for kind in _GUIDED:
        value = getattr(request, f"guided_{kind}")
        if value is not None:
            yield StructuredOutputs(**{kind: value}, asked_by=f"guided_{kind}")


def _of_format(given: Mapping[str, Any]) -> StructuredOutputs | None:
    field = "response_format"
    kind = given.get("type")
    expected = {"type", "json_schema"} if kind == "json_schema" else {"type"}
    _refuse_others(field, given, expected)
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputs(json_object=True, asked_by=field)
    if kind != "json_schema":
        message = f'{field}.type: {str(kind)[:40]!r} is none of "text", "json_object" and "json_schema".'
        raise BadRequest(message, param=f"{field}.type", code="invalid_parameter")
    wrapped = given.get("json_schema")
    if not isinstance(wrapped, dict):
        message = f"{field}.json_schema must be an object with a schema."
        raise BadRequest(message, param=f"{field}.json_schema", code="invalid_type")
    # Every answer is as strict as "strict" asks.
    _refuse_others(f"{field}.json_schema", wrapped, {"name", "description", "schema", "strict"})
    schema = wrapped.get("schema")
    if not isinstance(schema, dict | bool):
        message = f"{field}.json_schema.schema must be a JSON schema."
        raise BadRequest(message, param=f"{field}.json_schema.schema", code="invalid_type")
    return StructuredOutputs(json=schema, asked_by=f"{field}.json_schema.schema")


def _of_vllm(given: Mapping[str, Any]) -> StructuredOutputs:
    field = "structured_outputs"
    _refuse_others(field, given, set(_KINDS))
    try:
        return msgspec.convert({**_present(given), "asked_by": field}, StructuredOutputs)
    except msgspec.ValidationError as error:
        raise bad_field(field, error) from None


def _present(given: Mapping[str, Any]) -> dict[str, Any]:
    # False asks for nothing, as null does.
    return {
        name: value for name, value in given.items() if value is not None and (name, value) != ("json_object", False)
    }


def _refuse_others(field: str, given: Mapping[str, Any], known: set[str]) -> None:
    """Nothing that is given may be passed over in silence; null and false ask for nothing."""
    for name, value in given.items():
        if name not in known and value is not None and value is not False:
            path = f"{field}.{name}"[:100]
            raise BadRequest(f"{path} is not supported here.", param=path, code="unsupported_parameter")
