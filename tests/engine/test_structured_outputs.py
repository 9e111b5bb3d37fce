"""Structured outputs: what engines give follows its grammar, whatever computes and whatever else runs."""

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tiny_folder import HashOracle

from diptych import LLM, AsyncEngine, EngineConfig, SamplingParams, StructuredOutputs, errors
from diptych.params import params_problems

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["x", "é"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
CODE = "[a-f]{3}-(é|ü)[0-9]{2}"
PROMPT = [7, 9, 11, 13]


def is_person(text: str) -> bool:
    value = json.loads(text)
    return (
        isinstance(value, dict)
        and value.keys() <= {"name", "age", "tags"}
        and isinstance(value["name"], str)
        and len(value["name"]) <= 8
        and type(value["age"]) is int
        and 0 <= value["age"] <= 99
        and len(value.get("tags", [])) <= 2
        and set(value.get("tags", [])) <= {"x", "é"}
    )


@pytest.fixture(params=[0, 1])
async def engine(folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[AsyncEngine]:
    config = EngineConfig(str(folder), worker="scripted", max_running=32, overlap=request.param)
    async with AsyncEngine(config) as engine:
        yield engine


async def collect(engine: AsyncEngine, prompt: list[int], **settings: Any) -> tuple[list[str], list[str | None]]:
    """Texts and finish reasons, one a choice."""
    params = SamplingParams(**{"max_tokens": 1000, **settings})
    texts, reasons = [""] * params.n, [None] * params.n
    async for output in engine.generate(prompt, params):
        texts[output.choice] += output.text
        reasons[output.choice] = output.finish_reason or reasons[output.choice]
    return texts, reasons


@pytest.mark.parametrize("given", [{"json": PERSON}, {"json": json.dumps(PERSON)}])
async def test_every_answer_is_what_its_schema_says(engine: AsyncEngine, given: dict[str, Any]) -> None:
    asked = StructuredOutputs(**given)
    answers = await asyncio.gather(*(collect(engine, [*PROMPT, n], structured_outputs=asked) for n in range(24)))
    for (text,), (reason,) in answers:
        assert reason == "stop" and is_person(text), text


async def test_free_answers_beside_them_are_what_they_are_alone(engine: AsyncEngine, folder: Path) -> None:
    oracle = HashOracle(folder)
    asked = StructuredOutputs(regex=CODE)

    async def free(n: int) -> list[int]:
        params = SamplingParams(max_tokens=60)
        return [token async for output in engine.generate([*PROMPT, n], params) for token in output.token_ids]

    constrained = asyncio.gather(*(collect(engine, [*PROMPT, n], structured_outputs=asked, n=2) for n in range(8)))
    found = await asyncio.gather(*(free(n) for n in range(8)))
    for texts, reasons in await constrained:
        assert all(re.fullmatch(CODE, text) for text in texts), texts
        assert reasons == ["stop", "stop"]
    assert found == [oracle.continuation([*PROMPT, n], 60) for n in range(8)]


async def test_choices_and_lark_grammars(engine: AsyncEngine) -> None:
    for n in range(6):
        texts, _ = await collect(engine, [*PROMPT, n], structured_outputs=StructuredOutputs(choice=["yes", "né", "no"]))
        assert texts[0] in ("yes", "né", "no")
        lark = StructuredOutputs(grammar='start: "a" | "b" start')
        texts, reasons = await collect(engine, [*PROMPT, n], structured_outputs=lark)
        assert reasons == ["stop"] and re.fullmatch("b*a", texts[0])


async def test_a_bad_grammar_fails_its_request_alone(engine: AsyncEngine) -> None:
    good = asyncio.ensure_future(collect(engine, PROMPT, structured_outputs=StructuredOutputs(regex=CODE)))
    for bad, wanted in (
        (StructuredOutputs(regex="("), "unclosed"),
        (StructuredOutputs(json={"type": "objekt"}), "objekt"),
        (StructuredOutputs(json="{"), "EOF"),
        (StructuredOutputs(grammar="start: nothing"), "nothing"),
    ):
        with pytest.raises(errors.InvalidParameterError, match=wanted) as caught:
            await collect(engine, PROMPT, structured_outputs=bad)
        assert caught.value.kind == "invalid_grammar"
        assert caught.value.message.startswith("structured_outputs: ")
    assert re.fullmatch(CODE, (await good)[0][0])


async def test_answers_are_the_same_when_the_worker_is_killed_meanwhile(folder: Path) -> None:
    settings: dict[str, Any] = {"structured_outputs": StructuredOutputs(regex="[a-z]{80}"), "max_tokens": 200}
    async with AsyncEngine(EngineConfig(str(folder), worker="scripted", script_step_ms=4.0)) as engine:
        calm = await asyncio.gather(*(collect(engine, [*PROMPT, n], **settings) for n in range(4)))
        running = asyncio.gather(*(collect(engine, [*PROMPT, n], **settings) for n in range(4)))
        await asyncio.sleep(0.1)
        pid = engine.worker_pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert await running == calm
        assert engine.stats().worker_restarts == 1


def test_a_list_of_prompts_offline(folder: Path) -> None:
    with LLM(EngineConfig(str(folder), worker="scripted")) as llm:
        asked = SamplingParams(max_tokens=1000, structured_outputs=StructuredOutputs(json=PERSON))
        for completion in llm.generate([[*PROMPT, n] for n in range(5)], asked):
            assert is_person(completion.text)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, "exactly one"),
        ({"regex": "a", "choice": ["a"]}, "regex and choice"),
        ({"choice": []}, "1 to 4096"),
        ({"choice": "yes"}, "1 to 4096"),
        ({"choice": 5}, "1 to 4096"),
        ({"choice": ["a", 1]}, "1 to 4096"),
        ({"regex": 5}, "regex=5"),
        ({"json_object": False}, "asks for nothing"),
    ],
)
def test_what_asks_for_nothing_or_for_two_things_is_a_problem(given: dict[str, Any], wanted: str) -> None:
    problems = params_problems(SamplingParams(structured_outputs=StructuredOutputs(**given)))
    assert len(problems) == 1 and wanted in problems[0]


