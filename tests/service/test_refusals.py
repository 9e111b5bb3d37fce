"""Requests that must be answered with a 4xx in the shape clients know, and leave the engine as it was."""

import concurrent.futures
import gzip
import json
import random
from typing import Any

import httpx
import pytest
from raw_client import RawClient, events
from service_rig import CLIENT, ServiceThread
from tiny_folder import MAX_MODEL_LEN, HashOracle

from diptych_service.fields import CHAT_FIELDS, COMPLETION_FIELDS

PATHS = ["/v1/completions", "/v1/chat/completions"]
BASE: dict[str, dict[str, Any]] = {
    PATHS[0]: {"prompt": "Hello", "max_tokens": 2},
    PATHS[1]: {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2},
}


def error_of(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"} and error["message"]
    return error


def post(service: ServiceThread, path: str, body: Any, **options: Any) -> httpx.Response:
    raw = body if isinstance(body, bytes | str) else json.dumps(body)
    return CLIENT.post(service.url + path, content=raw, **options)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "body", ["", "x", "[]", '"x"', "3", "null", "{", '{"max_tokens":NaN}', '{"a":1,"a":2}', b"\xff\xfe"]
)
def test_no_json_object(service: ServiceThread, path: str, body: Any) -> None:
    assert error_of(post(service, path, body))["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", PATHS)
def test_an_unpaired_surrogate_in_any_text_is_a_400(service: ServiceThread, path: str) -> None:
    """Reports A25."""
    half = '"\\ud83d"'
    table = CHAT_FIELDS if "chat" in path else COMPLETION_FIELDS
    for name in sorted(table.honoured | table.no_effect | table.refused.keys() | {"no such field"}):
        for value in (half, f'[{{"role":"user","content":{half}}}]', f'{{"type":"json_schema","x":[{{{half}:1}}]}}'):
            fields = {key: json.dumps(content) for key, content in BASE[path].items()} | {name: value}
            fields["stream"] = fields.get("stream", "true")
            raw = "{" + ",".join(f'"{key}":{content}' for key, content in fields.items()) + "}"
            assert error_of(post(service, path, raw))["param"] == name
            assert error_of(post(service, path, raw.replace('"stream":true', '"stream":false')))["param"] == name
    assert post(service, path, BASE[path]).status_code == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "field",
    ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "target_itl_ms"],
)
def test_numbers_out_of_range(service: ServiceThread, path: str, field: str) -> None:
    for literal in ("NaN", "Infinity", "-Infinity", "1e999", "1e308", "-1e308", '"nan"', "-7", "true", "[]", "{}"):
        raw = json.dumps(BASE[path])[:-1] + f',"{field}":{literal}}}'
        error = error_of(post(service, path, raw))
        assert error["param"] in (field, None) and len(error["message"]) < 1100


@pytest.mark.parametrize("path", PATHS)
def test_every_small_temperature_is_taken(service: ServiceThread, path: str) -> None:
    for exponent in range(3, 13):
        raw = json.dumps(BASE[path])[:-1] + f',"temperature":1e-{exponent}}}'
        assert post(service, path, raw).status_code == 200
    for literal in ("0", "-0.0", "0.0", "100"):
        assert post(service, path, json.dumps(BASE[path])[:-1] + f',"temperature":{literal}}}').status_code == 200


@pytest.mark.parametrize("path", PATHS)
def test_no_mutated_body_is_a_server_error(service: ServiceThread, path: str) -> None:
    source = random.Random(7)
    values: list[Any] = [None, True, 0, -1, 1.5, "", "x", [], ["x"], [1], {}, {"x": 1}, 2**70, [[]], [None]]
    names = [*BASE[path], "model", "stream", "stream_options", "temperature", "top_k", "seed", "stop", "stop_token_ids"]
    names += ["logit_bias", "n", "tools", "response_format", "logprobs", "chat_template_kwargs", "user", "echo", "what"]
    with httpx.Client(base_url=service.url) as client:
        for _ in range(300):
            body = BASE[path] | {source.choice(names): source.choice(values) for _ in range(source.choice((1, 1, 2)))}
            response = client.post(path, content=json.dumps(body))
            assert response.status_code in (200, 400, 404), (body, response.text)
            if response.status_code != 200:
                assert response.json()["error"]["message"]
    service.wait_idle()


