"""Tool calls and reasoning, as the official client sees them, with answers that the scripted worker was given."""

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

from diptych_service.messages import template_messages

PATH = "/v1/chat/completions"
ASKED: list[Any] = [{"role": "user", "content": "What is the weather in Köln and in Paris?"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("models") / "tools", TAGS)


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[ServiceThread]:
    with answering(folder, ANSWER) as running:
        yield running


@pytest.fixture(scope="module")
def slow_answer(folder: Path) -> Iterator[ServiceThread]:
    """A token every few milliseconds, so that each is a frame of its own."""
    with answering(folder, ANSWER, script_step_ms=4.0) as running:
        yield running


def ask(service: ServiceThread, **fields: Any) -> dict[str, Any]:
    response = CLIENT.post(service.url + PATH, json={"messages": ASKED, **fields}, timeout=20)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def refused(service: ServiceThread, **fields: Any) -> dict[str, Any]:
    response = CLIENT.post(service.url + PATH, json={"messages": ASKED, **fields}, timeout=20)
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


def prompt_of(service: ServiceThread, folder: Path, **fields: Any) -> str:
    answer = ask(service, return_token_ids=True, max_tokens=1, **fields)
    return str(HashOracle(folder).tokenizer.decode(answer["prompt_token_ids"], skip_special_tokens=False))


def deltas(service: ServiceThread, **fields: Any) -> list[dict[str, Any]]:
    with RawClient(service.port) as client:
        status, content = client.post(PATH, {"messages": ASKED, "stream": True, **fields}).read_response()
    assert status == 200, content
    chunks = events(content)
    assert chunks[-1] == "[DONE]"
    return [choice["delta"] for chunk in chunks[:-1] for choice in chunk["choices"]]


def test_the_client_gets_whole_calls(service: ServiceThread) -> None:
    with openai.OpenAI(base_url=service.url + "/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(model=service.model, messages=ASKED, tools=TOOLS)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Let me look.\n"
    assert choice.message.tool_calls is not None and len(choice.message.tool_calls) == len(ARGUMENTS)
    functions = [call.function for call in choice.message.tool_calls if call.type == "function"]
    calls = [(function.name, function.arguments) for function in functions]
    assert calls == [("get_weather", arguments) for arguments in ARGUMENTS]
    ids = {call.id for call in choice.message.tool_calls}
    assert len(ids) == 2 and all(len(id) == 9 and id.isascii() and id.isalnum() for id in ids)
    # Not a field of OpenAI's own.
    assert choice.message.model_extra == {"reasoning_content": "Two cities: two calls."}
    assert answer.usage is not None and answer.usage.completion_tokens_details is not None
    reasoning_tokens = answer.usage.completion_tokens_details.reasoning_tokens
    assert reasoning_tokens is not None and 5 < reasoning_tokens < answer.usage.completion_tokens


def test_the_stream_helper_adds_up_the_same_calls(slow_answer: ServiceThread) -> None:
    service = slow_answer
    with (
        openai.OpenAI(base_url=service.url + "/v1", api_key="none", max_retries=0) as client,
        client.chat.completions.stream(model=service.model, messages=ASKED, tools=TOOLS) as stream,
    ):
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert kinds.count("tool_calls.function.arguments.done") == 2
    assert kinds.count("tool_calls.function.arguments.delta") > 10, "arguments come as the model writes them"
    choice = final.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Let me look.\n"
    assert choice.message.role == "assistant" and choice.message.tool_calls is not None
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls]
    assert calls == [("get_weather", arguments) for arguments in ARGUMENTS]
    assert all(json.loads(arguments) for _, arguments in calls)


async def test_the_asynchronous_client_gets_names_and_ids_once(slow_answer: ServiceThread) -> None:
    service = slow_answer
    seen: dict[int, list[Any]] = {}
    async with openai.AsyncOpenAI(base_url=service.url + "/v1", api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(model=service.model, messages=ASKED, tools=TOOLS, stream=True)
        reasons = []
        async for chunk in stream:
            reasons.append(chunk.choices[0].finish_reason)
            for call in chunk.choices[0].delta.tool_calls or []:
                seen.setdefault(call.index, []).append(call)
    assert sorted(seen) == [0, 1] and [reason for reason in reasons if reason] == ["tool_calls"]
    for index, calls in seen.items():
        assert calls[0].id and calls[0].type == "function" and calls[0].function.name == "get_weather"
        assert all(call.id is None and call.function.name is None for call in calls[1:])
        assert "".join(call.function.arguments for call in calls) == ARGUMENTS[index]


def test_line_ends_in_arguments_split_no_event(service: ServiceThread) -> None:
    body = {"messages": ASKED, "tools": TOOLS, "stream": True}
    raw = CLIENT.post(service.url + PATH, json=body, timeout=20).content
    assert "\u2028".encode() not in raw and b"\\u2028" in raw


def test_token_ids_and_usage_count_every_token_of_calls_and_reasoning(service: ServiceThread, folder: Path) -> None:
    ids = HashOracle(folder).encode(ANSWER)
    answer = ask(service, tools=TOOLS, return_token_ids=True)
    assert answer["choices"][0]["token_ids"][: len(ids)] == ids
    with RawClient(service.port) as client:
        body = {"messages": ASKED, "tools": TOOLS, "stream": True, "return_token_ids": True}
        _, content = client.post(PATH, body).read_response()
    choices = [choice for chunk in events(content)[:-1] for choice in chunk["choices"]]
    assert [i for choice in choices for i in choice.get("token_ids", [])] == answer["choices"][0]["token_ids"]


def test_without_tools_what_looks_like_a_call_is_text(service: ServiceThread) -> None:
    for fields in ({}, {"tools": []}, {"tools": TOOLS, "tool_choice": "none"}):
        choice = ask(service, **fields)["choices"][0]
        assert choice["message"]["content"] == ANSWER.removeprefix(THINKING)
        assert choice["finish_reason"] == "stop" and "tool_calls" not in choice["message"]


def test_tools_are_shown_unless_none_may_be_called(service: ServiceThread, folder: Path) -> None:
    shown = prompt_of(service, folder, tools=TOOLS)
    assert '{"type": "function", "function": {"name": "get_weather", "description": "The weather in a city"' in shown
    assert shown == prompt_of(service, folder, tools=TOOLS, tool_choice="auto", parallel_tool_calls=True)
    hidden = prompt_of(service, folder, tools=TOOLS, tool_choice="none")
    assert hidden == prompt_of(service, folder) and "get_weather" not in hidden


def test_without_parallel_calls_the_answer_ends_with_the_first(service: ServiceThread, folder: Path) -> None:
    answer = ask(service, tools=TOOLS, parallel_tool_calls=False)
    choice = answer["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["arguments"] == ARGUMENTS[0] and choice["finish_reason"] == "tool_calls"
    generated = HashOracle(folder).encode(ANSWER[: ANSWER.index("</tool_call>")])
    assert answer["usage"]["completion_tokens"] <= len(generated)
    streamed = deltas(service, tools=TOOLS, parallel_tool_calls=False)
    calls = [call for delta in streamed for call in delta.get("tool_calls", [])]
    assert {call["index"] for call in calls} == {0}
    assert "".join(call["function"]["arguments"] for call in calls) == ARGUMENTS[0]
    service.wait_idle()


def test_a_call_that_is_cut_off_says_so(service: ServiceThread, folder: Path) -> None:
    oracle = HashOracle(folder)
    cut = len(oracle.encode(ANSWER[: ANSWER.index("days")]))
    choice = ask(service, tools=TOOLS, max_tokens=cut)["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "length" and ARGUMENTS[0].startswith(call["function"]["arguments"])
    assert call["function"]["arguments"]


def test_a_stop_string_ends_a_call(service: ServiceThread) -> None:
    choice = ask(service, tools=TOOLS, stop='", "days')["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["arguments"] == ARGUMENTS[0][: ARGUMENTS[0].index('", "days')]
    assert choice["stop_reason"] == '", "days' and choice["finish_reason"] == "stop"
    # Nobody should make such a call, whatever came before; one that is whole may be made.
    second = ask(service, tools=TOOLS, stop="Paris")["choices"][0]
    assert len(second["message"]["tool_calls"]) == 2 and second["finish_reason"] == "stop"
    behind = ask(service, tools=TOOLS, stop="\n</tool_call>")["choices"][0]
    assert len(behind["message"]["tool_calls"]) == 1 and behind["finish_reason"] == "tool_calls"
    for stop, reason in (('", "days', "stop"), ("\n</tool_call>", "tool_calls")):
        with RawClient(service.port) as client:
            body = {"messages": ASKED, "tools": TOOLS, "stop": stop, "stream": True}
            _, content = client.post(PATH, body).read_response()
        assert events(content)[-2]["choices"][0]["finish_reason"] == reason


def test_reasoning_streams_beside_the_text(slow_answer: ServiceThread) -> None:
    streamed = deltas(slow_answer)
    reasoning = [delta["reasoning_content"] for delta in streamed if "reasoning_content" in delta]
    assert len(reasoning) > 3 and "".join(reasoning) == "Two cities: two calls."
    assert all(len(delta) <= 1 or "role" in delta for delta in streamed)
    text = "".join(delta.get("content", "") for delta in streamed)
    assert text == ANSWER.removeprefix(THINKING)


def test_reasoning_can_be_left_out(service: ServiceThread) -> None:
    answer = ask(service, include_reasoning=False)
    assert "reasoning_content" not in answer["choices"][0]["message"]
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    assert all("reasoning_content" not in delta for delta in deltas(service, include_reasoning=False))


def test_reasoning_that_the_prompt_begins_is_reasoning(folder: Path) -> None:
    with answering(folder, "So it is.\n</think>\n\nYes.") as service:
        message = ask(service, chat_template_kwargs={"begin_thinking": True})["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("So it is.", "Yes.")
        message = ask(service)["choices"][0]["message"]
        assert "reasoning_content" not in message and message["content"] == "So it is.\n</think>\n\nYes."


def test_calls_without_text_have_no_content(folder: Path) -> None:
    with answering(folder, CALLS[0]) as service:
        message = ask(service, tools=TOOLS)["choices"][0]["message"]
        assert message["content"] is None and len(message["tool_calls"]) == 1
    with answering(folder, "") as service:
        assert ask(service, tools=TOOLS)["choices"][0]["message"]["content"] == ""


def test_earlier_calls_reach_the_template_as_objects(service: ServiceThread, folder: Path) -> None:
    def history(arguments: str) -> str:
        call = {"id": "abcdefghi", "type": "function", "function": {"name": "add", "arguments": arguments}}
        messages = [
            *ASKED,
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "Hm"},
            {"role": "tool", "tool_call_id": "abcdefghi", "content": "3"},
        ]
        return prompt_of(service, folder, messages=messages, tools=TOOLS)

    assert '<think>\nHm\n</think>\n<tool_call>add {"a": 1, "b": [2]}</tool_call>' in history('{"a":1,"b":[2]}')
    assert "<|im_start|>tool\n3<|im_end|>" in history("")
    assert "<tool_call>add {}</tool_call>" in history("")
    assert '<tool_call>add "{broken"</tool_call>' in history("{broken")
    for number in (2**64, -(2**63) - 1, 10**40, 0.1 + 0.2, 5e-324, 123456.7890123456789):
        assert f'<tool_call>add {{"a": [{number!r}]}}</tool_call>' in history(f'{{"a":[{number!r}]}}')


def test_wrong_tools_and_calls_are_refused_by_place(service: ServiceThread) -> None:
    for tools, place in (
        ([{"type": "custom", "custom": {"name": "x"}}], "tools[0].type"),
        ([{"type": "function"}], "tools[0].function"),
        ([TOOLS[0], {"type": "function", "function": {"name": ""}}], "tools[1].function.name"),
        ([*TOOLS, TOOLS[0]], f"tools[{len(TOOLS)}].function.name"),
        ([{"type": "function", "function": {"name": "x", "parameters": []}}], "tools[0].function.parameters"),
        ({"type": "function"}, "tools"),
        (["x"], "tools[0]"),
    ):
        assert refused(service, tools=tools)["param"] == place
    for call in ("x", {"function": "x"}, {"function": {"arguments": "{}"}}):
        messages = [*ASKED, {"role": "assistant", "tool_calls": [call]}]
        assert refused(service, messages=messages)["param"] == "messages[1].tool_calls[0]"
    raw = (
        b'{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"a","name":"b"}}]}'
    )
    assert CLIENT.post(service.url + PATH, content=raw).status_code == 400


def test_documents_reach_the_template(service: ServiceThread, folder: Path) -> None:
    documents = [{"title": "Köln", "text": "rainy"}, {"title": "Paris", "text": "dry"}]
    prompt = prompt_of(service, folder, documents=documents)
    assert prompt.startswith("<doc>Köln: rainy</doc>\n<doc>Paris: dry</doc>\n<|im_start|>user")
    assert prompt_of(service, folder, documents=[]) == prompt_of(service, folder)


def test_what_has_a_field_of_its_own_is_no_variable_of_the_template(service: ServiceThread) -> None:
    for name in ("messages", "tools", "documents", "add_generation_prompt", "chat_template"):
        error = refused(service, chat_template_kwargs={"enable_thinking": True, name: []})
        assert error["param"] == "chat_template_kwargs" and f"`{name}`" in error["message"]


def test_a_model_that_would_not_see_tools_or_documents_takes_none(model_folder: Path) -> None:
    with ServiceThread(model_folder) as service:
        for name, value in (("tools", TOOLS), ("documents", [{"text": "x"}])):
            error = refused(service, **{name: value})
            assert error["param"] == name and "chat template does not show" in error["message"]


def test_a_model_whose_calls_cannot_be_read_takes_no_tools(folder: Path) -> None:
    with answering(folder, ANSWER, tool_call_parser="none", reasoning_parser="none") as service:
        error = refused(service, tools=TOOLS)
        assert error["param"] == "tools" and "tool_call_parser" in error["message"]
        assert ask(service)["choices"][0]["message"]["content"] == ANSWER


def test_marks_that_are_special_tokens_are_seen(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "marked", MARKED, special=["[TOOL_CALLS]", "[ARGS]"])
    oracle = HashOracle(folder)
    answer = "Well.[TOOL_CALLS]get_weather[ARGS]" + ARGUMENTS[0] + "[TOOL_CALLS]add[ARGS]{}"
    assert oracle.tokenizer.token_to_id("[ARGS]") in oracle.encode(answer)
    with answering(folder, answer) as service:
        message = ask(service, tools=TOOLS)["choices"][0]["message"]
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
        assert calls == [("get_weather", ARGUMENTS[0]), ("add", "{}")] and message["content"] == "Well."
        plain = ask(service)["choices"][0]["message"]["content"]
        assert plain == oracle.tokenizer.decode(oracle.encode(answer), skip_special_tokens=True)


@pytest.mark.parametrize(
    ("parser", "answer"),
    [
        ("llama3_json", '{"name": "add", "parameters": {"a": 1}}; {"name": "get_weather", "parameters": {}}'),
        ("json", '[{"name": "add", "arguments": {"a": 1}}, {"name": "get_weather", "arguments": {}}]'),
        ("mistral", '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}, {"name": "get_weather", "arguments": {}}]'),
    ],
)
def test_the_format_can_be_named(folder: Path, parser: str, answer: str) -> None:
    with answering(folder, answer, tool_call_parser=parser) as service:
        message = ask(service, tools=TOOLS)["choices"][0]["message"]
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
        assert calls == [("add", '{"a": 1}'), ("get_weather", "{}")]


def test_more_tools_than_a_prompt_should_show_are_refused(service: ServiceThread) -> None:
    error = refused(service, tools=TOOLS * 513)
    assert error["param"] == "tools" and "1026" in error["message"]


def test_beams_cannot_end_with_their_first_call(service: ServiceThread) -> None:
    error = refused(service, tools=TOOLS, parallel_tool_calls=False, use_beam_search=True, n=2)
    assert error["param"] == "use_beam_search" and "parallel_tool_calls" in error["message"]


@pytest.mark.parametrize("depth", [1, 120, 121, 150])
def test_a_conversation_goes_on_after_a_call_with_runaway_arguments(
    service: ServiceThread, folder: Path, depth: int
) -> None:
    arguments = '{"a":' * depth + "1" + "}" * depth
    call = {"type": "function", "function": {"name": "add", "arguments": arguments}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "too deep"}]
    assert ("add {" in prompt_of(service, folder, messages=messages)) == (depth <= 120)


@pytest.mark.parametrize("depth", [500, 100_000])
def test_arguments_that_no_parser_reads_are_text(depth: int) -> None:
    arguments = '{"a":[' * depth + "]}" * depth
    call = {"type": "function", "function": {"name": "add", "arguments": arguments[:140_000]}}
    (message,), _ = template_messages([{"role": "assistant", "tool_calls": [call]}])
    assert message["tool_calls"][0]["function"]["arguments"] == arguments[:140_000]
