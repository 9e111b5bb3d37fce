"""What clients and routers are told of the scheduler's decisions, and what they are not."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from service_rig import CLIENT, ServiceThread
from tiny_folder import write_folder

PROMPT = list(range(10, 50))
ROUTER = {"Authorization": "Bearer router"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceThread]:
    folder: Path = write_folder(tmp_path_factory.mktemp("model"))
    keys = {"api_keys": ("client",), "kv_events_keys": ("router",)}
    with ServiceThread(folder, keys, kv_events=64) as service:
        yield service


def complete(service: ServiceThread, headers: dict[str, str], **fields: Any) -> Any:
    body = {"prompt": PROMPT, "max_tokens": 2, **fields}
    key = {"Authorization": "Bearer client"}
    return CLIENT.post(f"{service.url}/v1/completions", json=body, headers=key | headers)


def test_usage_explains_only_on_request(guarded: ServiceThread) -> None:
    assert "explanations" not in complete(guarded, {}).json()["usage"]
    (told,) = complete(guarded, {"x-diptych-explain": "1"}).json()["usage"]["explanations"]
    assert told["cache"]["end"] == {"reason": "complete"}
    assert told["chunks"][0]["limit"] == "prompt"
    refused = complete(guarded, {"x-diptych-explain": "maybe"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "x-diptych-explain")


def test_a_stream_explains_in_its_usage_chunk(guarded: ServiceThread) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    text = complete(guarded, {"x-diptych-explain": "1"}, **options).text
    last = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")][-1]
    assert json.loads(last)["usage"]["explanations"][0]["decisions"]


def test_kv_events_need_a_key_of_their_own(guarded: ServiceThread) -> None:
    url = f"{guarded.url}/v1/kv_events"
    assert CLIENT.get(url).status_code == 401
    assert CLIENT.get(url, headers={"Authorization": "Bearer client"}).status_code == 401
    complete(guarded, {})
    told = CLIENT.get(url, headers=ROUTER, params={"start": 0}).json()
    (stored,) = told["events"]
    assert (stored["type"], stored["block_size"], stored["parent_block_hash"]) == ("BlockStored", 16, None)
    assert stored["token_ids"] == PROMPT[:32]
    snapshot = CLIENT.get(url, headers=ROUTER).json()
    assert (snapshot["core"], snapshot["next"]) == (told["core"], told["next"])
    hashes = {block for event in snapshot["events"] for block in event["block_hashes"]}
    assert hashes == set(stored["block_hashes"])
    gone = CLIENT.get(url, headers=ROUTER, params={"start": 999})
    assert (gone.status_code, gone.json()["error"]["code"]) == (400, "kv_events_gone")
    assert CLIENT.get(url, headers=ROUTER, params={"limit": "many"}).status_code == 400


def test_without_keys_there_are_no_kv_events(service: ServiceThread) -> None:
    assert CLIENT.get(f"{service.url}/v1/kv_events").status_code == 404