@pytest.mark.parametrize("path", PATHS)
def test_stop_strings(service: ServiceThread, path: str) -> None:
    for stop in (None, [], "é", ["\U0001f600"], ["e\u0301"], ["a", "b", "c", "d", "e"], ["x" * 10_000]):
        assert post(service, path, BASE[path] | {"stop": stop}).status_code == 200, stop
    for wrong in ("", [""], ["a", ""], ["x"] * 129, ["x" * 70_000], [None], 3):
        assert (error_of(post(service, path, BASE[path] | {"stop": wrong}))["param"] or "").startswith("stop")


def test_empty_prompts(service: ServiceThread) -> None:
    for prompt in ("", [""], [], [[]], [[], [1]], None):
        for stream in (False, True):
            assert error_of(post(service, PATHS[0], {"prompt": prompt, "stream": stream}))["param"] == "prompt"
    error_of(post(service, PATHS[1], {"messages": []}))
    assert post(service, PATHS[0], BASE[PATHS[0]]).status_code == 200


def test_max_tokens(service: ServiceThread, oracle: HashOracle) -> None:
    for path in PATHS:
        error_of(post(service, path, BASE[path] | {"max_tokens": 0}))
        error_of(post(service, path, BASE[path] | {"max_tokens": -1}))
        one = post(service, path, BASE[path] | {"max_tokens": 1}).json()
        assert one["usage"]["completion_tokens"] == 1 and one["choices"][0]["finish_reason"] == "length"
    assert service.complete("Hello", max_tokens=None)["usage"]["completion_tokens"] == 16  # type: ignore[arg-type]
    chat = post(service, PATHS[1], BASE[PATHS[1]] | {"max_tokens": None}).json()
    assert chat["usage"]["total_tokens"] == MAX_MODEL_LEN
    both = post(service, PATHS[1], BASE[PATHS[1]] | {"max_tokens": 9, "max_completion_tokens": 3}).json()
    assert both["usage"]["completion_tokens"] == 3
    for wrong in (0, -1, 2**31):
        error = error_of(post(service, PATHS[1], BASE[PATHS[1]] | {"max_completion_tokens": wrong}))
        assert error["param"] == "max_completion_tokens" and "max_completion_tokens" in error["message"]


def test_the_context_length_is_exact(service: ServiceThread) -> None:
    for length, max_tokens, fits in [
        (MAX_MODEL_LEN - 1, 1, True),
        (MAX_MODEL_LEN - 2, 1, True),
        (MAX_MODEL_LEN - 1, 2, False),
        (MAX_MODEL_LEN, 1, False),
        (MAX_MODEL_LEN + 1, 1, False),
        (10 * MAX_MODEL_LEN, 1, False),
        (5, MAX_MODEL_LEN, False),
    ]:
        for stream in (False, True):
            body = {"prompt": [5 + i % 100 for i in range(length)], "max_tokens": max_tokens, "stream": stream}
            response = post(service, PATHS[0], body)
            if fits:
                assert response.status_code == 200
                continue
            error = error_of(response)
            assert error["code"] == "context_length_exceeded" and error["param"] == "prompt"
            assert f"This model's maximum context length is {MAX_MODEL_LEN} tokens" in error["message"]
            assert str(length) in error["message"] and str(max_tokens) in error["message"]
    chat = {"messages": [{"role": "user", "content": "word " * 5 * MAX_MODEL_LEN}]}
    for stream in (False, True):
        error = error_of(post(service, PATHS[1], chat | {"stream": stream}))
        assert error["code"] == "context_length_exceeded" and error["param"] == "messages"
        assert "max_tokens" not in error["message"] and "no room for an answer" in error["message"]


def test_ids_outside_the_vocabulary(service: ServiceThread, oracle: HashOracle) -> None:
    for wrong in (oracle.vocabulary, 2**31, 2**40, 2**70, -1):
        assert error_of(post(service, PATHS[0], {"prompt": [5, wrong]}))["param"] == "prompt"
    for fields in ({"stop_token_ids": [10**6]}, {"logit_bias": {str(10**6): 1}}, {"logit_bias": {"x": 1}}):
        error_of(post(service, PATHS[0], BASE[PATHS[0]] | fields))
    assert post(service, PATHS[0], BASE[PATHS[0]] | {"logit_bias": {"7": -100}}).status_code == 200


def test_stream_options_need_a_stream(service: ServiceThread) -> None:
    for path in PATHS:
        assert error_of(post(service, path, BASE[path] | {"stream_options": {}}))["param"] == "stream_options"
        assert post(service, path, BASE[path] | {"stream_options": None}).status_code == 200


