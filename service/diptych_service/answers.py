"""Whole answers, for requests that do not stream."""

from __future__ import annotations

from typing import Any

import msgspec

from diptych import Explanation, Output, Usage
from diptych_service.chunks import Identity, total_usage


class Answer:
    """Gathers the outputs of one choice."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._prompt_ids: list[int] | None = None
        self._last: Output | None = None

    def add(self, output: Output) -> None:
        if output.accepted:
            self._prompt_ids = output.prompt_ids
        self._texts.append(output.text)
        self._token_ids += output.token_ids
        if output.finish_reason is not None:
            self._last = output

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def prompt_ids(self) -> list[int] | None:
        return self._prompt_ids

    @property
    def usage(self) -> Usage:
        assert self._last is not None and self._last.usage is not None
        return self._last.usage

    @property
    def explanation(self) -> Explanation | None:
        """Why the request went as it did, where the client asked for that."""
        return None if self._last is None else self._last.explanation

    def choice(self, index: int, *, token_ids: bool) -> dict[str, Any]:
        """What both endpoints say about a choice, beside its text."""
        assert self._last is not None
        fields: dict[str, Any] = {
            "index": index,
            "logprobs": None,
            "finish_reason": self._last.finish_reason,
            "stop_reason": self._last.stop_reason,
        }
        if token_ids:
            fields["token_ids"] = self._token_ids
        return fields


def completion_body(identity: Identity, answers: list[Answer], *, token_ids: bool) -> bytes:
    choices = []
    for index, answer in enumerate(answers):
        choice = {"text": answer.text, **answer.choice(index, token_ids=token_ids)}
        if token_ids:
            choice["prompt_token_ids"] = answer.prompt_ids
        choices.append(choice)
    return _body(identity, "text_completion", choices, answers)


def chat_body(identity: Identity, answers: list[Answer], *, token_ids: bool) -> bytes:
    (answer,) = answers
    message = {"role": "assistant", "content": answer.text, "refusal": None}
    choice = {"message": message, **answer.choice(0, token_ids=token_ids)}
    extra = {"prompt_token_ids": answer.prompt_ids} if token_ids else {}
    return _body(identity, "chat.completion", [choice], answers, extra)


def explanations_of(answers: list[Answer]) -> list[Explanation]:
    told = [answer.explanation for answer in answers]
    return [explanation for explanation in told if explanation is not None]


def _body(
    identity: Identity,
    object_name: str,
    choices: list[dict[str, Any]],
    answers: list[Answer],
    extra: dict[str, Any] | None = None,
) -> bytes:
    body = {
        "id": identity.id,
        "object": object_name,
        "created": identity.created,
        "model": identity.model,
        "choices": choices,
        "usage": total_usage([answer.usage for answer in answers], explanations_of(answers)),
        **(extra or {}),
    }
    return msgspec.json.encode(body)
