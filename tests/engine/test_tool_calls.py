"""Tool calls and reasoning through the engine's own API, on a scripted worker."""

from pathlib import Path
from typing import Any

import pytest
from tiny_folder import HashOracle, write_folder
from tool_answers import TAGS

from diptych import LLM, AsyncEngine, EngineConfig, Output, SamplingParams, errors, joined_tool_calls
from diptych.config import REASONING_PARSERS, TOOL_CALL_PARSERS
from diptych.tool_calls import ToolCallPieces

ASKED = [{"role": "user", "content": "What is 1 + 2?"}]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
ANSWER = '<think>\nAdd.\n</think>\nWait.<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
PARAMS = SamplingParams(max_tokens=200)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("models") / "tools", TAGS)


def config(folder: Path, answer: str = ANSWER, **settings: Any) -> EngineConfig:
    return EngineConfig(str(folder), worker="scripted_thread", script=[HashOracle(folder).encode(answer)], **settings)


async def outputs_of(engine: AsyncEngine, **options: Any) -> list[Output]:
    return [output async for output in engine.chat(ASKED, PARAMS, **options)]


async def test_an_answer_comes_in_its_parts(folder: Path) -> None:
    async with AsyncEngine(config(folder)) as engine:
        outputs = await outputs_of(engine, tools=TOOLS)
        plain = await outputs_of(engine)
        completion = [output async for output in engine.generate("x", PARAMS)]
    assert "".join(output.text for output in outputs) == "Wait."
    assert "".join(output.reasoning for output in outputs) == "Add."
    (call,) = joined_tool_calls(delta for output in outputs for delta in output.tool_calls)
    assert (call.name, call.arguments) == ("add", '{"a": 1, "b": 2}')
    last = outputs[-1]
    assert last.finish_reason == "stop" and last.usage is not None
    assert last.usage.reasoning_tokens is not None and 0 < last.usage.reasoning_tokens < last.usage.completion_tokens
    assert last.timings is not None
    times = last.timings
    assert 0 < times.arrived <= times.prompt_taken <= times.rendered <= times.tokenised <= times.admitted
    assert "".join(output.text for output in plain) == ANSWER[ANSWER.index("Wait.") :]
    assert "".join(output.text for output in completion) == ANSWER
    end = completion[-1]
    assert end.usage is not None and end.usage.reasoning_tokens is None
    assert end.timings is not None and end.timings.rendered == 0 < end.timings.prompt_taken


@pytest.mark.parametrize(
    "tools", ["add", {"name": "add"}, [1], [{}], [*TOOLS, {"function": {"name": ""}}], [{"name": 3}]]
)
async def test_tools_that_nobody_could_call_are_refused(folder: Path, tools: Any) -> None:
    async with AsyncEngine(config(folder)) as engine:
        with pytest.raises(errors.InvalidParameterError, match=r"^tools\["):
            await outputs_of(engine, tools=tools)
        assert await outputs_of(engine, tools=[TOOLS[0]["function"]])


async def test_one_call_at_most_ends_the_request(folder: Path) -> None:
    call = ANSWER[ANSWER.index("<tool_call>") :]
    async with AsyncEngine(config(folder, call * 3)) as engine:
        outputs = await outputs_of(engine, tools=TOOLS, parallel_tool_calls=False)
        both = await outputs_of(engine, tools=TOOLS)
    calls = joined_tool_calls(delta for output in outputs for delta in output.tool_calls)
    assert [call.name for call in calls] == ["add"] and outputs[-1].finish_reason == "stop"
    assert len(joined_tool_calls(delta for output in both for delta in output.tool_calls)) == 3
    assert outputs[-1].usage is not None and both[-1].usage is not None
    assert outputs[-1].usage.completion_tokens * 2 < both[-1].usage.completion_tokens


def test_batches_have_whole_calls(folder: Path) -> None:
    with LLM(config(folder)) as llm:
        results = llm.chat([ASKED, ASKED], PARAMS, tools=TOOLS, documents=[{"title": "a", "text": "b"}])
    for result in results:
        assert (result.text, result.reasoning) == ("Wait.", "Add.")
        assert [(call.name, call.arguments) for call in result.tool_calls] == [("add", '{"a": 1, "b": 2}')]


def test_pieces_that_nobody_took_are_merged_and_named_once() -> None:
    pieces = ToolCallPieces()
    pieces.add([(0, "add", "{")])
    pieces.add([(0, None, '"a"'), (1, "sub", "")])
    first = pieces.take()
    assert [(call.index, call.name, call.arguments) for call in first] == [(0, "add", '{"a"'), (1, "sub", "")]
    assert all(call.id for call in first) and first[0].id != first[1].id
    assert pieces.take() == []
    pieces.add([(1, None, "{}")])
    (more,) = pieces.take()
    assert (more.index, more.id, more.name, more.arguments) == (1, None, None, "{}")
    assert [call.arguments for call in joined_tool_calls([*first, more])] == ['{"a"', "{}"]


def test_formats_that_the_configuration_knows_are_those_of_the_core(folder: Path) -> None:
    for tools in TOOL_CALL_PARSERS:
        LLM(config(folder, tool_call_parser=tools)).close()
    for reasoning in REASONING_PARSERS:
        LLM(config(folder, reasoning_parser=reasoning)).close()
    with pytest.raises(errors.ConfigError, match=r"tool_call_parser.*hermes"):
        config(folder, tool_call_parser="hermess")
