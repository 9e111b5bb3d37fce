"""Every error that Diptych raises to its user, under one base class.

The service maps classes to HTTP statuses and `kind` to an error code, so `kind` is stable, snake_case and free of data;
numbers stand in `details`, which holds only what JSON can.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class DiptychError(Exception):
    """Base of all errors. `kind` names the case, `details` holds its numbers as plain JSON values."""

    kind: str = "error"

    def __init__(self, message: str, *, kind: str | None = None, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        if kind is not None:
            self.kind = kind
        self.details: dict[str, Any] = dict(details or {})


class ConfigError(DiptychError, ValueError):
    """The configuration is wrong. Every problem stands in `problems`, one line each, and in the message."""

    kind = "config"

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        head = "the configuration is wrong" if len(problems) == 1 else f"the configuration has {len(problems)} problems"
        super().__init__(f"{head}: " + "; ".join(problems), details={"problems": self.problems})


class EngineStartError(DiptychError):
    """The engine could not start: no model, no memory, or a worker that did not become ready."""

    kind = "engine_start"


class ModelError(EngineStartError):
    """The model named in the configuration cannot be found, fetched or read."""

    kind = "model"


class EngineClosedError(DiptychError):
    """The engine is closed, or was never started."""

    kind = "engine_closed"


class EngineForkedError(DiptychError):
    """The engine is used in a forked child of the process that made it. Make a new engine in the child."""

    kind = "engine_forked"


class RequestError(DiptychError):
    """The request is wrong and no repetition will help: HTTP 400."""

    kind = "invalid_request"


class InvalidParameterError(RequestError, ValueError):
    """Sampling parameters out of range. Every problem stands in `problems` and in the message.

    `kind` is invalid_grammar for structured outputs that cannot be compiled, and grammar_failed where an output cannot
    go on under its grammar, because that takes too much work.
    """

    kind = "invalid_parameter"

    def __init__(
        self,
        message: str,
        *,
        kind: str | None = None,
        details: Mapping[str, Any] | None = None,
        problems: Sequence[str] = (),
    ) -> None:
        super().__init__(message, kind=kind, details=details)
        self.problems = list(problems) or [message]


class InvalidPromptError(RequestError):
    """The prompt is empty, holds an id outside the vocabulary, or is not valid text."""

    kind = "invalid_prompt"


class TemplateError(RequestError):
    """The chat template refused the messages, or the model has none."""

    kind = "template"


class ContextLengthError(RequestError):
    """Prompt and max_tokens exceed the model's context. `details`: prompt_tokens, max_tokens, max_model_len."""

    kind = "context_length"

    def without_max_tokens(self) -> ContextLengthError:
        """The same for a request that named no max_tokens: the core took the least it can, of which nobody spoke."""
        details = {name: value for name, value in self.details.items() if name != "max_tokens"}
        if not {"prompt_tokens", "max_model_len"} <= details.keys():
            return self
        message = (
            f"This model's maximum context length is {details['max_model_len']} tokens, but the prompt has "
            f"{details['prompt_tokens']} and leaves no room for an answer: shorten it"
        )
        return ContextLengthError(message, details=details)


class NeverFitsError(RequestError):
    """The request needs more KV blocks than the whole pool has."""

    kind = "never_fits"


class OverloadedError(DiptychError):
    """There is more work than can be done in time: HTTP 503, or 429 where the caller's own is too much.

    `kind`: queue_full, queued_tokens, too_late (the first token would come later than it may),
    tenant_queue_full, or grammars_busy (too many grammars are being compiled).
    `retry_after_s` is estimated from the backlog, in whole seconds, at least 1.
    """

    kind = "queue_full"

    def __init__(
        self,
        message: str,
        *,
        kind: str | None = None,
        retry_after_s: int = 1,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, kind=kind, details={**(details or {}), "retry_after_s": retry_after_s})
        self.retry_after_s = retry_after_s


class RequestTimeoutError(DiptychError, TimeoutError):
    """The request's `timeout` or `ttft_timeout` passed before it had a token: HTTP 504. `kind` says which."""

    kind = "timeout"


class EngineFailure(DiptychError):
    """The request failed through no fault of its own: HTTP 500. `kind` says how (nan_logits, worker_died, …)."""

    kind = "engine_failure"


class RequestAborted(DiptychError):
    """The request was aborted from elsewhere than its own stream, for example by `AsyncEngine.abort`."""

    kind = "aborted"


# Kinds of `OverloadedError`.
OVERLOADS = frozenset({"queue_full", "tenant_queue_full", "queued_tokens", "too_late", "grammars_busy"})

_BY_KIND: dict[str, Callable[..., DiptychError]] = {
    "invalid_prompt": InvalidPromptError,
    "invalid_parameter": InvalidParameterError,
    "invalid_grammar": InvalidParameterError,
    "grammar_failed": InvalidParameterError,
    "invalid_request": RequestError,
    "template": TemplateError,
    "context_length": ContextLengthError,
    "never_fits": NeverFitsError,
    "engine_closed": EngineClosedError,
    "engine_forked": EngineForkedError,
    "engine_start": EngineStartError,
    "timeout": RequestTimeoutError,
    "ttft_timeout": RequestTimeoutError,
}


# What the native engine's own exceptions call what has a name here.
_SYNONYMS = {"closed": "engine_closed", "forked": "engine_forked", "start": "engine_start", "options": "engine_start"}


def from_kind(kind: str, message: str, details: str | Mapping[str, Any] = "{}") -> DiptychError:
    """The error for a failure reported by the core. A kind without a class of its own is an `EngineFailure`."""
    kind = _SYNONYMS.get(kind, kind)
    parsed = json.loads(details) if isinstance(details, str) else details
    if not isinstance(parsed, Mapping):
        parsed = {"details": parsed}
    if kind in OVERLOADS:
        told = parsed.get("retry_after_s", 1)
        return OverloadedError(message, kind=kind, retry_after_s=told, details=parsed)
    return _BY_KIND.get(kind, EngineFailure)(message, kind=kind, details=parsed)


__all__ = [
    "ConfigError",
    "ContextLengthError",
    "DiptychError",
    "EngineClosedError",
    "EngineFailure",
    "EngineForkedError",
    "EngineStartError",
    "InvalidParameterError",
    "InvalidPromptError",
    "ModelError",
    "NeverFitsError",
    "OverloadedError",
    "RequestAborted",
    "RequestError",
    "RequestTimeoutError",
    "TemplateError",
    "from_kind",
]
