"""Pages of other origins: who may read, what a preflight request is told, and that nobody may unless named."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from service_rig import CLIENT, ServiceThread

from diptych.errors import ConfigError
from diptych_service import ServiceConfig

PAGE = "https://chat.example"
BODY = {"prompt": "a", "max_tokens": 3}
PATHS = ["/v1/completions", "/v1/chat/completions", "/v1/models", "/nowhere"]
ASKING = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
}


@pytest.fixture(scope="module")
def open_to_page(model_folder: Path) -> Iterator[ServiceThread]:
    settings = {"allowed_origins": (PAGE, "http://localhost:3000"), "api_keys": ("key",)}
    with ServiceThread(model_folder, settings) as service:
        yield service


def told(response: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name.startswith("access-control-")}


@pytest.mark.parametrize("path", PATHS)
def test_a_preflight_request_is_answered_without_a_key(open_to_page: ServiceThread, path: str) -> None:
    response = CLIENT.options(open_to_page.url + path, headers=ASKING)
    assert (response.status_code, response.content) == (204, b"")
    assert told(response) == {
        "access-control-allow-origin": PAGE,
        "access-control-allow-methods": "GET, POST",
        "access-control-allow-headers": ASKING["Access-Control-Request-Headers"],
        "access-control-expose-headers": "*",
        "access-control-max-age": "600",
    }
    assert response.headers["vary"] == "Origin"


@pytest.mark.parametrize("body", [BODY, BODY | {"stream": True}, BODY | {"max_tokens": 10**6}, {}])
@pytest.mark.parametrize("key", ["key", "wrong"])
def test_any_answer_may_be_read(open_to_page: ServiceThread, body: dict[str, object], key: str) -> None:
    headers = {"Origin": PAGE, "Authorization": f"Bearer {key}"}
    response = CLIENT.post(open_to_page.url + "/v1/completions", json=body, headers=headers)
    assert response.status_code == (401 if key == "wrong" else 200 if body.get("max_tokens") == 3 else 400)
    assert told(response) == {"access-control-allow-origin": PAGE, "access-control-expose-headers": "*"}
    assert response.headers["vary"] == "Origin"


@pytest.mark.parametrize("origin", ["https://evil.example", PAGE + ".evil.example", "http://chat.example", "null", ""])
def test_other_pages_are_told_nothing(open_to_page: ServiceThread, origin: str) -> None:
    asked = CLIENT.options(open_to_page.url + PATHS[0], headers=ASKING | {"Origin": origin})
    assert asked.status_code == 401 and told(asked) == {}
    answered = CLIENT.get(open_to_page.url + "/health", headers={"Origin": origin})
    assert answered.status_code == 200 and told(answered) == {} and answered.headers["vary"] == "Origin"


def test_without_the_setting_no_page_is_told_anything(service: ServiceThread) -> None:
    asked = CLIENT.options(service.url + PATHS[0], headers=ASKING)
    answered = CLIENT.post(service.url + PATHS[0], json=BODY, headers={"Origin": PAGE})
    assert (asked.status_code, answered.status_code) == (405, 200)
    for response in (asked, answered):
        assert told(response) == {} and "vary" not in response.headers


def test_a_star_lets_every_page_read(model_folder: Path) -> None:
    with ServiceThread(model_folder, {"allowed_origins": ("*",)}) as service:
        for origin in (PAGE, "null"):
            response = CLIENT.post(service.url + PATHS[0], json=BODY, headers={"Origin": origin})
            assert told(response)["access-control-allow-origin"] == "*" and "vary" not in response.headers
        assert told(CLIENT.get(service.url + "/health")) == {}


@pytest.mark.parametrize(
    "origin", ["https://chat.example/", "chat.example", "https://", "HTTPS://CHAT.EXAMPLE", "https://a.example, b", ""]
)
def test_what_no_browser_sends_is_refused_at_the_start(origin: str) -> None:
    with pytest.raises(ConfigError, match=r"allowed_origins holds .*scheme://host"):
        ServiceConfig(allowed_origins=(origin,))


@pytest.mark.parametrize("origin", ["*", "http://[::1]:8080", "http://127.0.0.1:3000", "chrome-extension://abcdefgh"])
def test_what_browsers_send_is_taken(origin: str) -> None:
    assert ServiceConfig(allowed_origins=(origin,)).allowed_origins == (origin,)
