"""The service's own settings, beside the engine's `EngineConfig`."""

from __future__ import annotations

import logging
import math
from typing import Annotated

import msgspec
from msgspec import Meta

from diptych import EngineConfig
from diptych.errors import ConfigError
from diptych_service.origins import problems_of


class ServiceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything about HTTP; nothing here changes what is generated. Times in seconds, sizes in bytes.

    Wrong values, all of them at once, raise `ConfigError` at construction.
    """

    host: Annotated[str, Meta(description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Meta(description="port to listen on; 0 takes a free one and prints it")] = 8000
    api_keys: Annotated[
        tuple[str, ...], Meta(description="keys of which a client must send one as a Bearer token; none: open")
    ] = ()
    allowed_origins: Annotated[
        tuple[str, ...],
        Meta(description="origins whose pages a browser lets read answers, such as https://chat.example; *: all"),
    ] = ()
    served_model_name: Annotated[
        str | None, Meta(description="id of the model towards clients; default: the name given, or its folder's name")
    ] = None
    write_timeout: Annotated[
        float, Meta(description="seconds after which a client that accepts no byte is disconnected")
    ] = 30.0
    keep_alive_interval: Annotated[
        float, Meta(description="seconds after which a silent stream gets a comment that clients skip; 0: never")
    ] = 15.0
    drain_timeout: Annotated[float, Meta(description="seconds that open requests may still run after SIGTERM")] = 30.0
    max_body_bytes: Annotated[
        int, Meta(description="largest request body, after decompression; the default holds 1,024 prompts of 2,000 ids")
    ] = 16 * 1024 * 1024
    kv_events_keys: Annotated[
        tuple[str, ...],
        Meta(description="keys for /v1/kv_events, which tells all cached prompts; none: not served. Needs kv_events"),
    ] = ()
    log_level: Annotated[str, Meta(description="debug, info, warning or error")] = "info"

    def __post_init__(self) -> None:
        problems = []
        if not self.host:
            problems.append("host is empty: give an address, for example 127.0.0.1")
        if not 0 <= self.port <= 65_535:
            problems.append(f"port is {self.port}: it must be within 0..65535")
        for name, keys in (("api_keys", self.api_keys), ("kv_events_keys", self.kv_events_keys)):
            if any(not key or key != key.strip() or not key.isascii() for key in keys):
                problems.append(f"{name} holds an empty key, or one with spaces at its ends or characters beyond ASCII")
        problems.extend(problems_of(self.allowed_origins))
        if self.served_model_name is not None and not self.served_model_name.strip():
            problems.append("served_model_name is empty: leave it out, or give a name")
        for name, value in (("write_timeout", self.write_timeout), ("drain_timeout", self.drain_timeout)):
            if not math.isfinite(value) or value < 0 or (name == "write_timeout" and value == 0):
                problems.append(f"{name} is {value}: it must be a finite number of seconds above zero")
        if not math.isfinite(self.keep_alive_interval) or self.keep_alive_interval < 0:
            problems.append(
                f"keep_alive_interval is {self.keep_alive_interval}: it must be a finite number of seconds or 0"
            )
        if self.max_body_bytes < 1024:
            problems.append(f"max_body_bytes is {self.max_body_bytes}: it must be at least 1024")
        if self.log_level not in LOG_LEVELS:
            problems.append(f"log_level is {self.log_level!r}: it must be one of {', '.join(LOG_LEVELS)}")
        if problems:
            raise ConfigError(problems)


def check_together(engine: EngineConfig, service: ServiceConfig) -> None:
    """Raises `ConfigError` where the settings of the engine and of the service contradict each other."""
    if service.kv_events_keys and engine.kv_events == 0:
        raise ConfigError(
            [
                "kv_events_keys are given, but kv_events is 0, so there are no events to serve:"
                " set kv_events to the number to keep, for example 65536, or leave the keys out"
            ]
        )


LOG_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
SECRET_FIELDS = frozenset({"api_keys", "kv_events_keys"})
