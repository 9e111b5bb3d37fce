"""The JSON of answers: chunks of a stream, and whole responses.

Everything in a chunk that does not change between tokens is encoded once per request; per delta only the text is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import msgspec
from msgspec.structs import replace

from diptych import Explanation, Output, ToolCallDelta, Usage

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.encode

# Line ends to some SSE parsers although JSON allows them bare in a string. UTF-8 can be searched as bytes.
_LINE_ENDS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


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


def usage_of(prompt: int, completion: int, cached: int | None, reasoning: int | None = None) -> dict[str, Any]:
    """The `usage` object; `cached` is None while it is not known yet, `reasoning` where it is not told apart."""
    usage: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    if reasoning is not None:
        usage["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return usage


def total_usage(usages: list[Usage], explanations: list[Explanation] | None = None) -> dict[str, Any]:
    """Over all prompts of a request; explanations, one a choice, where the client asked for them."""
    prompt = sum(usage.prompt_tokens for usage in usages)
    completion = sum(usage.completion_tokens + usage.discarded_tokens for usage in usages)
    told = [usage.reasoning_tokens for usage in usages if usage.reasoning_tokens is not None]
    total = usage_of(prompt, completion, sum(usage.cached_tokens for usage in usages), sum(told) if told else None)
    return {**total, "explanations": explanations} if explanations else total


def counted_once(usages: list[Usage], per_prompt: int) -> list[Usage]:
    """The usages of choices, those of one prompt side by side, with each prompt in the first of them alone."""
    if per_prompt == 1:
        return usages
    return [
        usage if index % per_prompt == 0 else replace(usage, prompt_tokens=0, cached_tokens=0)
        for index, usage in enumerate(usages)
    ]


def text_json(text: str) -> bytes:
    """A JSON string that every SSE parser leaves in one piece."""
    return with_line_ends_escaped(_encode(text))


def with_line_ends_escaped(encoded: bytes) -> bytes:
    for raw, escaped in _LINE_ENDS:
        if raw in encoded:
            encoded = encoded.replace(raw, escaped)
    return encoded


def string_or_number(value: str | int) -> bytes:
    return text_json(value) if isinstance(value, str) else b"%d" % value


class ChoiceState:
    """What is known about one choice while it streams."""

    __slots__ = (
        "completion_tokens",
        "explanation",
        "has_calls",
        "opened",
        "pending_ids",
        "prompt_ids",
        "prompt_tokens",
        "usage",
    )

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.has_calls = False
        self.pending_ids: list[int] = []
        self.prompt_ids: list[int] | None = None
        self.usage: Usage | None = None
        self.explanation: Explanation | None = None
        self.opened = False


class Chunks(ABC):
    """Chunks of one stream, for any number of choices; the subclasses hold what differs between the endpoints."""

    object_name: ClassVar[str]
    # Whether the last text and the finish reason share a chunk.
    finish_with_text: ClassVar[bool]

    def __init__(self, identity: Identity, view: View, num_prompts: int, per_prompt: int = 1) -> None:
        self._view = view
        self._per_prompt = per_prompt
        self.choices = [ChoiceState() for _ in range(num_prompts * per_prompt)]
        common = {"id": identity.id, "object": self.object_name, "created": identity.created, "model": identity.model}
        self._start = b"data: " + _encode(common)[:-1]
        self._head = self._start + b',"choices":[{"index":'
        # With include_usage every chunk but the last has a null usage; without, none has the key.
        self._end = b'}],"usage":null}\n\n' if view.include_usage else b"}]}\n\n"
        self._num_accepted = 0
        self._num_finished = 0

    @property
    def all_accepted(self) -> bool:
        return self._num_accepted == len(self.choices)

    @property
    def all_finished(self) -> bool:
        return self._num_finished == len(self.choices)

    def usages(self) -> list[Usage]:
        """Of the choices, all of which have finished; each prompt is in one of them."""
        usages = [choice.usage for choice in self.choices if choice.usage is not None]
        return counted_once(usages, self._per_prompt)

    def of(self, prompt: int, output: Output) -> bytes:
        """The chunks for one output of the stream of a prompt: nothing while its text is held back."""
        first = prompt * self._per_prompt
        if output.accepted:
            for choice in self.choices[first : first + self._per_prompt]:
                self._accept(choice, output)
            return b""
        index = first + output.choice
        chunks = self._of(index, output)
        choice = self.choices[index]
        if chunks and not choice.opened:
            choice.opened = True
            return self._opening(index) + chunks
        return chunks

    def closing(self) -> bytes:
        """The chunk with the usage, if the client asked for it, and the terminator."""
        if not self._view.include_usage:
            return DONE
        explanations = [choice.explanation for choice in self.choices if choice.explanation is not None]
        usage = _encode(total_usage(self.usages(), explanations))
        return self._start + b',"choices":[],"usage":' + usage + b"}\n\n" + DONE

    def _accept(self, choice: ChoiceState, output: Output) -> None:
        choice.prompt_tokens = output.prompt_tokens or 0
        choice.prompt_ids = output.prompt_ids
        self._num_accepted += 1

    def _of(self, index: int, output: Output) -> bytes:
        choice = self.choices[index]
        choice.completion_tokens += len(output.token_ids)
        if self._view.token_ids:
            choice.pending_ids += output.token_ids
        choice.has_calls = choice.has_calls or bool(output.tool_calls)
        if output.finish_reason is None:
            return self._unfinished(index, output)
        choice.usage = output.usage
        choice.explanation = output.explanation
        self._num_finished += 1
        finish = b'"finish_reason":%b,"stop_reason":%b' % (
            _encode(finish_reason_of(output.finish_reason, has_calls=choice.has_calls)),
            b"null" if output.stop_reason is None else string_or_number(output.stop_reason),
        )
        if self.finish_with_text:
            return self._chunk(index, self._text(output.text), finish)
        return self._unfinished(index, output) + self._chunk(index, self._text(""), finish)

    def _unfinished(self, index: int, output: Output) -> bytes:
        """Chunks with what is new of a choice."""
        return self._chunk(index, self._text(output.text), _UNFINISHED) if output.text else b""

    def _opening(self, index: int) -> bytes:
        """What precedes the first chunk of a choice."""
        return b""

    @abstractmethod
    def _text(self, text: str) -> bytes:
        """The field of a choice that carries text; for an empty one what a finish chunk has there."""

    def _extra(self, choice: ChoiceState) -> bytes:
        """Token ids, which ride along with the next chunk that is sent anyway."""
        ids, choice.pending_ids = choice.pending_ids, []
        return b',"token_ids":' + _encode(ids)

    def _chunk(self, index: int, text: bytes, finish: bytes) -> bytes:
        choice = self.choices[index]
        extra = self._extra(choice) if self._view.token_ids else b""
        end = self._end_of(choice, choice.completion_tokens)
        return b'%b%d,%b,"logprobs":null,%b%b%b' % (self._head, index, text, finish, extra, end)

    def _end_of(self, choice: ChoiceState, completion_tokens: int) -> bytes:
        """The end of a chunk, with the usage so far where the client asked for it on every chunk."""
        if not self._view.continuous_usage:
            return self._end
        cached = choice.usage.cached_tokens if choice.usage is not None else None
        return b'}],"usage":' + _encode(usage_of(choice.prompt_tokens, completion_tokens, cached)) + b"}\n\n"


_UNFINISHED = b'"finish_reason":null'


def finish_reason_of(reason: str, *, has_calls: bool) -> str:
    """An answer that stops with calls stops for them; one that was cut off says so."""
    return "tool_calls" if has_calls and reason == "stop" else reason


def tool_call_json(call: ToolCallDelta) -> dict[str, Any]:
    """Id, type and name come once: clients add up the texts of all deltas."""
    if call.id is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": call.index, "id": call.id, "type": "function", "function": function}


class ChatChunks(Chunks):
    """A role first, text in `delta.content`, reasoning and tool calls beside it; a finish chunk with an empty delta."""

    object_name = "chat.completion.chunk"
    finish_with_text = False

    def _opening(self, index: int) -> bytes:
        first = b'%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null' % index
        choice = self.choices[index]
        # Sent together with the first text, but before it.
        end = self._end_of(choice, 0)
        if self._view.token_ids and choice.prompt_ids is not None:
            end = b'}],"prompt_token_ids":' + _encode(choice.prompt_ids) + end[2:]
        return self._head + first + end

    def _unfinished(self, index: int, output: Output) -> bytes:
        chunks = b""
        if output.reasoning and self._view.reasoning:
            delta = b'"delta":{"reasoning_content":%b}' % text_json(output.reasoning)
            chunks += self._chunk(index, delta, _UNFINISHED)
        chunks += super()._unfinished(index, output)
        if output.tool_calls:
            calls = with_line_ends_escaped(_encode([tool_call_json(call) for call in output.tool_calls]))
            chunks += self._chunk(index, b'"delta":{"tool_calls":%b}' % calls, _UNFINISHED)
        return chunks

    def _text(self, text: str) -> bytes:
        return b'"delta":{"content":%b}' % text_json(text) if text else b'"delta":{}'


class CompletionChunks(Chunks):
    """Text in `text`; the finish reason comes with the last of it."""

    object_name = "text_completion"
    finish_with_text = True

    def _text(self, text: str) -> bytes:
        return b'"text":' + text_json(text)

    def _extra(self, choice: ChoiceState) -> bytes:
        extra = super()._extra(choice)
        if choice.prompt_ids is None:
            return extra
        prompt_ids, choice.prompt_ids = choice.prompt_ids, None
        return extra + b',"prompt_token_ids":' + _encode(prompt_ids)
