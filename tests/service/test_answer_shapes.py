"""What clients see: every chunk and every whole answer of both endpoints."""

import json
from typing import Any

import pytest
import requests
from raw_client import RawClient, events
from service_rig import CLIENT, ServiceThread
from tiny_folder import HashOracle

PATHS = ["/v1/completions", "/v1/chat/completions"]
TEXT = "The quick brown fox"


def body_for(path: str, **fields: Any) -> dict[str, Any]:
    asked = {"messages": [{"role": "user", "content": TEXT}]} if "chat" in path else {"prompt": TEXT}
    return {**asked, "max_tokens": 8, **fields}


def stream(service: ServiceThread, path: str, **fields: Any) -> list[Any]:
    with RawClient(service.port) as client:
        status, content = client.post(path, body_for(path, stream=True, **fields)).read_response()
    assert status == 200, content
    return events(content)


def whole(service: ServiceThread, path: str, **fields: Any) -> dict[str, Any]:
    response = CLIENT.post(service.url + path, json=body_for(path, **fields), timeout=20)
    assert response.status_code == 200, response.text
    result: dict[str, Any] = response.json()
    return result


def text_of(choice: dict[str, Any]) -> str:
    text = choice.get("text", choice.get("delta", choice.get("message", {})).get("content", ""))
    assert isinstance(text, str)
    return text


def joined(chunks: list[Any], index: int = 0) -> str:
    choices = [choice for chunk in chunks[:-1] for choice in chunk["choices"] if choice["index"] == index]
    return "".join(text_of(choice) for choice in choices)


def check_chunks(path: str, chunks: list[Any]) -> None:
    """Rules that hold for every stream with one choice."""
    assert chunks[-1] == "[DONE]" and chunks.count("[DONE]") == 1
    bodies = chunks[:-1]
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in bodies}) == 1
    choices = [choice for chunk in bodies for choice in chunk["choices"]]
    assert all({"index", "logprobs", "finish_reason"} <= choice.keys() for choice in choices)
    assert [choice["finish_reason"] is None for choice in choices] == [True] * (len(choices) - 1) + [False]
    if "chat" in path:
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert choices[-1]["delta"] == {}
        assert all(choice["delta"]["content"] and choice["delta"].keys() == {"content"} for choice in choices[1:-1])
    else:
        assert all(choice["text"] for choice in choices[:-1])


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_has_the_shape_that_clients_check(service: ServiceThread, path: str) -> None:
    chunks = stream(service, path)
    check_chunks(path, chunks)
    assert all("usage" not in chunk for chunk in chunks[:-1])
    expected = {
        "/v1/completions": ("cmpl-", "text_completion"),
        "/v1/chat/completions": ("chatcmpl-", "chat.completion.chunk"),
    }
    assert chunks[0]["id"].startswith(expected[path][0]) and chunks[0]["object"] == expected[path][1]


@pytest.mark.parametrize("path", PATHS)
def test_include_usage_adds_one_last_chunk_without_choices(service: ServiceThread, path: str) -> None:
    chunks = stream(service, path, stream_options={"include_usage": True})
    check_chunks(path, chunks)
    assert chunks[-2]["choices"] == []
    usage = chunks[-2]["usage"]
    assert usage["completion_tokens"] == 8 and usage["total_tokens"] == usage["prompt_tokens"] + 8
    assert usage["prompt_tokens_details"].keys() == {"cached_tokens"}
    assert all(chunk["usage"] is None for chunk in chunks[:-2])
    assert all("usage" not in chunk for chunk in stream(service, path, stream_options={"include_usage": False})[:-1])


@pytest.mark.parametrize("path", PATHS)
def test_continuous_usage_is_on_every_chunk(service: ServiceThread, path: str) -> None:
    chunks = stream(service, path, stream_options={"include_usage": True, "continuous_usage_stats": True})
    check_chunks(path, chunks)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks[:-1]]
    assert counts == sorted(counts) and counts[-1] == 8
    assert counts[0] == 0 or path == PATHS[0], "the role chunk comes before any token"
    assert len({chunk["usage"]["prompt_tokens"] for chunk in chunks[:-1]}) == 1


@pytest.mark.parametrize("path", PATHS)
def test_stream_and_whole_answer_are_equal(service: ServiceThread, path: str) -> None:
    """Reports A24: the last token's text comes, also where it is the only one."""
    for length in (1, 2, 3, 50):
        chunks = stream(service, path, max_tokens=length, return_token_ids=True)
        check_chunks(path, chunks)
        answer = whole(service, path, max_tokens=length, return_token_ids=True)
        choice = answer["choices"][0]
        assert joined(chunks) == text_of(choice) != ""
        streamed = [i for chunk in chunks[:-1] for choice in chunk["choices"] for i in choice.get("token_ids", [])]
        assert streamed == choice["token_ids"] and len(streamed) == length == answer["usage"]["completion_tokens"]
        assert chunks[-2]["choices"][0]["finish_reason"] == choice["finish_reason"] == "length"


def test_prompt_token_ids_come_once(service: ServiceThread, oracle: HashOracle) -> None:
    ids = oracle.encode(TEXT)
    completion = stream(service, PATHS[0], return_token_ids=True)
    given = [
        choice["prompt_token_ids"]
        for chunk in completion[:-1]
        for choice in chunk["choices"]
        if "prompt_token_ids" in choice
    ]
    assert given == [ids]
    chat = stream(service, PATHS[1], return_token_ids=True)
    (prompt_ids,) = [chunk["prompt_token_ids"] for chunk in chat[:-1] if "prompt_token_ids" in chunk]
    assert oracle.tokenizer.decode(prompt_ids, skip_special_tokens=False).endswith("<|im_start|>assistant\n")
    assert whole(service, PATHS[0], return_token_ids=True)["choices"][0]["prompt_token_ids"] == ids
    assert whole(service, PATHS[1], return_token_ids=True)["prompt_token_ids"] == prompt_ids


