"""The bytes of a request body, from peers that may stop in the middle of it."""

from __future__ import annotations

import asyncio

from aiohttp import web

from diptych_service.errors import ApiError
from diptych_service.protocol import too_large

# How long a peer may send nothing before its body is complete.
IDLE_SECONDS = 30.0


async def receive_body(request: web.Request) -> bytes:
    """The whole body, at most the application's limit.

    A peer that pauses for longer than IDLE_SECONDS is answered with 408. So is one whose chunked encoding breaks off
    in garbage: aiohttp's parser then gives up without telling whoever reads.
    """
    body = bytearray()
    limit = request.client_max_size
    if limit and (request.content_length or 0) > limit:
        raise too_large(limit, request.content_length or 0)
    try:
        while True:
            async with asyncio.timeout(IDLE_SECONDS):
                data = await request.content.readany()
            if not data:
                return bytes(body)
            body += data
            if limit and len(body) > limit:
                raise too_large(limit, len(body))
    except TimeoutError:
        message = f"The rest of the body did not arrive within {IDLE_SECONDS:g} s."
        raise ApiError(408, message, code="body_timeout", headers={"Connection": "close"}) from None
