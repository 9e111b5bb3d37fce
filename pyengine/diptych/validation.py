"""Collecting every problem before complaining about any."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec

from diptych.errors import InvalidParameterError

MAX_SHOWN = 80


def shown(value: object) -> str:
    """`repr` bounded to `MAX_SHOWN` characters: a message must not grow with what a client sent."""
    try:
        text = repr(value)
    except RecursionError:
        return f"<a {type(value).__name__} nested too deep to show>"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def json_text(path: str, value: object) -> str:
    """A value as JSON. Raises `InvalidParameterError`, which names its `path`, where JSON or UTF-8 cannot hold it."""
    try:
        text = msgspec.json.encode(value).decode()
        # An infinity or NaN is written as null, as None is.
        endless = _first_endless(msgspec.to_builtins(value)) if "null" in text else None
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidParameterError(f"{path}: it cannot be written as JSON: {error}") from error
    if endless is not None:
        raise InvalidParameterError(f"{path}: it cannot be written as JSON: it holds {endless}, which JSON has not")
    return text


def _first_endless(value: object) -> float | None:
    """An infinity or NaN in builtin containers, if there is one. `json` tells that much sooner than a walk does."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return next(_endless(value), None)
    return None


def _endless(value: object) -> Iterator[float]:
    """The infinities and NaN in builtin containers; without recursion, since they may be nested as deep as C allows."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, float) and not math.isfinite(each):
            yield each
        elif isinstance(each, dict):
            waiting += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple | set | frozenset):
            waiting += each


def type_problems(struct: msgspec.Struct) -> dict[str, str]:
    """Field name to problem, for every field whose value has not its declared type (constructors do not check)."""
    problems = {}
    for name, kind in _fields(type(struct)):
        value = getattr(struct, name)
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            problems[name] = f"{name}={shown(value)}: {error}"
    return problems


@cache
def _fields(struct: type[msgspec.Struct]) -> list[tuple[str, Any]]:
    """Names and types; kept, since msgspec evaluates all annotations anew each time and every request asks."""
    return [(field.name, field.type) for field in msgspec.structs.fields(struct)]


class Problems:
    """The list under construction. Fields whose type is wrong are in `skip`: their ranges are not looked at."""

    def __init__(self, struct: msgspec.Struct) -> None:
        wrong = type_problems(struct)
        self.lines: list[str] = list(wrong.values())
        self.skip = set(wrong)
        self._struct = struct

    def values(self, *names: str) -> Iterator[tuple[str, Any]]:
        """Name and value of those among `names` that are set and of the right type."""
        for name in names:
            value = getattr(self._struct, name)
            if name not in self.skip and value is not None:
                yield name, value

    def require(self, name: str, holds: bool, expected: str) -> None:
        value = getattr(self._struct, name)
        if name not in self.skip and value is not None and not holds:
            self.lines.append(f"{name}={shown(value)}: expected {expected}")

    def at_least(self, low: int, *names: str) -> None:
        for name, value in self.values(*names):
            self.require(name, value >= low, f"at least {low}")

    def between(self, low: float, high: float, *names: str) -> None:
        """Both ends included; NaN is outside."""
        for name, value in self.values(*names):
            self.require(name, math.isfinite(value) and low <= value <= high, f"a number from {low:g} to {high:g}")

    def add(self, line: str) -> None:
        self.lines.append(line)
