"""Beam search over HTTP: whole answers, refusals."""

from typing import Any

import pytest
from service_rig import CLIENT, ServiceThread

PATHS = ["/v1/completions", "/v1/chat/completions"]
SCHEMA_FORMAT = {"type": "json_schema", "json_schema": {"schema": True}}
TEXT = "The quick brown fox"


def post(service: ServiceThread, path: str, **fields: Any) -> Any:
    asked = {"messages": [{"role": "user", "content": TEXT}]} if "chat" in path else {"prompt": TEXT}
    body = {**asked, "max_tokens": 6, "return_token_ids": True, "use_beam_search": True, **fields}
    return CLIENT.post(service.url + path, json=body)


@pytest.mark.parametrize("path", PATHS)
def test_an_answer_has_the_beams_best_first(service: ServiceThread, path: str) -> None:
    response = post(service, path, n=3, length_penalty=0.5, early_stopping="never")
    assert response.status_code == 200, response.text
    choices = response.json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    ids = [tuple(choice["token_ids"]) for choice in choices]
    assert len(set(ids)) == 3 and all(len(each) == 6 for each in ids)
    assert response.json()["usage"]["completion_tokens"] == 18


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"stream": True}, "use_beam_search"),
        ({"temperature": 0.7}, "temperature"),
        ({"stop": "x"}, "stop"),
        ({"best_of": 3}, "best_of"),
        ({"early_stopping": "sometimes"}, "early_stopping"),
        ({"length_penalty": "long"}, "length_penalty"),
        ({"use_beam_search": False, "length_penalty": 0.5}, "length_penalty"),
    ],
)
def test_what_contradicts_a_beam_search_is_refused(
    service: ServiceThread, path: str, fields: dict[str, Any], named: str
) -> None:
    response = post(service, path, n=2, **fields)
    assert response.status_code == 400, response.text
    assert named in response.json()["error"]["message"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("fields", "param", "sent"),
    [
        ({"guided_regex": "a"}, "guided_regex", '"a"'),
        ({"guided_json": {"type": "object"}}, "guided_json", '{"type":"object"}'),
        ({"structured_outputs": {"regex": "a", "json": None}}, "structured_outputs", '{"regex":"a","json":null}'),
        ({"response_format": {"type": "json_object"}}, "response_format", '{"type":"json_object"}'),
        ({"response_format": SCHEMA_FORMAT}, "response_format", '{"type":"json_schema","json_schema":{"schema":true}}'),
        ({"guided_regex": "a" * 1000}, "guided_regex", '"' + "a" * 79 + "…"),
        ({"prompt_logprobs": 2}, "prompt_logprobs", "2"),
    ],
)
def test_what_a_beam_search_leaves_no_room_for_is_named_as_it_was_sent(
    service: ServiceThread, path: str, fields: dict[str, Any], param: str, sent: str
) -> None:
    response = post(service, path, n=2, **fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param and error["message"].startswith(f"{param}={sent}: expected none: beam"), error


def test_log_probabilities_beside_beams_are_named_as_each_endpoint_has_them(service: ServiceThread) -> None:
    for path, fields, sent in (
        (PATHS[0], {"logprobs": 3, "echo": True}, "logprobs=3"),
        (PATHS[1], {"logprobs": True, "top_logprobs": 3}, "logprobs=true"),
    ):
        error = post(service, path, n=2, **fields).json()["error"]
        assert error["param"] == "logprobs" and error["message"].startswith(f"{sent}: expected none"), error
        assert "prompt_logprobs" not in error["message"]
    # What asks for nothing stands beside them.
    nothing = {"logprobs": False, "response_format": {"type": "text"}}
    assert post(service, PATHS[1], n=2, **nothing).status_code == 200
