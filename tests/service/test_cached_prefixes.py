"""What a request says about its cached prefix: with whom it is shared, for how long, and in which class."""

import time
from pathlib import Path
from typing import Any

import pytest
from service_rig import CLIENT, ServiceThread

PROMPT = list(range(10, 110))


def cached(service: ServiceThread, prompt: list[int] = PROMPT, key: str | None = None, **fields: Any) -> int:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    body = {"prompt": prompt, "max_tokens": 2, **fields}
    response = CLIENT.post(f"{service.url}/v1/completions", json=body, headers=headers, timeout=30)
    assert response.status_code == 200, response.text
    assert "x-diptych-ignored" not in response.headers
    tokens: int = response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


def test_a_salt_shares_with_its_like_alone(model_folder: Path) -> None:
    with ServiceThread(model_folder) as service:
        salts: list[dict[str, Any]] = [{}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"cache_salt": "0:"}]
        assert [cached(service, **salt) for salt in salts] == [0, 0, 0, 0]
        assert [cached(service, **salt) for salt in salts] == [96, 96, 96, 96]
        assert cached(service, cache_salt=None) == 96


def test_api_keys_do_not_see_each_other_s_prefixes(model_folder: Path) -> None:
    with ServiceThread(model_folder, {"api_keys": ("first", "second")}) as service:
        assert cached(service, key="first") == 0
        assert cached(service, key="second") == 0
        assert cached(service, key="second", cache_salt="0:") == 0
        assert cached(service, key="first") == 96
        assert cached(service, key="first", cache_salt="x") == 0


def test_a_time_to_live_ends(model_folder: Path) -> None:
    with ServiceThread(model_folder) as service:
        assert cached(service, cache_ttl=0) == 0
        assert cached(service, cache_ttl=0) == 0
        assert cached(service, cache_ttl=600) == 0
        assert cached(service, cache_ttl=600) == 96
        other = PROMPT[::-1]
        assert cached(service, other, cache_ttl=0.5) == 0
        time.sleep(1.0)
        assert cached(service, other, cache_ttl=0.5) == 0


def test_a_higher_class_outlives_newer_prefixes(model_folder: Path) -> None:
    with ServiceThread(model_folder) as service:
        blocks = int(service.engine.stats().kv_blocks_total)
        kept, plain = PROMPT, PROMPT[::-1]
        assert cached(service, kept, cache_retention=1) == 0
        assert cached(service, plain) == 0
        for number in range(blocks // 6 + 2):
            cached(service, [120 + number % 40, 100 + number // 40, *range(10, 108)])
        assert cached(service, kept) == 96
        assert cached(service, plain) == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cache_salt", "x" * 513),
        ("cache_salt", 7),
        ("cache_ttl", -1),
        ("cache_ttl", 1e12),
        ("cache_ttl", "1"),
        ("cache_retention", 4),
        ("cache_retention", -1),
        ("cache_retention", 0.5),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(service: ServiceThread, field: str, value: Any) -> None:
    body = {"prompt": PROMPT, "max_tokens": 2, field: value}
    response = CLIENT.post(f"{service.url}/v1/completions", json=body)
    assert response.status_code == 400
    assert field in response.json()["error"]["message"]
