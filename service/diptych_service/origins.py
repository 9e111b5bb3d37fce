"""Pages of other origins in a browser (CORS): which may call the service, and the headers that say so.

Nothing is said unless `allowed_origins` names somebody: a browser then lets no page read an answer but one that came
from where the service is. Cookies play no part here, so credentials are never allowed.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

ANY = "*"
# As browsers write it: a scheme, a host in lower case, a port that is not the scheme's own, and no path.
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")
METHODS = "GET, POST"
# How long a browser remembers the answer to a preflight request: ten minutes.
MAX_AGE = "600"

PrepareHandler = Callable[[web.BaseRequest, web.StreamResponse], Awaitable[None]]


def problems_of(origins: Sequence[str]) -> list[str]:
    """A line on each that no browser would send."""
    return [
        f"allowed_origins holds {origin!r}: give {ANY}, or scheme://host or scheme://host:port in lower case and with "
        "nothing after it, as browsers send it"
        for origin in origins
        if origin != ANY and not ORIGIN.fullmatch(origin)
    ]


def answer_preflights(origins: Sequence[str]) -> Middleware:
    """Answers a browser that asks whether a page may send its request. It asks without a key, and of any path."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not _is_preflight(request) or _allowed(request, origins) is None:
            return await handler(request)
        # `*` would not cover Authorization; whatever else a client adds has no effect here.
        asked = request.headers.get("Access-Control-Request-Headers")
        headers = {"Access-Control-Allow-Methods": METHODS, "Access-Control-Max-Age": MAX_AGE}
        if asked:
            headers["Access-Control-Allow-Headers"] = asked
        return web.Response(status=204, headers=headers)

    return answer


def allow_origins(origins: Sequence[str]) -> PrepareHandler:
    """Signal handler: every answer, refusals too, says whether the page that asked may read it."""

    async def add(request: web.BaseRequest, response: web.StreamResponse) -> None:
        if not origins:
            return
        allowed = _allowed(request, origins)
        if allowed is not None:
            response.headers["Access-Control-Allow-Origin"] = allowed
            response.headers["Access-Control-Expose-Headers"] = "*"
        if ANY not in origins:
            # Caches must not give one page's answer to another.
            response.headers.add("Vary", "Origin")

    return add


def _is_preflight(request: web.Request) -> bool:
    return request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers


def _allowed(request: web.BaseRequest, origins: Sequence[str]) -> str | None:
    """What `Access-Control-Allow-Origin` has to say to the page that asks; None to those that are not named."""
    origin = request.headers.get("Origin")
    if origin is None:
        return None
    if ANY in origins:
        return ANY
    return origin if origin in origins else None
