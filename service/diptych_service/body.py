"""From the bytes of a request body to a checked struct. Whatever is wrong becomes one 400 that says where."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

import msgspec

from diptych_service.errors import BadRequest
from diptych_service.fields import FieldTable, screen

Request = TypeVar("Request", bound=msgspec.Struct)

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_PATH = re.compile(r" - at `\$\.?(?P<path>.*)`$")
_MISSING = re.compile(r"missing required field `(?P<name>\w+)`")


def read_request(raw: bytes, struct: type[Request], table: FieldTable) -> tuple[Request, list[str]]:
    """The request in a body, and the names of its fields that have no effect."""
    body = parse_object(raw)
    honoured, ignored = screen(body, table)
    options = honoured.get("stream_options")
    if isinstance(options, dict) and options.get("include_obfuscation") is not None:
        ignored.append("stream_options.include_obfuscation")
    try:
        return msgspec.convert(honoured, struct), ignored
    except msgspec.ValidationError as error:
        raise _bad_field(error) from None


def parse_object(raw: bytes) -> dict[str, Any]:
    """Strict JSON: UTF-8, an object, no name twice, no NaN or infinity, no half of a surrogate pair."""
    try:
        body = _DECODER.decode(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadRequest(f"The body is not UTF-8: bad byte at offset {error.start}.", code="invalid_json") from None
    except RecursionError:
        raise BadRequest("The body is nested too deeply.", code="invalid_json") from None
    except ValueError as error:
        raise BadRequest(f"The body is not valid JSON: {str(error)[:200]}.", code="invalid_json") from None
    if not isinstance(body, dict):
        raise BadRequest(f"The body must be a JSON object, not {_json_type(body)}.", code="invalid_json")
    if _SURROGATE_ESCAPE.search(raw):
        _refuse_unpaired_surrogates(body)
    return body


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise BadRequest(f"The name {name[:100]!r} occurs twice in one object.", code="invalid_json")
            seen.add(name)
    return result


def _no_constant(literal: str) -> NoReturn:
    raise BadRequest(f"The body is not valid JSON: {literal} is no JSON number.", code="invalid_json")


def _finite(literal: str) -> float:
    value = float(literal)
    if not math.isfinite(value):
        raise BadRequest(f"The number {literal[:40]} is out of range.", code="invalid_json")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)


def _refuse_unpaired_surrogates(body: Mapping[str, Any]) -> None:
    for name, value in body.items():
        try:
            json.dumps([name, value], ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            shown = name.encode("utf-8", "replace").decode("utf-8")[:100]
            message = f"The field {shown!r} holds an unpaired surrogate (\\ud800..\\udfff), which is no character."
            raise BadRequest(message, param=shown, code="invalid_text") from None


def _bad_field(error: msgspec.ValidationError) -> BadRequest:
    text = str(error)
    found = _PATH.search(text)
    message = text[: found.start()] if found else text
    missing = _MISSING.search(text)
    if missing:
        return BadRequest(f"The field {missing['name']!r} is missing.", param=missing["name"], code="missing_field")
    param = found["path"][:100] if found else None
    return BadRequest(f"{param}: {message}." if param else f"{message}.", param=param, code="invalid_type")


def _json_type(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
