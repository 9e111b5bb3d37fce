"""Tool calls on their way from frames to outputs."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterable

from diptych.output import ToolCall, ToolCallDelta

Piece = tuple[int, str | None, str]

# Mistral's templates take ids of nine letters and digits only, and no others mind.
_ID_LENGTH = 9
_ID_CHARACTERS = string.ascii_letters + string.digits


class ToolCallPieces:
    """Merges the pieces of one answer's calls until they are taken. Index, name when a call begins, more arguments."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: dict[int, tuple[str | None, list[str]]] = {}

    def add(self, pieces: Iterable[Piece]) -> None:
        for index, name, arguments in pieces:
            self._calls.setdefault(index, (name, []))[1].append(arguments)

    def take(self) -> list[ToolCallDelta]:
        """What was added since the last time; a call that begins gets its id."""
        calls, self._calls = self._calls, {}
        return [
            ToolCallDelta(index, None if name is None else new_id(), name, "".join(arguments))
            for index, (name, arguments) in calls.items()
        ]


def new_id() -> str:
    return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH))


def joined_tool_calls(deltas: Iterable[ToolCallDelta]) -> list[ToolCall]:
    """The whole calls that the deltas of an answer give."""
    calls: dict[int, ToolCall] = {}
    for delta in deltas:
        call = calls.get(delta.index)
        if call is not None:
            calls[delta.index] = ToolCall(call.id, call.name, call.arguments + delta.arguments)
        else:
            assert delta.id is not None and delta.name is not None
            calls[delta.index] = ToolCall(delta.id, delta.name, delta.arguments)
    return list(calls.values())
