"""Whose a request is: tenants of one priority share the engine by their weights, however much each of them asks.

With API keys, the tenant is the key: `key-` and the first twelve hexadecimal digits of its SHA-256, under which
`tenant_weights` knows it. Without keys it is the header `x-diptych-tenant`, which a trusted proxy sets.
"""

from __future__ import annotations

import re

from aiohttp import web

from diptych_service.errors import BadRequest

HEADER = "x-diptych-tenant"

# Set where keys are required.
KEY_TENANT = web.RequestKey("key_tenant", str)

_PRINTABLE = re.compile(r"[\x21-\x7e]{1,256}")


def name_of_key(digest: bytes) -> str:
    """The tenant of an API key with this SHA-256."""
    return f"key-{digest.hex()[:12]}"


def tenant_of(request: web.Request, ignored: list[str]) -> str | None:
    """The tenant of a request; a header that does not count is added to `ignored`. Raises 400 for one that is none."""
    given = request.headers.get(HEADER)
    tenant: str | None = request.get(KEY_TENANT)
    if tenant is not None:
        if given is not None:
            ignored.append(HEADER)
        return tenant
    if given is not None and not _PRINTABLE.fullmatch(given):
        message = f"The header {HEADER} must be 1 to 256 printable ASCII characters without spaces."
        raise BadRequest(message, param=HEADER, code="invalid_parameter")
    return given
