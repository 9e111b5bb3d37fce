"""The page in `docs` that says what becomes of each field of a request."""

import os
from pathlib import Path

import field_table
import pytest
from service_rig import CLIENT, ServiceThread

from diptych_service.fields import CHAT_FIELDS, COMPLETION_FIELDS, FieldTable

PAGE = Path(__file__).parents[2] / "docs" / "request-fields.md"
ENDPOINTS = [
    ("/v1/completions", COMPLETION_FIELDS, {"prompt": "Hello"}),
    ("/v1/chat/completions", CHAT_FIELDS, {"messages": [{"role": "user", "content": "Hello"}]}),
]


def test_the_page_of_request_fields_is_what_the_service_does() -> None:
    if os.environ.get("DIPTYCH_BLESS"):
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(field_table.page())
    assert PAGE.read_text() == field_table.page(), "DIPTYCH_BLESS=1 writes the page anew"


@pytest.mark.parametrize(("path", "table", "base"), ENDPOINTS)
def test_each_field_is_in_one_list(path: str, table: FieldTable, base: dict[str, object]) -> None:
    lists = [set(table.honoured), set(table.no_effect), set(table.refused)]
    assert sum(map(len, lists)) == len(set().union(*lists))


@pytest.mark.parametrize(("path", "table", "base"), ENDPOINTS)
def test_every_field_of_the_page_is_treated_as_it_says(
    service: ServiceThread, path: str, table: FieldTable, base: dict[str, object]
) -> None:
    for name in {*table.honoured, *table.no_effect, *table.refused}:
        response = CLIENT.post(service.url + path, json={**base, "max_tokens": 1, name: base.get(name)})
        assert response.status_code == 200, (name, response.text)
    for name in table.no_effect:
        response = CLIENT.post(service.url + path, json={**base, "max_tokens": 1, name: "x"})
        assert response.headers["x-diptych-ignored"] == name
    for name, neutral in table.refused.items():
        error = CLIENT.post(service.url + path, json={**base, "max_tokens": 1, name: "x"}).json()["error"]
        assert error["param"] == name and error["code"] == "unsupported_parameter"
        for value in neutral:
            response = CLIENT.post(service.url + path, json={**base, "max_tokens": 1, name: value})
            assert response.status_code == 200, (name, value, response.text)
    unknown = CLIENT.post(service.url + path, json={**base, "no_such_field": 1}).json()["error"]
    assert unknown["code"] == "unknown_parameter"
