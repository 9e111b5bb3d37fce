"""Whole answers, for requests that do not stream."""

from __future__ import annotations

from typing import Any

import msgspec

from diptych import Explanation, Output, TokenLogprobs, ToolCall, ToolCallDelta, Usage, joined_tool_calls
from diptych_service.chunks import Identity, View
from diptych_service.logprobs import chat_logprobs, completion_logprobs, prompt_logprobs
from diptych_service.usage import counted_once, total_usage


class Answer:
    """Gathers the outputs of one choice."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCallDelta] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._prompt_ids: list[int] | None = None
        self._last: Output | None = None

    def accept(self, output: Output) -> None:
        self._prompt_ids = output.prompt_ids

    def add(self, output: Output) -> None:
        self._texts.append(output.text)
        self._reasoning.append(output.reasoning)
        self._calls += output.tool_calls
        self._token_ids += output.token_ids
        self._logprobs += output.logprobs
        self._prompt_logprobs += output.prompt_logprobs
        if output.finish_reason is not None:
            self._last = output

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    @property
    def tool_calls(self) -> list[ToolCall]:
        return joined_tool_calls(self._calls)

    @property
    def logprobs(self) -> list[TokenLogprobs]:
        return self._logprobs

    def of_prompt(self, view: View) -> dict[str, Any]:
        """What was asked for of the prompt itself, in the place where an endpoint tells it."""
        fields: dict[str, Any] = {}
        if view.token_ids:
            fields["prompt_token_ids"] = self._prompt_ids
        if view.prompt_logprobs is not None:
            fields["prompt_logprobs"] = prompt_logprobs(self._prompt_logprobs, view.prompt_logprobs)
        return fields

    @property
    def usage(self) -> Usage:
        assert self._last is not None and self._last.usage is not None
        return self._last.usage

    @property
    def explanation(self) -> Explanation | None:
        """Why the request went as it did, where the client asked for that."""
        return None if self._last is None else self._last.explanation

    def choice(self, index: int, *, token_ids: bool) -> dict[str, Any]:
        """What both endpoints say about a choice, beside its text and the log probabilities."""
        assert self._last is not None and self._last.finish_reason is not None
        fields: dict[str, Any] = {
            "index": index,
            "logprobs": None,
            "finish_reason": self._last.finish_reason,
            "stop_reason": self._last.stop_reason,
        }
        if token_ids:
            fields["token_ids"] = self._token_ids
        return fields


def usages_of(answers: list[Answer], per_prompt: int) -> list[Usage]:
    return counted_once([answer.usage for answer in answers], per_prompt)


def completion_body(identity: Identity, answers: list[Answer], per_prompt: int, view: View) -> bytes:
    choices = []
    for index, answer in enumerate(answers):
        text = answer.text
        choice = {"text": text, **answer.choice(index, token_ids=view.token_ids)}
        if view.logprobs:
            choice["logprobs"] = completion_logprobs(answer.logprobs, len(text))
        choices.append(choice | answer.of_prompt(view))
    return _body(identity, "text_completion", choices, _total(answers, per_prompt))


def chat_body(identity: Identity, answers: list[Answer], per_prompt: int, view: View) -> bytes:
    choices = []
    for index, answer in enumerate(answers):
        choice = {"message": _message(answer, view), **answer.choice(index, token_ids=view.token_ids)}
        if view.logprobs:
            choice["logprobs"] = chat_logprobs(answer.logprobs)
        choices.append(choice)
    return _body(identity, "chat.completion", choices, _total(answers, per_prompt), answers[0].of_prompt(view))


def _message(answer: Answer, view: View) -> dict[str, Any]:
    calls = answer.tool_calls
    # Beside calls an empty text is none.
    message: dict[str, Any] = {"role": "assistant", "content": answer.text if answer.text or not calls else None}
    message["refusal"] = None
    if view.reasoning and (reasoning := answer.reasoning):
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    return message


def _total(answers: list[Answer], per_prompt: int) -> dict[str, Any]:
    told = [answer.explanation for answer in answers]
    explanations = [explanation for explanation in told if explanation is not None]
    return total_usage(usages_of(answers, per_prompt), explanations)


def _body(
    identity: Identity,
    object_name: str,
    choices: list[dict[str, Any]],
    usage: dict[str, Any],
    extra: dict[str, Any] | None = None,
) -> bytes:
    body = {
        "id": identity.id,
        "object": object_name,
        "created": identity.created,
        "model": identity.model,
        "choices": choices,
        "usage": usage,
        **(extra or {}),
    }
    return msgspec.json.encode(body)
