"""Which tracer provider is in force: the host's, none, or the one that the OTEL_* variables ask for."""

import sys

import pytest
from opentelemetry import trace
from service_rig import CLIENT, ServiceThread

from diptych.errors import ConfigError
from diptych_service import otel

PATH = "/v1/completions"
BODY = {"prompt": "Hi", "max_tokens": 2}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_without_a_provider_the_callers_context_is_handed_on(service: ServiceThread) -> None:
    response = CLIENT.post(service.url + PATH, json=BODY, headers={"traceparent": PARENT})
    assert response.headers["traceparent"] == PARENT
    assert "traceparent" not in CLIENT.post(service.url + PATH, json=BODY).headers


def test_an_exporter_without_the_sdk_is_a_start_up_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"diptych\[otel\]"):
        otel.set_up({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"})


@pytest.mark.parametrize(
    "environment",
    [
        {"OTEL_TRACES_EXPORTER": "zipkin"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
    ],
)
def test_what_cannot_be_exported_is_a_start_up_error(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        otel.set_up(environment)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
    ],
)
def test_without_a_wish_nothing_is_set_up(environment: dict[str, str]) -> None:
    before = trace.get_tracer_provider()
    otel.set_up(environment)()
    assert trace.get_tracer_provider() is before
