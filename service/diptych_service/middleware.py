"""What surrounds every request: errors in one shape, request ids, keys, and refusal while draining."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from diptych_service.errors import ApiError, from_exception, shutting_down
from diptych_service.lifecycle import LIFECYCLE
from diptych_service.protocol import SERVER_NAME
from diptych_service.tenants import API_KEY, ApiKey, name_of_key
from diptych_service.tracing import OPERATIONS, response_headers

KV_EVENTS_PATH = "/v1/kv_events"
_REQUEST_ID = web.RequestKey("request_id", str)
_PRINTABLE = re.compile(r"[\x21-\x7e]{1,256}")


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every exception into an OpenAI-shaped answer. The client's request id is only ever echoed."""
    given = request.headers.get("X-Request-Id", "")
    request[_REQUEST_ID] = given if _PRINTABLE.fullmatch(given) else secrets.token_hex(16)
    try:
        return await handler(request)
    except Exception as error:
        return from_exception(error).response()


async def add_headers(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Signal handler: before the headers of any answer leave."""
    request_id = request.get(_REQUEST_ID)
    if request_id is not None:
        response.headers["X-Request-Id"] = request_id
    response.headers["Server"] = SERVER_NAME
    response.headers.update(response_headers(request))


@web.middleware
async def refuse_while_draining(request: web.Request, handler: Handler) -> web.StreamResponse:
    if request.app[LIFECYCLE].draining and request.path in OPERATIONS:
        raise shutting_down()
    return await handler(request)


def require_key(api_keys: Sequence[str]) -> Middleware:
    """Paths below /v1 need one of the keys, if there are any; probes and metrics stay open."""
    hashes = hash_keys(api_keys)

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        # Its own keys, and not these, open the events of the cache.
        if hashes and request.path.startswith("/v1/") and request.path != KV_EVENTS_PATH:
            request[API_KEY] = check_key(request, hashes)
        return await handler(request)

    return check


def hash_keys(keys: Sequence[str]) -> list[bytes]:
    """What `check_key` compares with, computed once."""
    return [hashlib.sha256(key.encode()).digest() for key in keys]


def check_key(request: web.Request, hashes: Sequence[bytes]) -> ApiKey:
    """The valid key that was sent, or raises. Compares with every key, in a time that tells nothing about them."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    given = hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).digest()
    matches = [hmac.compare_digest(given, expected) for expected in hashes]
    if scheme.lower() != "bearer" or not any(matches):
        raise ApiError(
            401,
            "A valid API key is required: send it as 'Authorization: Bearer KEY'.",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
    return ApiKey(matches.index(True), name_of_key(given))