def test_ids_are_those_of_the_oracle(service: ServiceThread, oracle: HashOracle) -> None:
    ids = oracle.encode(TEXT)
    for prompt in (TEXT, ids, [ids], [TEXT]):
        choice = service.complete(prompt, 20)["choices"][0]
        assert choice["token_ids"] == oracle.continuation(ids, 20)
        assert choice["text"] == oracle.tokenizer.decode(choice["token_ids"])


def test_whole_answers_have_the_shape_that_clients_check(service: ServiceThread) -> None:
    completion = whole(service, PATHS[0])
    assert completion["object"] == "text_completion" and completion["id"].startswith("cmpl-")
    choice = completion["choices"][0]
    assert choice.keys() == {"index", "text", "logprobs", "finish_reason", "stop_reason"}
    chat = whole(service, PATHS[1])
    assert chat["object"] == "chat.completion" and chat["id"].startswith("chatcmpl-")
    message = chat["choices"][0]["message"]
    assert message["role"] == "assistant" and message["content"] and message["refusal"] is None
    assert chat["usage"]["prompt_tokens_details"]["cached_tokens"] >= 0
    assert chat["model"] == service.model


def test_lists_of_prompts_give_a_choice_each(service: ServiceThread, oracle: HashOracle) -> None:
    prompts = ["one", "two words", "three more words", "and a fourth"]
    answer = service.complete(prompts, 12)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    for prompt, choice in zip(prompts, answer["choices"], strict=True):
        assert choice["token_ids"] == oracle.continuation(oracle.encode(prompt), 12)
    assert answer["usage"]["completion_tokens"] == 48
    assert answer["usage"]["prompt_tokens"] == sum(len(oracle.encode(prompt)) for prompt in prompts)
    with RawClient(service.port) as client:
        body = {"prompt": prompts, "max_tokens": 12, "stream": True, "stream_options": {"include_usage": True}}
        _, content = client.post(PATHS[0], body).read_response()
    chunks = events(content)
    for index, choice in enumerate(answer["choices"]):
        assert joined(chunks, index) == choice["text"]
        finishes = [c["finish_reason"] for chunk in chunks[:-1] for c in chunk["choices"] if c["index"] == index]
        assert [reason for reason in finishes if reason] == ["length"]
    assert chunks[-2]["usage"]["completion_tokens"] == 48 and chunks[-1] == "[DONE]"


def test_as_many_prompts_as_are_allowed_are_answered_together(service: ServiceThread) -> None:
    answer = service.complete([[7 + i % 200, i % 250] for i in range(1024)], 2)
    assert len(answer["choices"]) == 1024 and answer["usage"]["completion_tokens"] == 2048


def test_a_stop_string_ends_the_text_before_it(service: ServiceThread) -> None:
    for path in PATHS:
        text = text_of(whole(service, path, max_tokens=30)["choices"][0])
        stop = text[5:8]
        answer = whole(service, path, max_tokens=30, stop=stop)
        choice = answer["choices"][0]
        assert text_of(choice) == text[: text.find(stop)]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
        chunks = stream(service, path, max_tokens=30, stop=[stop])
        assert joined(chunks) == text_of(choice)
        last = chunks[-2]["choices"][0]
        assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)
        kept = whole(service, path, max_tokens=30, stop=stop, include_stop_str_in_output=True)["choices"][0]
        assert text_of(kept) == text[: text.find(stop)] + stop


def test_continuing_the_last_message_renders_no_new_turn(service: ServiceThread, oracle: HashOracle) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well"}]
    body = {"messages": messages, "continue_final_message": True, "return_token_ids": True, "max_tokens": 1}
    answer = CLIENT.post(service.url + PATHS[1], json=body).json()
    rendered = oracle.tokenizer.decode(answer["prompt_token_ids"], skip_special_tokens=False)
    assert rendered.endswith("<|im_start|>assistant\nWell")
    refused = CLIENT.post(service.url + PATHS[1], json={**body, "add_generation_prompt": True})
    assert refused.status_code == 400


def test_headers_of_a_stream(service: ServiceThread) -> None:
    with CLIENT.stream(
        "POST",
        service.url + PATHS[1],
        json=body_for(PATHS[1], stream=True, user="me"),
        headers={"X-Request-Id": "my-1"},
    ) as response:
        headers = response.headers
        response.read()
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache" and headers["x-accel-buffering"] == "no"
    assert headers["x-diptych-ignored"] == "user" and headers["x-request-id"] == "my-1"


def test_line_ends_in_text_split_no_event(model_folder: Any, oracle: HashOracle) -> None:
    text = "a\u2028b\u2029c\u0085d\r\ne\x00f\u200d\U0001f468\u200d\U0001f469 \ufe0f."
    ids = oracle.encode(text)
    with ServiceThread(model_folder, script=[ids]) as service:
        body = body_for(PATHS[1], stream=True, max_tokens=200)
        with CLIENT.stream("POST", service.url + PATHS[1], json=body) as response:
            by_httpx = [line for line in response.iter_lines() if line]
        by_requests = [
            line.decode("utf-8")
            for line in requests.post(service.url + PATHS[1], json=body, stream=True, timeout=20).iter_lines()
            if line
        ]
        for lines in (by_httpx, by_requests):
            chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
            assert "".join(text_of(choice) for chunk in chunks for choice in chunk["choices"]) == text
        chunks = stream(service, PATHS[1], max_tokens=200)
        assert joined(chunks) == text and chunks[-2]["choices"][0]["finish_reason"] == "stop"
