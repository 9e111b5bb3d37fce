"""Tracing for the stand-alone service, from the standard OTEL_* variables. An embedding host sets up its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from opentelemetry import trace

from diptych.errors import ConfigError

logger = logging.getLogger("diptych_service")

# The last spans are sent within this time at shutdown, or given up.
FLUSH_SECONDS = 3.0
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def set_up(environment: Mapping[str, str]) -> Callable[[], None]:
    """Set the process's tracer provider if the environment asks for one; returns the bounded flush for shutdown."""
    wanted = _wanted(environment)
    if wanted is None:
        return _nothing
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        logger.info("tracing: a tracer provider is set already and is used as it is")
        return _nothing
    provider = _provider(environment, wanted)
    trace.set_tracer_provider(provider)
    logger.info("tracing: spans go to the %s exporter", wanted)
    return lambda: _shut_down(provider)


def _wanted(environment: Mapping[str, str]) -> str | None:
    """The exporter asked for: `otlp`, `console`, or none."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip()
    if not exporter:
        return "otlp" if any(environment.get(name) for name in _ENDPOINTS) else None
    if exporter == "none":
        return None
    if exporter not in ("otlp", "console"):
        raise ConfigError([f"OTEL_TRACES_EXPORTER is {exporter!r}: it must be otlp, console or none"])
    return exporter


def _provider(environment: Mapping[str, str], exporter: str) -> Any:
    try:
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
    except ImportError:
        raise ConfigError(
            [
                "OTEL_* variables ask for traces, but the OpenTelemetry SDK is not installed: "
                "pip install 'diptych[otel]', or unset them"
            ]
        ) from None
    # `create` reads the variables itself, but a name given to it would win over theirs.
    named = environment.get("OTEL_SERVICE_NAME") or "service.name=" in environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create({} if named else {SERVICE_NAME: "diptych"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    span_exporter = ConsoleSpanExporter() if exporter == "console" else _otlp_exporter(environment)
    provider.add_span_processor(BatchSpanProcessor(span_exporter))
    return provider


def _otlp_exporter(environment: Mapping[str, str]) -> Any:
    protocol = environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environment.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if protocol not in (None, "", "http/protobuf"):
        raise ConfigError(
            [f"the OTLP protocol is {protocol!r}: only http/protobuf is supported (set OTEL_EXPORTER_OTLP_PROTOCOL)"]
        )
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise ConfigError(
            ["OTEL_* variables ask for OTLP traces, but the exporter is not installed: pip install 'diptych[otel]'"]
        ) from None
    return OTLPSpanExporter()


def _shut_down(provider: Any) -> None:
    """A collector that does not answer must not keep the process alive, hence a thread that may be left behind."""
    thread = threading.Thread(target=provider.shutdown, name="diptych-otel-flush", daemon=True)
    thread.start()
    thread.join(FLUSH_SECONDS)
    if thread.is_alive():
        logger.warning("tracing: the last spans could not be sent within %g s", FLUSH_SECONDS)


def _nothing() -> None:
    """No provider of ours, nothing to flush."""
