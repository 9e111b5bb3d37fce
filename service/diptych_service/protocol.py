"""Refusals below the application: of what is no HTTP, in the shape of all other errors and without aiohttp's name.

aiohttp offers no hook for the answers of its protocol, so its server is given a protocol with another `handle_error`.
"""

from __future__ import annotations

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from diptych_service.errors import ApiError

SERVER_NAME = "diptych"


class _Protocol(web.RequestHandler):
    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to a request that no handler sees. Logs, and raises where an answer has begun, as before."""
        super().handle_error(request, status, exc, message)
        response = _refusal(status, exc).response()
        response.headers["Server"] = SERVER_NAME
        response.force_close()
        return response


class _Server(web.Server):
    def __call__(self) -> web.RequestHandler:
        protocol = super().__call__()
        protocol.__class__ = _Protocol
        return protocol


def answer_in_json(runner: web.AppRunner) -> None:
    """To be called between the runner's `setup` and the start of its sites."""
    assert runner.server is not None
    runner.server.__class__ = _Server


async def expect_handler(request: web.Request) -> web.StreamResponse | None:
    """Answers `Expect: 100-continue`, at once with a 413 if the announced body is too large."""
    if request.headers["Expect"].lower() != "100-continue":
        message = "The only expectation that is met here is 'Expect: 100-continue'."
        return ApiError(417, message, code="expectation_failed", headers={"Connection": "close"}).response()
    limit = request.client_max_size
    if limit and (request.content_length or 0) > limit:
        return too_large(limit, request.content_length or 0).response()
    if request.version >= (1, 1):
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the answer itself has not begun
    return None


def too_large(limit: int, size: int) -> ApiError:
    message = f"The body has {size} bytes or more; at most {limit} are taken."
    return ApiError(413, message, code="request_too_large", headers={"Connection": "close"})


def _refusal(status: int, error: BaseException | None) -> ApiError:
    if status >= 500:
        return ApiError(500, "Internal error: the service's log has the details.", code="internal_error")
    if isinstance(error, LineTooLong):
        message = "A line of the request's head, or its URL, is too long: at most 8,190 bytes are taken."
        return ApiError(status, message, code="header_too_large")
    return ApiError(status, "The request is no valid HTTP/1.1.", code="invalid_http")