def cyclic() -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    schema["properties"] = {"a": schema}
    return schema


def deep() -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(100_000):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"regex": "\ud800"}, "its regex holds an unpaired surrogate"),
        ({"grammar": 'start: "\ud800"'}, "its grammar holds an unpaired surrogate"),
        ({"choice": ["a", "\ud800"]}, "its choice holds an unpaired surrogate"),
        ({"json": '{"const": "\ud800"}'}, "its json holds an unpaired surrogate"),
        ({"json": {"const": "\ud800"}}, "cannot be written as JSON"),
        ({"json": {"const": object()}}, "cannot be written as JSON"),
        ({"json": cyclic()}, "cannot be written as JSON"),
        ({"json": deep()}, "cannot be written as JSON"),
        ({"json": {"const": float("inf")}}, "holds inf"),
        ({"json": {"enum": [None, (1, float("nan"))]}}, "holds nan"),
        ({"json": {"properties": {"a": {"minimum": float("-inf")}}}}, "holds -inf"),
    ],
)
async def test_what_json_or_utf8_cannot_hold_is_refused(
    engine: AsyncEngine, given: dict[str, Any], wanted: str
) -> None:
    asked = StructuredOutputs(**given)
    with pytest.raises(errors.InvalidParameterError, match=wanted) as caught:
        await collect(engine, PROMPT, structured_outputs=asked)
    assert caught.value.problems[0].startswith("structured_outputs: ")
    with pytest.raises(errors.InvalidParameterError, match="beam search"):
        SamplingParams(structured_outputs=asked, use_beam_search=True).validate()


async def test_nulls_in_a_schema_are_what_they_were(engine: AsyncEngine) -> None:
    asked = StructuredOutputs(json={"enum": [None], "description": "null"})
    assert await collect(engine, PROMPT, structured_outputs=asked) == (["null"], ["stop"])


def test_ignore_eos_cannot_go_with_it() -> None:
    asked = StructuredOutputs(regex="a", asked_by="guided_regex")
    assert "guided_regex" in params_problems(SamplingParams(structured_outputs=asked, ignore_eos=True))[0]
