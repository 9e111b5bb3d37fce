"""Tool calls and reasoning through the engine's own API, on a scripted worker."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_folder import HashOracle, write_folder
from tool_answers import TAGS

from diptych import (
    LLM,
    AsyncEngine,
    EngineConfig,
    Output,
    SamplingParams,
    StructuredOutputs,
    errors,
    joined_tool_calls,
)
from diptych.config import REASONING_PARSERS, TOOL_CALL_PARSERS
from diptych.tool_calls import ToolCallPieces
from diptych.tool_choice import ToolUse, tool_use

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
    assert last.finish_reason == "tool_calls" and last.usage is not None
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
    assert [call.name for call in calls] == ["add"] and outputs[-1].finish_reason == "tool_calls"
    assert len(joined_tool_calls(delta for output in both for delta in output.tool_calls)) == 3
    assert outputs[-1].usage is not None and both[-1].usage is not None
    assert outputs[-1].usage.completion_tokens * 2 < both[-1].usage.completion_tokens


async def test_calls_can_be_forced_and_bound(folder: Path) -> None:
    numbers = {"type": "object", "properties": {"a": {"enum": [1]}, "b": {"enum": [2]}}, "required": ["a", "b"]}
    add = {"name": "add", "parameters": {**numbers, "additionalProperties": False}}
    tools = [{"type": "function", "function": add}, {"type": "function", "function": {"name": "stop"}}]
    async with AsyncEngine(config(folder, "Never.", reasoning_parser="none")) as engine:

        async def made(reason: str, **options: Any) -> list[tuple[str, Any]]:
            outputs = await outputs_of(engine, **options)
            calls = joined_tool_calls(delta for output in outputs for delta in output.tool_calls)
            assert outputs[-1].finish_reason == reason
            return [(call.name, json.loads(call.arguments)) for call in calls]

        for given in (tools, [add, {"name": "stop"}]):
            named: Any = {"type": "function", "function": {"name": "add"}}
            assert await made("stop", tools=given, tool_choice=named) == [("add", {"a": 1, "b": 2})]
            ((name, arguments),) = await made(
                "tool_calls", tools=given, tool_choice="required", parallel_tool_calls=False
            )
            assert (name, arguments) in (("add", {"a": 1, "b": 2}), ("stop", {}))
        for free in ("auto", "none", None):
            assert await made("stop", tools=tools, tool_choice=free) == []
        structured = SamplingParams(structured_outputs=StructuredOutputs(regex="a"))
        with pytest.raises(errors.InvalidParameterError, match="structured_outputs"):
            [output async for output in engine.chat(ASKED, structured, tools=tools, tool_choice="required")]
        both = [output async for output in engine.chat(ASKED, structured, tools=tools)]
        assert "".join(output.text for output in both) == "a"


@pytest.mark.parametrize(
    "choice", ["any", "", 1, {}, {"type": "function", "function": {"name": "sub"}}, {"type": "allowed_tools"}]
)
async def test_choices_of_what_is_not_there_are_refused(folder: Path, choice: Any) -> None:
    async with AsyncEngine(config(folder)) as engine:
        with pytest.raises(errors.InvalidParameterError, match=r"^tool_choice"):
            await outputs_of(engine, tools=TOOLS, tool_choice=choice)
        with pytest.raises(errors.InvalidParameterError, match=r"^tool_choice"):
            await outputs_of(engine, tool_choice="required")


def test_only_what_must_follow_a_grammar_has_one() -> None:
    def function(name: str, **rest: Any) -> dict[str, Any]:
        return {"type": "function", "function": {"name": name, **rest}}

    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    free = [function("a", parameters=schema), function("b", strict=False)]
    assert tool_use(free, None, parallel=True).grammar is None
    assert tool_use(free, "auto", parallel=False) == ToolUse(shown=[free[0], function("b")], max_calls=1)
    assert tool_use([], "none", parallel=True) == tool_use(free, "none", parallel=False) == ToolUse()
    strict = [*free, function("c", strict=True)]
    use = tool_use(strict, "auto", parallel=True)
    assert use.shown == [free[0], function("b"), function("c")] and use.grammar is not None
    assert use.grammar["choice"] == "auto" and use.grammar["several"]
    told = [(each["name"], each["parameters"] and json.loads(each["parameters"])) for each in use.grammar["functions"]]
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    assert told == [("a", None), ("b", None), ("c", nothing)]
    assert [each["field"] for each in use.grammar["functions"]][2] == "tools[2].function.parameters"
    named = tool_use(free, {"type": "function", "function": {"name": "a"}}, parallel=True).grammar
    assert named == {
        "choice": "named",
        "several": False,
        "functions": [
            {
                "name": "a",
                "parameters": json.dumps(schema, separators=(",", ":")),
                "field": "tools[0].function.parameters",
            }
        ],
    }


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
def test_numbers_that_json_has_not_are_refused_in_parameters(number: float) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [None, number]}}}
    tools = [{"type": "function", "function": {"name": "a", "parameters": schema}}]
    for choice in ("required", None):
        with pytest.raises(
            errors.InvalidParameterError, match=r"^tools\[0\]\.function\.parameters: .* holds"
        ) as caught:
            tool_use(tools, choice, parallel=True)
        assert str(number) in caught.value.message


def test_tools_of_one_name_are_refused() -> None:
    nested = [{"type": "function", "function": {"name": name}} for name in ("a", "b", "a")]
    flat = [{"name": name} for name in ("a", "b", "a")]
    for tools, path in ((nested, r"tools\[2\]\.function\.name='a'"), (flat, r"tools\[2\]\.name='a'")):
        for choice in ("required", "auto", "none"):
            with pytest.raises(errors.InvalidParameterError, match=rf"^{path}: .*tools\[0\]"):
                tool_use(tools, choice, parallel=True)
        assert tool_use(tools[:2], "required", parallel=True).grammar is not None


@pytest.mark.parametrize("parallel", ["no", 0, 1, None])
async def test_parallel_tool_calls_is_true_or_false(folder: Path, parallel: Any) -> None:
    async with AsyncEngine(config(folder)) as engine:
        with pytest.raises(errors.InvalidParameterError, match=rf"^parallel_tool_calls={parallel!r}: "):
            await outputs_of(engine, tools=TOOLS, parallel_tool_calls=parallel)


def test_batches_can_be_forced(folder: Path) -> None:
    with LLM(config(folder, "Never.", reasoning_parser="none")) as llm:
        named = {"type": "function", "function": {"name": "add"}}
        empty = [{"name": "add", "parameters": {"type": "object", "additionalProperties": False}}]
        (result,) = llm.chat([ASKED], PARAMS, tools=empty, tool_choice=named)
        assert [(call.name, json.loads(call.arguments)) for call in result.tool_calls] == [("add", {})]
        assert result.finish_reason == "stop" and result.text == ""


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
