"""The native engine and what belongs to it: the model, the resolved configuration, the inline worker's thread."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from diptych.config import SCRIPTED, EngineConfig
from diptych.errors import (
    ConfigError,
    DiptychError,
    EngineClosedError,
    EngineForkedError,
    InvalidPromptError,
    from_kind,
)
from diptych.hub import resolve_model
from diptych.model_info import ModelInfo, read_model_info
from diptych.options import encode, engine_options, resolve_config, served_name, start_problems
from diptych.stats import EngineStats
from diptych_core import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diptych_core.engine import Engine, FrameQueue
    from diptych_core.worker import Port

logger = logging.getLogger("diptych")

INLINE_JOIN_S = 10.0


class EngineHandle:
    """A running engine, for any thread. In a forked child, what asks it for something raises `EngineForkedError`."""

    def __init__(self, config: EngineConfig) -> None:
        """Start the engine and block until its worker is ready; may fetch the model. Raises `EngineStartError`."""
        began = time.monotonic()
        folder = resolve_model(config.model, config.revision, weights=config.worker not in SCRIPTED)
        self.model: ModelInfo = read_model_info(folder, config.max_model_len)
        self.config = resolve_config(config, self.model)
        if problems := start_problems(self.config):
            raise ConfigError(problems)
        self.model_name = served_name(config, self.model)
        self._pid = os.getpid()
        self._closed = threading.Event()
        self._inline: threading.Thread | None = None
        self._native = self._start_native(encode(engine_options(self.config, self.model, os.environ)))
        try:
            self.started = self._wait_ready()
        except BaseException:
            self.close(0.0)
            raise
        logger.info("engine for %s ready after %.2f s: %s", self.model_name, time.monotonic() - began, self.started)

    def frame_queue(self) -> FrameQueue:
        return self._live().frame_queue()

    def submit(
        self, queue: FrameQueue, prompt: str | Sequence[int], params: bytes, arrived_ns: int, *, chat: bool = False
    ) -> int:
        """Hand a request to the core; returns its number. Raises what is known at once; the rest comes as a frame."""
        try:
            return self._live().submit(queue, prompt, params, arrived_ns, chat=chat)
        except EngineError as error:
            raise translated(error) from error
        except (OverflowError, TypeError, UnicodeEncodeError) as error:
            what = "valid text" if isinstance(prompt, str) else "a list of token ids, each 0 or above"
            raise InvalidPromptError(f"the prompt is not {what}: {error}") from error

    def abort(self, request: int) -> None:
        """Free what the request holds. Harmless for a request that has ended, and on a closed engine."""
        if not self._closed.is_set() and not self.forked:
            self._native.abort(request)

    def stats(self) -> EngineStats:
        return msgspec.json.decode(self._live().stats(), type=EngineStats)

    def worker_pid(self) -> int | None:
        return self._live().worker_pid()

    @property
    def forked(self) -> bool:
        """Whether this is a forked child of the process that the engine belongs to."""
        return os.getpid() != self._pid

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def close(self, limit_s: float) -> None:
        """End the worker, killed after `limit_s`, and give back every thread, descriptor and mapping. Idempotent."""
        if self.forked or self._closed.is_set():
            return
        self._closed.set()
        self._native.close(limit_s)
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

        try:
            native = Engine(options)
            port = native.inline_port()
        except EngineError as error:
            raise translated(error) from error
        if port is not None:
            # A daemon, since the interpreter joins other threads before it runs the hook that would end this one.
            self._inline = threading.Thread(target=_run_inline, args=(port,), name="diptych-worker", daemon=True)
            self._inline.start()
        return native

    def _wait_ready(self) -> dict[str, object]:
        try:
            return msgspec.json.decode(self._native.wait_ready(), type=dict[str, object])
        except EngineError as error:
            raise translated(error) from error


def _run_inline(port: Port) -> None:
    """The worker's whole life, in a thread of this process."""
    try:
        from diptych.worker.loop import run

        run(port, msgspec.msgpack.decode(port.init()))
    except Exception as error:
        logger.exception("the inline worker ended with an error")
        port.fail(type(error).__name__, str(error))


def translated(error: EngineError) -> DiptychError:
    return from_kind(error.kind, str(error), getattr(error, "details", "{}"))
