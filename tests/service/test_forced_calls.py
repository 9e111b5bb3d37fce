"""Calls that a client forces, or whose arguments it binds, and structured outputs behind reasoning."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from raw_client import RawClient, events
from service_rig import CLIENT, ServiceThread
from tiny_folder import HashOracle, write_folder
from tool_answers import ANSWER, ARGUMENTS, CALLS, MARKED, TAGS, THINKING, TOOLS, answering

from diptych.config import TOOL_CALL_PARSERS

PATH = "/v1/chat/completions"
ASKED: list[Any] = [{"role": "user", "content": "What is the weather in Köln and in Paris?"}]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
STAY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Ōsaka"]}, "nights": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "nights"],
    "additionalProperties": False,
}
# Of these nothing is unbounded, so that a model without any sense comes to an end.
BOUNDED: list[Any] = [
    {"type": "function", "function": {"name": "book", "parameters": STAY}},
    {"type": "function", "function": {"name": "book_again"}},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("models") / "tools", TAGS)


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[ServiceThread]:
    """Thinks, and then calls twice, as far as it is allowed to."""
    with answering(folder, THINKING + "\n".join(CALLS)) as running:
        yield running


@pytest.fixture(scope="module")
def senseless(folder: Path) -> Iterator[ServiceThread]:
    """Each token a hash of those before, or the next one that is allowed. It never thinks: nothing would end that."""
    with ServiceThread(folder, reasoning_parser="none") as running:
        yield running


def ask(service: ServiceThread, **fields: Any) -> dict[str, Any]:
    response = CLIENT.post(service.url + PATH, json={"messages": ASKED, **fields}, timeout=30)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def refused(service: ServiceThread, **fields: Any) -> dict[str, Any]:
    for stream in (True, False):
        response = CLIENT.post(service.url + PATH, json={"messages": ASKED, "stream": stream, **fields}, timeout=30)
        assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


def streamed(service: ServiceThread, **fields: Any) -> list[dict[str, Any]]:
    with RawClient(service.port) as client:
        status, content = client.post(PATH, {"messages": ASKED, "stream": True, **fields}).read_response()
    assert status == 200, content
    return [choice for chunk in events(content)[:-1] for choice in chunk["choices"]]


def calls_of(message: dict[str, Any]) -> list[tuple[str, str]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]


def is_stay(text: str) -> bool:
    value = json.loads(text)
    return value.keys() == {"city", "nights"} and value["city"] in ("Rome", "Ōsaka") and value["nights"] in range(1, 10)


def is_bounded(name: str, arguments: str) -> bool:
    return is_stay(arguments) if name == "book" else name == "book_again" and json.loads(arguments) == {}


def test_required_calls_are_the_answer_behind_the_reasoning(service: ServiceThread) -> None:
    choice = ask(service, tools=TOOLS, tool_choice="required")["choices"][0]
    message = choice["message"]
    assert calls_of(message) == [("get_weather", arguments) for arguments in ARGUMENTS]
    assert message["content"] is None and message["reasoning_content"] == "Two cities: two calls."
    assert choice["finish_reason"] == "tool_calls"


def test_a_named_function_is_called_once_and_ends_as_in_openais_api(service: ServiceThread) -> None:
    for parallel in (None, True, False):
        answer = ask(service, tools=TOOLS, tool_choice=NAMED, parallel_tool_calls=parallel)["choices"][0]
        assert calls_of(answer["message"]) == [("get_weather", ARGUMENTS[0])] and answer["finish_reason"] == "stop"
    other = ask(service, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "add"}}, temperature=0)
    # The model would have called the other one, and with arguments that this one has not.
    ((name, arguments),) = calls_of(other["choices"][0]["message"])
    assert (name, json.loads(arguments)) == ("add", {})


def test_one_call_at_most_where_no_others_may_stand_beside_it(service: ServiceThread) -> None:
    choice = ask(service, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)["choices"][0]
    assert calls_of(choice["message"]) == [("get_weather", ARGUMENTS[0])] and choice["finish_reason"] == "tool_calls"


def test_allowed_tools_are_the_only_ones(service: ServiceThread) -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "add"}}]}
    fields = {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}, "max_tokens": 400}
    ((name, arguments),) = calls_of(ask(service, parallel_tool_calls=False, **fields)["choices"][0]["message"])
    assert (name, json.loads(arguments)) == ("add", {})
    # The others are shown all the same.
    shown = ask(service, tools=TOOLS)["usage"]["prompt_tokens"]
    assert ask(service, **fields)["usage"]["prompt_tokens"] == shown
    allowed["mode"] = "auto"
    message = ask(service, **fields)["choices"][0]["message"]
    assert {name for name, _ in calls_of(message)} == {"add"}


def test_openais_client_gets_forced_calls_whole_and_streamed(service: ServiceThread) -> None:
    tools: Any = TOOLS
    with openai.OpenAI(base_url=service.url + "/v1", api_key="none", max_retries=0) as client:
        for choice, number, reason in (("required", 2, "tool_calls"), (NAMED, 1, "stop")):
            forced: Any = choice
            common: dict[str, Any] = {"model": service.model, "messages": ASKED, "tools": tools, "tool_choice": forced}
            whole = client.chat.completions.create(**common).choices[0]
            with client.chat.completions.stream(**common) as stream:
                kinds = [event.type for event in stream]
                final = stream.get_final_completion().choices[0]
            assert kinds.count("tool_calls.function.arguments.done") == number
            for answer in (whole, final):
                assert answer.finish_reason == reason and answer.message.tool_calls is not None
                functions = [call.function for call in answer.message.tool_calls if call.type == "function"]
                calls = [(function.name, function.arguments) for function in functions]
                assert calls == [("get_weather", arguments) for arguments in ARGUMENTS[:number]]


@pytest.mark.parametrize("parser", [name for name in TOOL_CALL_PARSERS if name not in ("auto", "none")])
def test_a_model_without_any_sense_makes_forced_calls_in_every_format(folder: Path, parser: str) -> None:
    with ServiceThread(folder, reasoning_parser="none", tool_call_parser=parser) as service:
        for fields in ({"n": 4}, {"n": 4, "parallel_tool_calls": False}, {"n": 2, "min_tokens": 60}):
            fields |= {"tools": BOUNDED, "tool_choice": "required", "max_tokens": 700, "seed": 3}
            for choice in ask(service, **fields)["choices"]:
                calls = calls_of(choice["message"])
                if choice["finish_reason"] == "length":
                    # It may go on to call as long as it likes.
                    calls = calls[:-1]
                    assert fields.get("parallel_tool_calls") is None
                else:
                    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
                assert calls and all(is_bounded(*call) for call in calls)
        named = {"type": "function", "function": {"name": "book"}}
        for choice in ask(service, tools=BOUNDED, tool_choice=named, max_tokens=700, n=3)["choices"]:
            assert choice["finish_reason"] == "stop" and choice["message"]["content"] is None
            assert [name for name, _ in calls_of(choice["message"])] == ["book"]
            assert is_stay(calls_of(choice["message"])[0][1])


def test_streams_of_several_choices_add_up_to_forced_calls(senseless: ServiceThread) -> None:
    fields = {"tools": BOUNDED, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 700, "n": 3}
    parts: dict[int, list[tuple[str | None, str]]] = {0: [], 1: [], 2: []}
    reasons = []
    for choice in streamed(senseless, **fields):
        assert not choice["delta"].get("content")
        for call in choice["delta"].get("tool_calls", []):
            assert call["index"] == 0
            parts[choice["index"]].append((call["function"].get("name"), call["function"]["arguments"]))
        reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert reasons == ["tool_calls"] * 3
    for pieces in parts.values():
        (name,) = [name for name, _ in pieces if name]
        assert is_bounded(name, "".join(arguments for _, arguments in pieces))


def test_marks_that_are_special_tokens_are_written_as_such(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "marked", MARKED, special=["[TOOL_CALLS]", "[ARGS]"])
    with ServiceThread(folder) as service:
        fields = {"tools": BOUNDED, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 700}
        for choice in ask(service, n=6, return_token_ids=True, **fields)["choices"]:
            assert all(is_bounded(*call) for call in calls_of(choice["message"])) and choice["message"]["tool_calls"]
            assert choice["token_ids"][0] == HashOracle(folder).tokenizer.token_to_id("[TOOL_CALLS]")


def test_calls_that_are_cut_off_say_why(service: ServiceThread) -> None:
    fields: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required"}
    whole = ask(service, **fields)["usage"]["completion_tokens"]
    cut = ask(service, max_tokens=whole - 12, **fields)["choices"][0]
    assert cut["finish_reason"] == "length" and len(cut["message"]["tool_calls"]) == 2
    for choice in (ask(service, stop="😀", **fields)["choices"][0], streamed(service, stop="😀", **fields)[-1]):
        assert choice["finish_reason"] == "stop" and choice["stop_reason"] == "😀"
    # Behind the first call, and within the second.
    assert ask(service, stop="\n</tool_call>", **fields)["choices"][0]["finish_reason"] == "tool_calls"
    assert ask(service, stop="Paris", **fields)["choices"][0]["finish_reason"] == "stop"


def test_strict_functions_bind_the_calls_of_an_answer_that_is_free(folder: Path) -> None:
    strict: list[Any] = [{"type": "function", "function": {**BOUNDED[0]["function"], "strict": True}}, TOOLS[0]]
    wild = 'Let me see.\n<tool_call>{"name": "book", "arguments": {"where": "Bonn"}}</tool_call>'
    with answering(folder, THINKING + wild) as service:
        free = ask(service, tools=BOUNDED)["choices"][0]["message"]
        assert calls_of(free) == [("book", '{"where": "Bonn"}')]
        response = CLIENT.post(service.url + PATH, json={"messages": ASKED, "tools": strict, "max_tokens": 400})
        message = response.json()["choices"][0]["message"]
        assert message["content"].startswith("Let me see.\n") and "x-diptych-ignored" not in response.headers
        assert message["reasoning_content"] == "Two cities: two calls."
        name, arguments = calls_of(message)[0]
        assert name == "book" and is_stay(arguments)
        # Which is nothing that the model is told.
        assert (
            response.json()["usage"]["prompt_tokens"]
            == ask(service, tools=[BOUNDED[0], TOOLS[0]])["usage"]["prompt_tokens"]
        )
    with answering(folder, ANSWER) as service:
        message = ask(service, tools=strict)["choices"][0]["message"]
        assert message["content"] == "Let me look.\n"
        assert calls_of(message) == [("get_weather", arguments) for arguments in ARGUMENTS]


@pytest.mark.parametrize(
    ("field", "wanted"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "stay", "schema": STAY}}}, "{"),
        ({"response_format": {"type": "json_object"}}, "{"),
        ({"guided_regex": r"\{[^}]+\}"}, "{"),
        ({"guided_choice": ['{"city": "Rome", "nights": 3}', "none"]}, "{"),
        ({"guided_grammar": r'start: "{" /[^}]+/ "}"'}, "{"),
    ],
)
def test_structured_outputs_begin_behind_the_reasoning(folder: Path, field: dict[str, Any], wanted: str) -> None:
    stay = '{"city": "Rome", "nights": 3}'
    with answering(folder, THINKING + stay) as service:
        message = ask(service, **field)["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("Two cities: two calls.", stay)
    with answering(folder, "So it is.\n</think>\n\n" + stay) as service:
        message = ask(service, chat_template_kwargs={"begin_thinking": True}, **field)["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("So it is.", stay)
    with answering(folder, stay) as service:
        message = ask(service, **field)["choices"][0]["message"]
        assert message["content"] == stay and "reasoning_content" not in message
    with answering(folder, THINKING + stay, reasoning_parser="none") as service:
        content = ask(service, max_tokens=300, **field)["choices"][0]["message"]["content"]
        assert content.startswith(wanted) or content == "none"


def test_what_cannot_be_called_is_a_400_that_names_it(service: ServiceThread) -> None:
    def function(name: str, **rest: Any) -> dict[str, Any]:
        return {"type": "function", "function": {"name": name, **rest}}

    bad = [TOOLS[0], function("bad", parameters={"type": "object", "properties": {"a": {"type": "objekt"}}})]
    error = refused(service, tools=bad, tool_choice="required")
    assert error["param"] == "tools[1].function.parameters" and "objekt" in error["message"]
    assert error["code"] == "invalid_grammar"
    bad[1]["function"]["strict"] = True
    assert refused(service, tools=bad)["param"] == "tools[1].function.parameters"
    text = [function("text", parameters={"type": "string"})]
    assert refused(service, tools=text, tool_choice="required")["param"] == "tools[0].function.parameters"
    # Nobody compiles the others.
    assert ask(service, tools=bad, tool_choice=NAMED)["choices"][0]["message"]["tool_calls"]
    for choice in (
        {"type": "function", "function": {"name": "nosuch"}},
        {"type": "function"},
        {"type": "custom"},
        3,
        "",
    ):
        assert refused(service, tools=TOOLS, tool_choice=choice)["param"] == "tool_choice"
    for allowed in (
        {},
        {"mode": "none", "tools": [NAMED]},
        {"mode": "auto", "tools": []},
        {"mode": "auto", "tools": [1]},
    ):
        choice = {"type": "allowed_tools", "allowed_tools": allowed}
        assert refused(service, tools=TOOLS, tool_choice=choice)["param"] == "tool_choice"
    for choice in ("required", NAMED):
        for tools in (None, []):
            error = refused(service, tools=tools, tool_choice=choice)
            assert error["param"] == "tool_choice" and "no tools" in error["message"]
        error = refused(service, tools=TOOLS, tool_choice=choice, response_format={"type": "json_object"})
        assert error["param"] == "tool_choice" and "response_format" in error["message"]
        assert refused(service, tools=TOOLS, tool_choice=choice, ignore_eos=True)["param"] == "ignore_eos"
        beams = refused(service, tools=TOOLS, tool_choice=choice, use_beam_search=True, n=2, temperature=0)
        assert beams["param"] == "use_beam_search"
    service.wait_idle()


def test_a_model_whose_calls_cannot_be_read_cannot_be_forced_to_call(folder: Path) -> None:
    with answering(folder, ANSWER, tool_call_parser="none") as service:
        error = refused(service, tools=TOOLS, tool_choice="required")
        assert error["param"] == "tools" and "tool_call_parser" in error["message"]
