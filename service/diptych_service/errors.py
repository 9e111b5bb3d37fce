"""Errors as clients of the OpenAI API expect them: a status, and `{"error": {message, type, param, code}}`."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

import msgspec
from aiohttp import web

from diptych import errors
from diptych_service.schema import ChatRequest, CompletionRequest

logger = logging.getLogger("diptych_service")

# A message quotes what the client sent at most up to here: a body must not be answered with a larger one.
MAX_MESSAGE = 1000
# A field of a request, with the place in it.
_FIELD = re.compile(r"([a-z_]+)(?:\[\d+\]|\.[a-z_]+)*")
_FIELDS = frozenset(ChatRequest.__struct_fields__ + CompletionRequest.__struct_fields__)


class ApiError(Exception):
    """An answer other than success. `code` is stable and snake_case; `param` names the field at fault."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "…"
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    @property
    def kind(self) -> str:
        """Value of `error.type` in traces."""
        return self.code or str(self.status)

    def body(self) -> bytes:
        """The JSON object of the answer, or of the error frame in a stream."""
        error = {"message": self.message, "type": _type(self.status), "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def response(self) -> web.Response:
        return web.Response(status=self.status, body=self.body(), content_type="application/json", headers=self.headers)


class BadRequest(ApiError):
    """A 400 that names the field at fault."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(400, message, code=code, param=param)


def model_not_found(name: str) -> ApiError:
    shown = name if len(name) <= 200 else name[:200] + "…"
    return ApiError(404, f"The model '{shown}' does not exist here.", code="model_not_found", param="model")


def shutting_down() -> ApiError:
    return ApiError(
        503,
        "The service is shutting down: send the request to another replica, or again later.",
        code="shutting_down",
        headers={"Retry-After": "5", "Connection": "close"},
    )


def not_ready() -> ApiError:
    return ApiError(503, "The model is not ready yet: try again later.", code="not_ready", headers={"Retry-After": "5"})


def from_exception(error: Exception, prompt_field: str | None = None) -> ApiError:
    """Any exception as an answer. What nobody foresaw is logged with its traceback and shown without it.

    `prompt_field`: what an error of the prompt names as its `param`.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, errors.DiptychError):
        return _from_engine(error, prompt_field)
    if isinstance(error, web.HTTPException):
        return _from_http(error)
    if isinstance(error, web.RequestPayloadError):
        message = "The body cannot be read: its transfer or content encoding is broken."
        return ApiError(400, message, code="invalid_body", headers={"Connection": "close"})
    if isinstance(error, ConnectionError):
        return ApiError(400, "The client disconnected.", code="aborted", headers={"Connection": "close"})
    logger.error("unexpected error while serving a request", exc_info=error)
    return ApiError(500, "Internal error: the service's log has the details.", code="internal_error")


def _from_engine(error: errors.DiptychError, prompt_field: str | None) -> ApiError:
    if isinstance(error, errors.RequestError):
        code = "context_length_exceeded" if isinstance(error, errors.ContextLengthError) else error.kind
        return ApiError(400, error.message, code=code, param=_param(error, prompt_field))
    if isinstance(error, errors.OverloadedError):
        status = 429 if error.kind == "tenant_queue_full" else 503
        return ApiError(status, error.message, code=error.kind, headers={"Retry-After": str(error.retry_after_s)})
    if isinstance(error, errors.RequestTimeoutError):
        # The time that the client gave is over: OpenAI's libraries would send the request again.
        return ApiError(504, error.message, code=error.kind, headers={"x-should-retry": "false"})
    if isinstance(error, errors.EngineClosedError | errors.EngineStartError):
        return ApiError(503, error.message, code=error.kind, headers={"Retry-After": "5"})
    return ApiError(500, error.message, code=error.kind)


_OF_THE_PROMPT = (errors.InvalidPromptError, errors.ContextLengthError, errors.NeverFitsError, errors.TemplateError)


def _param(error: errors.RequestError, prompt_field: str | None) -> str | None:
    """The first field that the parameters' problems name, by the same path, or where the prompt came from."""
    if isinstance(error, errors.NeverFitsError) and "n" in error.details:
        return "n"
    if isinstance(error, _OF_THE_PROMPT):
        return prompt_field
    if not isinstance(error, errors.InvalidParameterError):
        return None
    name = _FIELD.match(error.problems[0])
    return name[0] if name and name[1] in _FIELDS else None


def _from_http(error: web.HTTPException) -> ApiError:
    """aiohttp's own refusals: unknown path, method, body too large."""
    headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
    if error.status == 404:
        return ApiError(404, "There is nothing at this path.", code="not_found")
    if isinstance(error, web.HTTPMethodNotAllowed):
        message = f"{error.method} is not allowed here; allowed: {', '.join(sorted(error.allowed_methods))}."
        return ApiError(405, message, code="method_not_allowed", headers=headers)
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return ApiError(413, error.text or error.reason, code="request_too_large", headers={"Connection": "close"})
    return ApiError(error.status, error.text or error.reason, headers=headers)


def _type(status: int) -> str:
    known = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
    return known.get(status, "server_error" if status >= 500 else "invalid_request_error")
