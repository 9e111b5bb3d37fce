"""The events of a stream, byte for byte: as recorded, and readable by every parser whatever stands in them."""

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk
from raw_client import events

from diptych import Explanation, Output, ToolCallDelta, Usage, joined_tool_calls
from diptych.chunks import AnswerChunks
from diptych_service.chunks import ChunkKind, Chunks, Identity, View, failed
from diptych_service.errors import ApiError


class Case(msgspec.Struct):
    """`chunks`: what each of `steps`, outputs with the prompt that they are of, adds to the stream."""

    name: str
    endpoint: ChunkKind
    identity: dict[str, Any]
    view: dict[str, Any]
    prompts: int
    per_prompt: int
    steps: list[tuple[int, Output]]
    chunks: list[str]
    closing: str

    def stream(self) -> Chunks:
        identity, view = Identity(**self.identity), View(**self.view)
        return Chunks(self.endpoint, identity, view, self.prompts, self.per_prompt)


RECORDED = Path(__file__).with_name("chunks.jsonl")
CASES = [msgspec.json.decode(line, type=Case) for line in RECORDED.read_text().split("\n") if line]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.endpoint}: {case.name}")
def test_chunks_are_as_recorded(case: Case) -> None:
    stream = case.stream()
    for (prompt, output), expected in zip(case.steps, case.chunks, strict=True):
        assert stream.of(prompt, output).decode() == expected
    assert stream.all_accepted and stream.all_finished
    assert stream.closing().decode() == case.closing


@pytest.mark.parametrize("case", [case for case in CASES if case.endpoint == "chat"], ids=lambda case: case.name)
def test_openais_library_takes_every_chat_together(case: Case) -> None:
    """It puts a choice that it sees for the first time at the end of its list, wherever the choice says it belongs."""
    state = ChatCompletionStreamState()
    for chunk in events("".join(case.chunks).encode()):
        state.handle_chunk(ChatCompletionChunk.construct(**chunk))
    for index, choice in enumerate(state.current_completion_snapshot.choices):
        mine = [
            output
            for prompt, output in case.steps
            if not output.accepted and prompt * case.per_prompt + output.choice == index
        ]
        assert choice.message.role == "assistant" and (choice.message.content or "") == "".join(o.text for o in mine)
        calls = [call for output in mine for call in output.tool_calls]
        joined = [(call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
        assert joined == [(call.id, call.name, call.arguments) for call in joined_tool_calls(calls)]


texts = st.text(max_size=30) | st.text('"\\/\n\r\t\x00\x1b\x1c\x1f\x7f\x85\u2027\u2028\u2029\ufeff😀 a', max_size=30)


def opened(endpoint: ChunkKind, model: str = "tiny") -> Chunks:
    stream = Chunks(endpoint, Identity("id", 0, model), View(include_usage=True), 1)
    stream.of(0, Output(accepted=True, prompt_tokens=1))
    return stream


@given(text=texts, reasoning=texts, arguments=texts, model=texts, tenant=texts)
def test_what_chunks_say_reads_back(text: str, reasoning: str, arguments: str, model: str, tenant: str) -> None:
    stream = opened("chat", model)
    call = ToolCallDelta(0, "abcDEF123", text, arguments)
    told = Explanation(0, 0, 0, None, tenant, [], None, [], [], [], 0)
    last = Output(finish_reason="tool_calls", stop_reason=text, usage=Usage(1, 2, 0), explanation=told)
    content = stream.of(0, Output(text=text, reasoning=reasoning, tool_calls=[call])) + stream.of(0, last)
    *chunks, total, done = events(content + stream.closing())
    assert done == "[DONE]" and total["usage"]["explanations"][0]["waiting_for"] == tenant
    assert {chunk["model"] for chunk in chunks} == {model}
    choices = [chunk["choices"][0] for chunk in chunks]
    deltas = [choice["delta"] for choice in choices]
    assert "".join(delta.get("content", "") for delta in deltas) == text
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == reasoning
    (function,) = [call["function"] for delta in deltas for call in delta.get("tool_calls", [])]
    assert function == {"name": text, "arguments": arguments}
    assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("tool_calls", text)


@given(text=texts)
def test_completions_and_errors_read_back(text: str) -> None:
    (chunk,) = events(opened("completions").of(0, Output(text=text, finish_reason="length", usage=Usage(1, 1, 0))))
    assert chunk["choices"][0]["text"] == text
    error, done = events(failed(ApiError(500, text).body()))
    assert error["error"]["message"] == text and done == "[DONE]"


def test_logprobs_are_passed_on_as_they_are_encoded() -> None:
    stream = AnswerChunks("completions", Identity("id", 0, "tiny"), View(), 1)
    (chunk,) = events(stream.push(0, Output(text="a"), logprobs=b'{"tokens":\n["a\xe2\x80\xa8"]}'))
    assert chunk["choices"][0]["logprobs"] == {"tokens": ["a\u2028"]}


def test_wrong_calls_are_refused() -> None:
    with pytest.raises(ValueError, match='endpoint is "responses"'):
        AnswerChunks(cast(Any, "responses"), Identity("id", 0, "tiny"), View(), 1)
    stream = AnswerChunks("chat", Identity("id", 0, "tiny"), View(), 2)
    with pytest.raises(IndexError, match="choice 2: this stream has 2"):
        stream.push(2, Output(text="a"))
    with pytest.raises(IndexError, match="choice 2: this stream has 2"):
        stream.accept(1, 2, 5)
    with pytest.raises(ValueError, match='"length" needs its usage'):
        stream.push(0, Output(finish_reason="length"))
