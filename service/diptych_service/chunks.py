"""The events of a stream. `diptych_core` builds them; here stands what is told at its end."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from diptych import Explanation, Output, Usage
from diptych.chunks import AnswerChunks
from diptych_service.logprobs import PendingLogprobs, chat_logprobs, completion_logprobs
from diptych_service.usage import counted_once, total_usage


class Identity(NamedTuple):
    """What all chunks of an answer repeat. `created` in seconds since 1970."""

    id: str
    created: int
    model: str


class View(NamedTuple):
    """What a client asked to see of its answer."""

    include_usage: bool = False
    continuous_usage: bool = False
    token_ids: bool = False
    reasoning: bool = True
    logprobs: bool = False
    # How many of the likeliest tokens beside each of the prompt.
    prompt_logprobs: int | None = None


ChunkKind = Literal["chat", "completions"]


class Chunks:
    """Chunks of one stream with `per_prompt` choices for each of its prompts."""

    def __init__(self, kind: ChunkKind, identity: Identity, view: View, num_prompts: int, per_prompt: int = 1) -> None:
        num_choices = num_prompts * per_prompt
        self._view = view
        shape = chat_logprobs if kind == "chat" else completion_logprobs
        self._logprobs = [PendingLogprobs(shape, holds_back=kind != "chat") for _ in range(num_choices)]
        self._chunks = AnswerChunks(kind, identity, view, num_choices)
        self._include_usage = view.include_usage
        self._per_prompt = per_prompt
        self._usages: list[Usage | None] = [None] * num_choices
        self._explanations: list[Explanation | None] = [None] * num_choices
        self._num_unaccepted = num_prompts
        self._num_open = num_choices

    @property
    def all_accepted(self) -> bool:
        return self._num_unaccepted == 0

    @property
    def all_finished(self) -> bool:
        return self._num_open == 0

    def usages(self) -> list[Usage]:
        """Of the choices, all of which have finished; each prompt is in one of them."""
        return counted_once([usage for usage in self._usages if usage is not None], self._per_prompt)

    def of(self, prompt: int, output: Output) -> bytes:
        """The chunks for one output of the stream of a prompt: nothing while its text is held back."""
        first = prompt * self._per_prompt
        if output.accepted:
            self._num_unaccepted -= 1
            self._chunks.accept(first, self._per_prompt, output.prompt_tokens or 0, output.prompt_ids)
            return b""
        choice = first + output.choice
        if output.finish_reason is not None:
            self._num_open -= 1
            self._usages[choice] = output.usage
            self._explanations[choice] = output.explanation
        if not self._view.logprobs:
            return self._chunks.push(choice, output)
        shows = output.text or output.tool_calls or (output.reasoning and self._view.reasoning)
        logprobs = self._logprobs[choice].take(output, makes_chunk=bool(shows or output.finish_reason))
        return self._chunks.push(choice, output, logprobs=logprobs)

    def closing(self) -> bytes:
        """The chunk with the usage, if the client asked for it, and the terminator."""
        if not self._include_usage:
            return self._chunks.close()
        explanations = [explanation for explanation in self._explanations if explanation is not None]
        return self._chunks.close(msgspec.json.encode(total_usage(self.usages(), explanations)))


def failed(error: bytes) -> bytes:
    """A JSON error in place of what was still to come of a stream, and the terminator."""
    return AnswerChunks.failed(error)
