"""The native engine and what belongs to it: the model, the resolved configuration, the inline worker's thread."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from diptych.config import SCRIPTED, EngineConfig
from diptych.errors import (
    ConfigError,
    DiptychError,
    EngineClosedError,
    EngineForkedError,
    EngineStartError,
    InvalidParameterError,
    InvalidPromptError,
    from_kind,
)
from diptych.explanation import Explanation, read_explanation
from diptych.hub import resolve_model
from diptych.kv_events import KvEvents, KvSnapshot
from diptych.model_info import ModelInfo, read_model_info
from diptych.options import encode, engine_options, resolve_config, served_name, start_problems
from diptych.stats import EngineStats
from diptych_core import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diptych_core.engine import Engine, FrameQueue
    from diptych_core.worker import Port

logger = logging.getLogger("diptych")

_KILLED = " (signal: 9 (SIGKILL))"
INLINE_JOIN_S = 10.0
# How soon a start notices that it was given up, and Ctrl-C is answered.
START_SLICE_S = 0.1
# Longer than any engine is waited for; times beyond it overflow clocks.
LONGEST_LIMIT_S = 1e9
Result = TypeVar("Result")


class Ready(msgspec.Struct, frozen=True):
    """What a worker said at its start: KV blocks, its `hello`, and the seconds that its parts took."""

    num_blocks: int
    hello: dict[str, Any]
    timings: dict[str, float]


class EngineHandle:
    """A running engine, for any thread. In a forked child, what asks it for something raises `EngineForkedError`."""

    def __init__(self, config: EngineConfig, given_up: threading.Event | None = None) -> None:
        """Start the engine and block until its worker is ready; may fetch the model. Raises `EngineStartError`.

        Once `given_up` is set, the start ends what it has begun and raises `EngineClosedError`.
        """
        began = time.monotonic()
        folder = resolve_model(config.model, config.revision, weights=config.worker not in SCRIPTED)
        fetched = time.monotonic()
        self.model: ModelInfo = read_model_info(folder, config.max_model_len)
        self.config = resolve_config(config, self.model)
        if problems := start_problems(self.config):
            raise ConfigError(problems)
        self.model_name = served_name(config, self.model)
        self._pid = os.getpid()
        self._closed = threading.Event()
        self._closing = threading.RLock()
        self._inline: threading.Thread | None = None
        self._native = self._start_native(encode(engine_options(self.config, self.model, os.environ)))
        try:
            ready = self._wait_ready(given_up or threading.Event())
        except BaseException:
            self.close(0.0)
            raise
        # Seconds: of finding the model, of the worker's own parts, and of everything together.
        self.timings = {"model": fetched - began, **ready.timings, "total": time.monotonic() - began}
        logger.info("engine for %s is ready: %s", self.model_name, {k: round(v, 3) for k, v in self.timings.items()})

    def frame_queue(self) -> FrameQueue:
        return _translating(self._live().frame_queue)

    def submit(
        self, queue: FrameQueue, prompt: str | Sequence[int], params: bytes, arrived_ns: int, *, chat: bool = False
    ) -> int:
        """Hand a request to the core; returns its number. Raises what is known at once; the rest comes as a frame."""
        native = self._live()
        if isinstance(prompt, bytes | bytearray | memoryview):
            raise InvalidPromptError("the prompt is bytes: expected text or a list of token ids")
        try:
            return _translating(lambda: native.submit(queue, prompt, params, arrived_ns, chat=chat))
        except (OverflowError, TypeError) as error:
            if not isinstance(arrived_ns, int) or not 0 <= arrived_ns < 2**64:
                raise InvalidParameterError(
                    f"arrived_ns={arrived_ns}: expected nanoseconds of time.monotonic_ns()"
                ) from error
            if isinstance(prompt, str):
                raise InvalidPromptError("the prompt holds an unpaired surrogate, which is no text") from error
            raise InvalidPromptError(f"the prompt is neither text nor token ids from 0 to 2^32 - 1: {error}") from error

    def abort(self, request: int) -> None:
        """Free what the request holds. Harmless for a request that has ended, and on a closed engine."""
        if not self._closed.is_set() and not self.forked:
            _translating(lambda: self._native.abort(request))

    def stats(self) -> EngineStats:
        return msgspec.json.decode(_translating(self._live().stats), type=EngineStats)

    def worker_pid(self) -> int | None:
        return self._live().worker_pid()

    def explain(self, request: int) -> Explanation | None:
        """Blocks until the engine's thread has answered, which takes no step's time."""
        native = self._live()
        told = _translating(lambda: native.explain(request))
        return None if told is None else read_explanation(told)

    def kv_events(self, start: int, limit: int) -> KvEvents:
        native = self._live()
        return msgspec.json.decode(_translating(lambda: native.kv_events(start, limit)), type=KvEvents)

    def kv_snapshot(self) -> KvSnapshot:
        native = self._live()
        return msgspec.json.decode(_translating(native.kv_snapshot), type=KvSnapshot)

    @property
    def forked(self) -> bool:
        """Whether this is a forked child of the process that the engine belongs to."""
        return os.getpid() != self._pid

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def close(self, limit_s: float) -> None:
        """End the worker, killed after `limit_s`, and give back every thread, descriptor and mapping.

        Idempotent; a call meanwhile waits. Raises `ValueError` for what is no time to wait.
        """
        limit_s = checked_limit(limit_s)
        if self.forked:
            return
        with self._closing:
            if not self._closed.is_set():
                self._closed.set()
                self._native.close(limit_s)
                self._join_inline()

    def _join_inline(self) -> None:
        if self._inline is not None and self._inline is not threading.current_thread():
            self._inline.join(INLINE_JOIN_S)
            if self._inline.is_alive():
                logger.warning("the inline worker is still in a step %.0f s after the engine was closed", INLINE_JOIN_S)

    def _live(self) -> Engine:
        if self.forked:
            raise EngineForkedError("this engine belongs to the parent process: make a new one in the forked child")
        if self._closed.is_set():
            raise EngineClosedError("the engine is closed")
        return self._native

    def _start_native(self, options: bytes) -> Engine:
        from diptych_core.engine import Engine

        native = _starting(lambda: Engine(options, wait=False))
        port = _starting(native.inline_port)
        if port is not None:
            # A daemon, since the interpreter joins other threads before it runs the hook that would end this one.
            self._inline = threading.Thread(target=_run_inline, args=(port,), name="diptych-worker", daemon=True)
            self._inline.start()
        return native

    def _wait_ready(self, given_up: threading.Event) -> Ready:
        while not given_up.is_set():
            if (ready := _starting(lambda: self._native.ready_within(START_SLICE_S))) is not None:
                return msgspec.json.decode(ready, type=Ready)
        raise EngineClosedError("the engine was closed while it started")


def checked_limit(limit_s: float) -> float:
    """`limit_s` if it is a time to wait, which may be infinite."""
    if not limit_s >= 0.0:
        raise ValueError(f"limit_s={limit_s}: expected seconds to wait for the worker, 0 or more")
    return min(limit_s, LONGEST_LIMIT_S)


def _run_inline(port: Port) -> None:
    """The worker's whole life, in a thread of this process."""
    try:
        from diptych.worker.loop import run

        run(port, port.init())
    except Exception as error:
        logger.exception("the inline worker ended with an error")
        port.fail(type(error).__name__, str(error))


def _starting(call: Callable[[], Result]) -> Result:
    """As `_translating`, and whatever goes wrong is an `EngineStartError`."""
    try:
        return _translating(call)
    except EngineStartError as error:
        # A worker that told why it cannot start is killed afterwards, which is no part of the reason.
        if error.message.endswith(_KILLED) and "(WorkerDied)" not in error.message:
            told = error.message.removesuffix(_KILLED)
            raise type(error)(told, kind=error.kind, details=error.details) from error.__cause__
        raise
    except DiptychError as error:
        raise EngineStartError(error.message, details={"kind": error.kind, **error.details}) from error


def _translating(call: Callable[[], Result]) -> Result:
    """Run a native call; its errors become those of `diptych.errors`."""
    try:
        return call()
    except EngineError as error:
        raise from_kind(error.kind, str(error), getattr(error, "details", "{}")) from error
