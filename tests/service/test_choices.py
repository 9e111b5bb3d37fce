"""`n` over HTTP: whole answers, interleaved streams, usage, refusals."""

from typing import Any

import pytest
from raw_client import RawClient, events
from service_rig import CLIENT, ServiceThread
from tiny_folder import HashOracle

PATHS = ["/v1/completions", "/v1/chat/completions"]
TEXT = "The quick brown fox"


def body_for(path: str, **fields: Any) -> dict[str, Any]:
    asked = {"messages": [{"role": "user", "content": TEXT}]} if "chat" in path else {"prompt": TEXT}
    return {**asked, "max_tokens": 8, "return_token_ids": True, **fields}


def whole(service: ServiceThread, path: str, **fields: Any) -> dict[str, Any]:
    response = CLIENT.post(service.url + path, json=body_for(path, **fields))
    assert response.status_code == 200, response.text
    result: dict[str, Any] = response.json()
    return result


@pytest.mark.parametrize("path", PATHS)
def test_a_whole_answer_has_all_choices(service: ServiceThread, oracle: HashOracle, path: str) -> None:
    alone = whole(service, path)
    answer = whole(service, path, n=3)
    prompt = alone.get("prompt_token_ids") or alone["choices"][0]["prompt_token_ids"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    for index, choice in enumerate(answer["choices"]):
        assert choice["token_ids"] == oracle.continuation(prompt, 8, index)
        assert choice["finish_reason"] == "length"
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(prompt), 24)
    assert usage["total_tokens"] == len(prompt) + 24
    assert usage["prompt_tokens_details"]["cached_tokens"] <= len(prompt)


def test_several_prompts_with_several_choices_are_numbered_through(service: ServiceThread, oracle: HashOracle) -> None:
    prompts = [[5, 6, 7], [8, 9, 10, 11]]
    answer = whole(service, PATHS[0], prompt=prompts, n=2)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    for index, choice in enumerate(answer["choices"]):
        assert choice["token_ids"] == oracle.continuation(prompts[index // 2], 8, index % 2)
        assert choice["prompt_token_ids"] == prompts[index // 2]
    assert answer["usage"]["prompt_tokens"] == 7 and answer["usage"]["completion_tokens"] == 32


@pytest.mark.parametrize("path", PATHS)
def test_streams_of_choices_are_interleaved_and_each_is_whole(service: ServiceThread, path: str) -> None:
    expected = whole(service, path, n=3)
    fields = {"n": 3, "stream": True, "stream_options": {"include_usage": True}}
    with RawClient(service.port) as client:
        status, content = client.post(path, body_for(path, **fields)).read_response()
    chunks = events(content)
    assert status == 200 and chunks[-1] == "[DONE]"
    for index, choice in enumerate(expected["choices"]):
        mine = [part for chunk in chunks[:-1] for part in chunk["choices"] if part["index"] == index]
        assert [part["finish_reason"] for part in mine] == [None] * (len(mine) - 1) + ["length"]
        text = "".join(part.get("text", part.get("delta", {}).get("content", "")) for part in mine)
        assert text == choice.get("text", choice.get("message", {}).get("content"))
        ids = [token for part in mine for token in part.get("token_ids", [])]
        assert ids == choice["token_ids"]
        if "chat" in path:
            assert mine[0]["delta"] == {"role": "assistant", "content": ""}
            assert all("role" not in part["delta"] for part in mine[1:])
    assert chunks[-2]["usage"]["completion_tokens"] == 24
    assert chunks[-2]["usage"]["prompt_tokens"] == expected["usage"]["prompt_tokens"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("wrong", [2**70, 0, -3, 129, "two", 1.5, [2]])
def test_numbers_of_choices_that_are_none_are_refused(service: ServiceThread, path: str, wrong: Any) -> None:
    for stream in (False, True):
        response = CLIENT.post(service.url + path, json=body_for(path, n=wrong, stream=stream))
        assert response.status_code == 400, response.text
        assert "n" in response.json()["error"]["message"]


def test_more_choices_than_the_service_runs_are_refused(service: ServiceThread) -> None:
    for fields in ({"n": 100}, {"best_of": 65}, {"n": 65, "use_beam_search": True}):
        response = CLIENT.post(service.url + PATHS[0], json=body_for(PATHS[0], **fields))
        error = response.json()["error"]
        assert response.status_code == 400 and "max_running = 64" in error["message"]
        assert error["param"] == next(iter(fields))


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_with_more_outputs_than_could_ever_wait_are_refused(service: ServiceThread, stream: bool) -> None:
    fields = {"prompt": ["a"] * 1000, "n": 64, "stream": stream}
    response = CLIENT.post(service.url + PATHS[0], json=body_for(PATHS[0], **fields))
    error = response.json()["error"]
    assert response.status_code == 400 and error["param"] == "n" and "64000 outputs" in error["message"]
    assert whole(service, PATHS[0], prompt=["a"] * 17, n=64, max_tokens=1)["usage"]["completion_tokens"] == 17 * 64


@pytest.mark.parametrize("max_tokens", [None, 2048])
def test_tokens_at_least_must_fit_the_context(service: ServiceThread, max_tokens: int | None) -> None:
    fields = body_for(PATHS[1], min_tokens=2047) | {"max_tokens": max_tokens}
    response = CLIENT.post(service.url + PATHS[1], json=fields)
    error = response.json()["error"]
    assert response.status_code == 400, response.text
    assert error["param"] == ("min_tokens" if max_tokens is None else "messages")


@pytest.mark.parametrize("path", PATHS)
def test_best_of_is_counted_whole_and_refused_where_it_contradicts(service: ServiceThread, path: str) -> None:
    answer = whole(service, path, n=2, best_of=4)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["usage"]["completion_tokens"] == 32
    for fields in ({"n": 3, "best_of": 2}, {"best_of": 129}, {"best_of": 3, "stream": True}):
        response = CLIENT.post(service.url + path, json=body_for(path, **fields))
        assert response.status_code == 400 and "best_of" in response.json()["error"]["message"]
    assert whole(service, path, n=2, best_of=2)["usage"]["completion_tokens"] == 16
