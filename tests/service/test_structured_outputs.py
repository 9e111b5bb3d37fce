"""Structured outputs over HTTP, under every name that clients have for them."""

import json
import re
from typing import Any

import pytest
from raw_client import RawClient, events
from service_rig import CLIENT, ServiceThread

PATHS = ["/v1/completions", "/v1/chat/completions"]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Ōsaka"]}, "nights": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "nights"],
    "additionalProperties": False,
}
WRAPPED = {"type": "json_schema", "json_schema": {"name": "stay", "schema": SCHEMA, "strict": True}}
OF_SCHEMA = "response_format.json_schema.schema"
CODE = "[a-f]{3}-[0-9]{2}"


def body(path: str, **fields: Any) -> dict[str, Any]:
    asked = {"messages": [{"role": "user", "content": "Hello"}]} if "chat" in path else {"prompt": "Hello"}
    return {**asked, "max_tokens": 500, **fields}


def text_of(choice: dict[str, Any]) -> str:
    text: str = choice["message"]["content"] if "message" in choice else choice["text"]
    return text


def is_stay(text: str) -> bool:
    value = json.loads(text)
    return value.keys() == {"city", "nights"} and value["city"] in ("Rome", "Ōsaka") and value["nights"] in range(1, 10)


def error(service: ServiceThread, path: str, **fields: Any) -> dict[str, Any]:
    response = CLIENT.post(service.url + path, json=body(path, **fields))
    assert response.status_code == 400, response.text
    found: dict[str, Any] = response.json()["error"]
    return found


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": WRAPPED},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"structured_outputs": {"json": SCHEMA, "regex": None}},
        {"response_format": WRAPPED, "guided_json": SCHEMA},
    ],
)
def test_an_answer_is_what_the_schema_says_under_every_name(
    service: ServiceThread, path: str, fields: dict[str, Any]
) -> None:
    response = CLIENT.post(service.url + path, json=body(path, n=2, **fields))
    assert response.status_code == 200, response.text
    for choice in response.json()["choices"]:
        assert is_stay(text_of(choice)) and choice["finish_reason"] == "stop"


@pytest.mark.parametrize("path", PATHS)
def test_streams_follow_it_as_well(service: ServiceThread, path: str) -> None:
    with RawClient(service.port) as client:
        status, content = client.post(path, body(path, stream=True, response_format=WRAPPED)).read_response()
    assert status == 200
    parts = [chunk["choices"][0] for chunk in events(content)[:-1]]
    text = "".join(part["delta"].get("content") or "" if "delta" in part else part["text"] for part in parts)
    assert is_stay(text)


@pytest.mark.parametrize("path", PATHS)
def test_the_other_kinds(service: ServiceThread, path: str) -> None:
    def told(**fields: Any) -> str:
        response = CLIENT.post(service.url + path, json=body(path, **fields))
        assert response.status_code == 200, response.text
        return text_of(response.json()["choices"][0])

    assert re.fullmatch(CODE, told(guided_regex=CODE))
    assert re.fullmatch(CODE, told(structured_outputs={"regex": CODE, "json_object": False}))
    assert told(guided_choice=["yes", "né"]) in ("yes", "né")
    assert told(structured_outputs={"choice": ["only"]}) == "only"
    assert told(guided_grammar='start: "x" "y"') == "xy"
    assert told(structured_outputs={"grammar": 'start: "x" "z"'}) == "xz"
    assert told(response_format={"type": "json_object"}).startswith("{")
    assert told(response_format={"type": "text"}, max_tokens=5) == told(max_tokens=5)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("fields", "param", "wanted"),
    [
        ({"guided_regex": "("}, "guided_regex", "unclosed"),
        ({"response_format": {**WRAPPED, "json_schema": {"schema": {"type": "x"}}}}, OF_SCHEMA, "x"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "xml"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "schema"),
        ({"response_format": {"type": "json_object", "more": 1}}, "response_format.more", "not supported"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag", "not supported"),
        ({"structured_outputs": {}}, "structured_outputs", "none is given"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "regex and choice"),
        (
            {"structured_outputs": {"choice": [1]}},
            "structured_outputs.choice[0]",
            "structured_outputs.choice[0]: Expected `str`",
        ),
        ({"guided_choice": []}, "guided_choice", "1 to 4096"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "different"),
        ({"guided_json": SCHEMA, "response_format": {"type": "json_object"}}, "guided_json", "different"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos", "must end"),
        ({"guided_regex": "a?" * 80_000}, "guided_regex", "4096"),
        ({"guided_choice": ["a" * 300_000]}, "guided_choice", "262144"),
        ({"guided_json": {"const": -(2**63)}}, "guided_json", "-9223372036854775808"),
        ({"guided_json": '{"enum": [[-9223372036854775807]]}'}, "guided_json", "-9223372036854775807"),
    ],
)
def test_what_cannot_be_followed_is_a_400_that_names_it(
    service: ServiceThread, path: str, fields: dict[str, Any], param: str, wanted: str
) -> None:
    found = error(service, path, **fields)
    assert found["param"] == param and wanted in found["message"], found
    service.wait_idle()