def test_an_unknown_model_is_a_404_and_none_is_fine(service: ServiceThread) -> None:
    for path in PATHS:
        assert error_of(post(service, path, BASE[path] | {"model": "x"}), 404)["code"] == "model_not_found"
        for model in (service.model, None):
            assert post(service, path, BASE[path] | {"model": model}).status_code == 200
    assert error_of(CLIENT.get(service.url + "/v1/models/a/b"), 404)["code"] == "model_not_found"
    assert CLIENT.get(f"{service.url}/v1/models/{service.model}").json()["id"] == service.model


def test_unknown_paths_and_methods(service: ServiceThread) -> None:
    assert error_of(CLIENT.get(service.url + "/nothing"), 404)["type"] == "not_found_error"
    response = CLIENT.get(service.url + PATHS[0])
    assert error_of(response, 405)["code"] == "method_not_allowed" and response.headers["allow"] == "POST"


def test_a_client_id_is_only_echoed(service: ServiceThread, oracle: HashOracle) -> None:
    prompts = [f"prompt number {index}" for index in range(50)]

    def ask(prompt: str) -> list[int]:
        body = {"prompt": prompt, "max_tokens": 10, "return_token_ids": True, "request_id": "same"}
        response = CLIENT.post(service.url + PATHS[0], json=body, headers={"X-Request-Id": "same"})
        assert response.headers["x-request-id"] == "same"
        ids: list[int] = response.json()["choices"][0]["token_ids"]
        return ids

    with concurrent.futures.ThreadPoolExecutor(25) as pool:
        answers = list(pool.map(ask, prompts))
    assert answers == [oracle.continuation(oracle.encode(prompt), 10) for prompt in prompts]


def test_bad_request_ids_are_replaced(service: ServiceThread) -> None:
    for bad in ("x" * 300, "a b", "\u00e9"):
        response = CLIENT.get(service.url + "/livez", headers={"X-Request-Id": bad.encode()})
        assert response.headers["x-request-id"] not in ("", bad)


def test_keys_and_body_size(model_folder: Any) -> None:
    with ServiceThread(model_folder, {"api_keys": ("first-key", "second-key"), "max_body_bytes": 4096}) as service:
        for header in (None, "Bearer wrong", "first-key", "Basic first-key", "Bearer", "Bearer first-key2"):
            headers = {"Authorization": header} if header is not None else {}
            response = post(service, PATHS[0], BASE[PATHS[0]], headers=headers)
            assert error_of(response, 401)["type"] == "authentication_error"
        assert error_of(CLIENT.get(service.url + "/v1/models"), 401)["code"] == "invalid_api_key"
        for key in ("first-key", "second-key"):
            headers = {"Authorization": f"Bearer {key}"}
            assert post(service, PATHS[0], BASE[PATHS[0]], headers=headers).status_code == 200
        for open_path in ("/health", "/livez", "/readyz", "/metrics"):
            assert CLIENT.get(service.url + open_path).status_code == 200
        large = BASE[PATHS[0]] | {"prompt": "x" * 5000}
        assert error_of(post(service, PATHS[0], large, headers=headers), 413)["code"] == "request_too_large"


def test_broken_encodings_of_a_body_are_refused(service: ServiceThread) -> None:
    body = json.dumps(BASE[PATHS[0]]).encode()
    compressed = gzip.compress(body)
    assert post(service, PATHS[0], compressed, headers={"Content-Encoding": "gzip"}).status_code == 200
    with RawClient(service.port) as client:
        status, content = client.post(PATHS[0], body, {"Content-Encoding": "gzip"}).read_response()
    assert status == 400 and json.loads(content)["error"]["code"] == "invalid_body"
    bomb = gzip.compress(b'{"prompt":"' + b"a" * 40_000_000 + b'"}')
    assert error_of(post(service, PATHS[0], bomb, headers={"Content-Encoding": "gzip"}), 413)


def test_a_refused_stream_has_a_status_of_its_own(service: ServiceThread) -> None:
    with RawClient(service.port) as client:
        body = {"prompt": "a", "max_tokens": 5000, "stream": True}
        status, content = client.post(PATHS[0], body).read_response()
    assert status == 400 and json.loads(content)["error"]["code"] == "context_length_exceeded"


def test_refusals_do_not_spoil_the_connection(service: ServiceThread) -> None:
    with RawClient(service.port) as client:
        assert client.post(PATHS[0], b"{").read_response()[0] == 400
        client.received = b""
        status, content = client.post(PATHS[0], BASE[PATHS[0]] | {"stream": True}).read_response()
        assert status == 200 and events(content)[-1] == "[DONE]"
