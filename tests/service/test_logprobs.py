"""Log probabilities over HTTP: the shapes of both endpoints, streamed and whole."""

from typing import Any

import pytest
from raw_client import RawClient, events
from service_rig import CLIENT, ServiceThread
from tiny_folder import HashOracle

PATHS = ["/v1/completions", "/v1/chat/completions"]
TEXT = "The quick brown fox"


def body_for(path: str, most: int, **fields: Any) -> dict[str, Any]:
    if "chat" in path:
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": TEXT}]}
        asked |= {"logprobs": True, "top_logprobs": most}
    else:
        asked = {"prompt": TEXT, "logprobs": most}
    return {**asked, "max_tokens": 20, "return_token_ids": True, **fields}


def whole(service: ServiceThread, path: str, most: int, **fields: Any) -> list[dict[str, Any]]:
    response = CLIENT.post(service.url + path, json=body_for(path, most, **fields), timeout=20)
    assert response.status_code == 200, response.text
    choices: list[dict[str, Any]] = response.json()["choices"]
    return choices


def streamed(service: ServiceThread, path: str, most: int, **fields: Any) -> list[dict[str, Any]]:
    with RawClient(service.port) as client:
        status, content = client.post(path, body_for(path, most, stream=True, **fields)).read_response()
    assert status == 200, content
    return [choice for chunk in events(content)[:-1] for choice in chunk["choices"]]


def merged(choices: list[dict[str, Any]]) -> dict[str, Any]:
    """The lists of all chunks, one after the other."""
    found: dict[str, Any] = {}
    for choice in choices:
        for name, value in (choice["logprobs"] or {}).items():
            if isinstance(value, list):
                found[name] = found.get(name, []) + value
            else:
                found[name] = value
    return found


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("most", [0, 1, 20])
@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"stop": ["e", "a", "o"]}, {"temperature": 0.5, "seed": 3}])
def test_a_stream_tells_the_same_as_a_whole_answer(
    service: ServiceThread, path: str, most: int, fields: dict[str, Any]
) -> None:
    answers = whole(service, path, most, **fields)
    chunks = streamed(service, path, most, **fields)
    for answer in answers:
        own = [chunk for chunk in chunks if chunk["index"] == answer["index"]]
        assert merged(own) == answer["logprobs"]
        tokens = answer["logprobs"].get("tokens") or answer["logprobs"]["content"]
        assert len(tokens) == len(answer["token_ids"])


@pytest.mark.parametrize("most", [0, 3])
def test_the_shape_of_chat(service: ServiceThread, oracle: HashOracle, most: int) -> None:
    (choice,) = whole(service, PATHS[1], most)
    assert choice["logprobs"].keys() == {"content", "refusal"} and choice["logprobs"]["refusal"] is None
    for token, entry in zip(choice["token_ids"], choice["logprobs"]["content"], strict=True):
        assert entry.keys() == {"token", "logprob", "bytes", "top_logprobs"}
        assert bytes(entry["bytes"]) == oracle.bytes_of(token)
        assert len(entry["top_logprobs"]) == most
        for other in entry["top_logprobs"]:
            assert other.keys() == {"token", "logprob", "bytes"} and -9999.0 <= other["logprob"] <= 0.0
        ranked = [other["logprob"] for other in entry["top_logprobs"]]
        assert ranked == sorted(ranked, reverse=True)


@pytest.mark.parametrize("most", [0, 3])
def test_the_shape_of_completions(service: ServiceThread, oracle: HashOracle, most: int) -> None:
    prompt = oracle.encode(TEXT)
    (choice,) = whole(service, PATHS[0], most)
    logprobs, ids = choice["logprobs"], choice["token_ids"]
    assert logprobs.keys() == {"text_offset", "token_logprobs", "tokens", "top_logprobs"}
    for found, expected in zip(logprobs["token_logprobs"], oracle.logprobs_of(prompt, ids), strict=True):
        assert abs(found - expected) < 1e-5
    for token, logprob, top in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert top[token] >= logprob and (most <= len(top) <= most + 1 if most else len(top) == 1)
        assert max(top.values()) == next(iter(top.values()))
    for at, token in zip(logprobs["text_offset"], logprobs["tokens"], strict=True):
        if not token.startswith("bytes:") and "\ufffd" not in choice["text"]:
            assert choice["text"].startswith(token, at)


def test_no_token_of_a_stream_comes_before_its_text(service: ServiceThread) -> None:
    text = ""
    for chunk in streamed(service, PATHS[0], 0, stop=["zz zz"]):
        text += chunk["text"]
        if chunk["logprobs"] is not None:
            assert chunk["finish_reason"] or all(at < len(text) for at in chunk["logprobs"]["text_offset"])


def test_what_a_stop_string_cuts_off_begins_nowhere_behind_the_end(service: ServiceThread) -> None:
    (free,) = whole(service, PATHS[0], 0)
    for end in range(2, len(free["text"]) - 3, 2):
        (choice,) = whole(service, PATHS[0], 0, stop=[free["text"][end : end + 3]])
        assert choice["finish_reason"] == "stop"
        count = len(choice["token_ids"])
        assert choice["logprobs"]["tokens"] == free["logprobs"]["tokens"][:count]
        assert max(choice["logprobs"]["text_offset"]) <= len(choice["text"])


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_told_that_nobody_asked_for(service: ServiceThread, path: str) -> None:
    for fields in ({"logprobs": None}, {"logprobs": False}, {"logprobs": False, "top_logprobs": 0}):
        if "chat" not in path and "top_logprobs" in fields:
            continue
        asked = body_for(path, 0)
        asked.pop("logprobs")
        asked.pop("top_logprobs", None)
        response = CLIENT.post(service.url + path, json=asked | fields)
        assert response.status_code == 200, response.text
        assert all(choice["logprobs"] is None for choice in response.json()["choices"])


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (PATHS[0], {"logprobs": 21}, "logprobs"),
        (PATHS[0], {"logprobs": -1}, "logprobs"),
        (PATHS[0], {"logprobs": True}, "logprobs"),
        (PATHS[0], {"top_logprobs": 2}, "top_logprobs"),
        (PATHS[1], {"top_logprobs": 21}, "top_logprobs"),
        (PATHS[1], {"top_logprobs": -1}, "top_logprobs"),
        (PATHS[1], {"logprobs": False, "top_logprobs": 2}, "top_logprobs"),
        (PATHS[1], {"logprobs": 2}, "logprobs"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    service: ServiceThread, path: str, fields: dict[str, Any], param: str
) -> None:
    response = CLIENT.post(service.url + path, json=body_for(path, 0) | fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
