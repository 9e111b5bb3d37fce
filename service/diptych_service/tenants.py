"""Whose a request is: tenants of one priority share the engine by their weights, however much each of them asks.

With API keys, the tenant is the key: `key-` and the first twelve hexadecimal digits of its SHA-256, under which
`tenant_weights` knows it. Without keys it is the header `x-diptych-tenant`, which a trusted proxy sets.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from aiohttp import web

from diptych_service.errors import BadRequest

HEADER = "x-diptych-tenant"


class ApiKey(NamedTuple):
    """Which of the service's keys a request came with, from 0, and the tenant that it stands for."""

    number: int
    tenant: str


class Caller(NamedTuple):
    """Who asks. `key_number`: which of the service's keys was sent, if it has any."""

    tenant: str | None = None
    key_number: int | None = None


ANYBODY = Caller()

# Set where keys are required.
API_KEY = web.RequestKey("api_key", ApiKey)

_PRINTABLE = re.compile(r"[\x21-\x7e]{1,256}")


def name_of_key(digest: bytes) -> str:
    """The tenant of an API key with this SHA-256."""
    return f"key-{digest.hex()[:12]}"


def caller_of(request: web.Request, ignored: list[str]) -> Caller:
    """Who asks; a header that does not count is added to `ignored`. Raises 400 for one that names nobody."""
    given = request.headers.get(HEADER)
    key: ApiKey | None = request.get(API_KEY)
    if key is not None:
        if given is not None:
            ignored.append(HEADER)
        return Caller(key.tenant, key.number)
    if given is not None and not _PRINTABLE.fullmatch(given):
        message = f"The header {HEADER} must be 1 to 256 printable ASCII characters without spaces."
        raise BadRequest(message, param=HEADER, code="invalid_parameter")
    return Caller(given)
