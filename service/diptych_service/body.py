"""From the bytes of a request body to a checked struct. Whatever is wrong becomes one 400 that says where.

The event loop waits for this, so the bytes are read by msgspec alone: one pass splits the body into its fields, and a
second one decodes a field as its declared type. What is refused or has no effect is never decoded.
"""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import islice
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from diptych_service.errors import BadRequest
from diptych_service.fields import FieldTable, screen

Request = TypeVar("Request", bound=msgspec.Struct)

MAX_FIELDS = 256
# Names in the objects of one field. Chats of 20,000 messages have fewer.
MAX_NAMES = 65_536
# Values in one field, those in its lists and objects together: each costs the event loop about a microsecond.
MAX_VALUES = 150_000
# Fields whose value holds objects. In those one name could stand twice, and hide the value that a reader sees.
_WITH_OBJECTS = frozenset(
    {
        *("chat_template_kwargs", "documents", "guided_json", "logit_bias", "messages", "response_format"),
        *("stream_options", "structured_outputs", "tool_choice", "tools"),
    }
)

_NAME_END = re.compile(rb'"(?<!\\")\s*:')
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_OFFSET = re.compile(r"\(byte (\d+)\)$")
_PATH = re.compile(r" - at `(?:key in )?\$\.?(?P<path>.*)`$")


class _Name(str):
    """A field name; a type of its own so that msgspec tells each one it meets."""

    __slots__ = ()


def read_request(raw: bytes, struct: type[Request], table: FieldTable) -> tuple[Request, list[str]]:
    """The request in a body, and the names of its fields that have no effect."""
    honoured, ignored = screen(parse_object(raw), table)
    decoders = _decoders(struct)
    for field in msgspec.structs.fields(struct):
        if field.required and field.name not in honoured:
            raise BadRequest(f"The field {field.name!r} is missing.", param=field.name, code="missing_field")
    request = struct(**{name: _value(name, value, decoders[name]) for name, value in honoured.items()})
    options = getattr(request, "stream_options", None)
    if options is not None and options.include_obfuscation is not None:
        ignored.append("stream_options.include_obfuscation")
    return request, ignored


def parse_object(raw: bytes) -> dict[str, Raw]:
    """The fields of a strict JSON object: UTF-8, no name twice, no NaN or infinity, no half of a surrogate pair.

    Their values are grammatical, and not decoded yet.
    """
    names: list[str] = []

    def name_of(_type: type, name: str) -> _Name:
        if len(names) == MAX_FIELDS:
            raise BadRequest(f"The body has more than {MAX_FIELDS} fields.", code="invalid_json")
        names.append(name)
        return _Name(name)

    try:
        str(raw, "utf-8")
        fields = msgspec.json.decode(raw, type=dict[_Name, Raw], dec_hook=name_of)
    except UnicodeDecodeError as error:
        raise BadRequest(f"The body is not UTF-8: bad byte at offset {error.start}.", code="invalid_json") from None
    except RecursionError:
        raise BadRequest("The body is nested too deeply.", code="invalid_json") from None
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, BadRequest):
            raise error.__cause__ from None
        raise BadRequest("The body must be a JSON object.", code="invalid_json") from None
    except msgspec.DecodeError as error:
        raise _bad_json(raw, error, names) from None
    if len(fields) != len(names):
        raise _twice(next(name for name in names if names.count(name) > 1))
    return {str(name): value for name, value in fields.items()}


def decode_field(name: str, value: Raw, decoder: msgspec.json.Decoder[Any]) -> Any:
    """The value of a field, or a 400 with its place."""
    try:
        return decoder.decode(value)
    except msgspec.ValidationError as error:
        raise bad_field(name, error) from None


def num_values(raw: bytes) -> int:
    """At least as many values as a JSON text has, and where that is many, no more than twice as many.

    Each value stands behind a comma or opens or begins a list or an object. Strings, which may hold these characters
    too, are cut out only if they could matter.
    """
    if (most := _count_marks(raw)) <= MAX_VALUES:
        return most
    pieces = raw.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"', 4 * (MAX_VALUES + 1))
    return max(_count_marks(b"".join(pieces[::2])), len(pieces) // 4)


def _count_marks(raw: bytes) -> int:
    return 1 + raw.count(b",") + raw.count(b"[") + raw.count(b"{")


def _value(name: str, value: Raw, decoder: msgspec.json.Decoder[Any]) -> Any:
    # Prompts are decoded elsewhere, in slices.
    if decoder.type is not Raw and num_values(bytes(value)) > MAX_VALUES:
        raise BadRequest(f"{name} has more than {MAX_VALUES} values in it.", param=name, code="invalid_json")
    if name in _WITH_OBJECTS:
        _refuse_repeated_names(name, bytes(value))
    return decode_field(name, value, decoder)


@cache
def _decoders(struct: type[msgspec.Struct]) -> dict[str, msgspec.json.Decoder[Any]]:
    return {field.encode_name: msgspec.json.Decoder(field.type) for field in msgspec.structs.fields(struct)}


def _refuse_repeated_names(field: str, raw: bytes) -> None:
    """Names are counted in the bytes, by what ends them, and in what was decoded. Equal counts: none was lost.

    A text that begins with a colon looks like the end of a name, and a name may end in a backslash: only where such a
    thing makes the counts differ or uncertain, the slow parser looks at each object.
    """
    most = sum(1 for _ in islice(_NAME_END.finditer(raw), MAX_NAMES + 1))
    uncertain = b'\\\\"' in raw
    if most == 0 and not uncertain:
        return
    decoded = decode_field(field, Raw(raw), _ANY) if most <= MAX_NAMES else None
    found = MAX_NAMES + 1 if most > MAX_NAMES else _count_names(decoded)
    if found > MAX_NAMES:
        message = f"{field}: its objects have more than {MAX_NAMES} names together."
        raise BadRequest(message, param=field, code="invalid_json")
    if uncertain or most != found:
        json.loads(raw, object_pairs_hook=_unique)


_ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def _count_names(value: Any) -> int:
    count = 0
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            count += len(value)
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
    return count


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        raise _twice(next(name for name in names if names.count(name) > 1))
    return result


def _twice(name: str) -> BadRequest:
    return BadRequest(f"The name {name[:100]!r} occurs twice in one object.", code="invalid_json")


def _bad_json(raw: bytes, error: msgspec.DecodeError, names: list[str]) -> BadRequest:
    """Why the body is no JSON. The last name that was read is the field in which it broke."""
    text = str(error)
    # msgspec looks for the second half of a pair right behind the first, whatever stands there.
    found = _OFFSET.search(text)
    end = int(found[1]) if found else len(raw)
    half = ("escape" in text or "truncated" in text) and _SURROGATE_ESCAPE.search(raw[max(end - 16, 0) : end])
    if "surrogate" not in text and not half:
        return BadRequest(f"The body is not valid JSON: {text[:200]}.", code="invalid_json")
    field = names[-1][:100] if names else None
    where = f"The field {field!r}" if field else "The body"
    message = f"{where} holds an unpaired surrogate (\\ud800..\\udfff), which is no character."
    return BadRequest(message, param=field, code="invalid_text")


def bad_field(name: str, error: msgspec.ValidationError) -> BadRequest:
    """A 400 with the place in the field `name` where the value has the wrong type."""
    text = str(error)
    found = _PATH.search(text)
    message = text[: found.start()] if found else text
    rest = found["path"] if found else ""
    separator = "." if rest and not rest.startswith("[") else ""
    param = f"{name}{separator}{rest}"[:100]
    return BadRequest(f"{param}: {message}.", param=param, code="invalid_type")
