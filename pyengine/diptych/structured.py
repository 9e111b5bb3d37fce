"""`StructuredOutputs`: what a whole output must look like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from diptych.validation import json_text, type_problems

MAX_CHOICES = 4096
# What is set, and what the core calls it.
_KINDS = {
    "json": "json_schema",
    "json_object": "json_object",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
}


class StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a whole output must look like, from its first token to its last. In a chat it begins behind the reasoning,
    where that is told apart: an answer ends what its prompt has begun, and else may have some of its own.

    Exactly one of these is given:
    - `json`: a JSON schema, as an object or as its text. `json_object`: True for any JSON object.
    - `regex`: a regular expression that the whole output matches; no look-around, no back references.
    - `choice`: 1 to 4096 texts of which the output is one.
    - `grammar`: a grammar in the Lark dialect of llguidance, whose `start` the output derives from.

    At most 256 KiB of any, but 16 KiB of a Lark grammar, 4 KiB of a regular expression, also as a pattern of a schema,
    and 8 KiB of all patterns together. Numbers in schemas are at most 2**53 - 1 either way. Tokens that no continuation
    could make right are never sampled; the output ends where the grammar ends, or at `max_tokens`, a stop string or a
    stop id before. What cannot be compiled, or not within 5 s, is an `InvalidParameterError` of kind "invalid_grammar".
    `asked_by` is what such errors call the parameter.
    """

    json: Mapping[str, Any] | str | bool | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    asked_by: str = "structured_outputs"

    def problem(self) -> str | None:
        """What is wrong with it, as far as can be told without compiling it."""
        given = list(self.given())
        if len(given) != 1:
            said = "none is given" if not given else f"{' and '.join(given)} are given"
            return f"{self.asked_by}: expected exactly one of {', '.join(_KINDS)}, {said}"
        if self.json_object is False:
            return f"{self.asked_by}: json_object=False asks for nothing: leave structured outputs out"
        wrong = type_problems(self)
        if self.choice is not None and ("choice" in wrong or not 1 <= len(self.choice) <= MAX_CHOICES):
            return f"{self.asked_by}: expected a list of 1 to {MAX_CHOICES} texts as choice"
        if wrong:
            return f"{self.asked_by}: {'; '.join(wrong.values())}"
        return self._surrogate()

    def given(self) -> dict[str, Any]:
        """What it asks for, under the name of its kind."""
        return {name: value for name in _KINDS if (value := getattr(self, name)) is not None}

    def _surrogate(self) -> str | None:
        """What UTF-8 cannot hold; of a schema that is no text, `for_core` tells."""
        texts = [self.json if isinstance(self.json, str) else None, self.regex, self.grammar, *(self.choice or ())]
        if any(not _is_utf8(text) for text in texts if text is not None):
            (name,) = self.given()
            return f"{self.asked_by}: its {name} holds an unpaired surrogate: expected text that UTF-8 can hold"
        return None

    def for_core(self) -> dict[str, Any]:
        """The same as the core reads it. Raises `InvalidParameterError` for a schema that JSON cannot hold."""
        ((name, value),) = self.given().items()
        if name == "json" and not isinstance(value, str):
            value = json_text(self.asked_by, value)
        return {"field": self.asked_by, _KINDS[name]: list(value) if name == "choice" else value}


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
