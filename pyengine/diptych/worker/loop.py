"""The life of a model worker: start, say so, run steps until told to leave. The same in a process and in a thread."""

import gc
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from diptych.worker.init import WorkerInit, decode_init

if TYPE_CHECKING:
    # Imported late by `run`, which measures how long that takes.
    from diptych.worker.preparation import Started, StepWorker

log = logging.getLogger(__name__)


class WorkerPort(Protocol):
    """What the loop uses of `diptych_core.worker.Port`, which documents it."""

    def hello(self, info: bytes) -> None: ...
    def ready(self, info: bytes) -> None: ...
    def fail(self, error_class: str, message: str) -> None: ...
    def next(self) -> Any: ...
    def progress(self) -> None: ...


def run(port: WorkerPort, init: bytes | Mapping[str, Any]) -> bool:
    """Runs a model worker on `port` until the host tells it to leave or is gone. `init` is the host's first message.

    Gives False when the worker could not start; the host has then been told why.
    """
    try:
        settings = decode_init(init) if isinstance(init, bytes) else msgspec.convert(init, WorkerInit)
        began = time.monotonic()
        start = _starter(settings.model_options().kernels)
        import_s = time.monotonic() - began
        started = start(settings)
    except Exception as error:
        log.exception("the worker could not start")
        port.fail(type(error).__name__, str(error))
        return False
    timings = {"import": round(import_s, 6), **started.timings}
    log.info("ready after %.2f s: %s", sum(timings.values()), ", ".join(f"{k} {v:.3f} s" for k, v in timings.items()))
    if settings.kind == "process":
        # What exists now lives as long as the process: no collection need ever look at it again.
        gc.collect()
        gc.freeze()
    port.hello(msgspec.msgpack.encode(started.hello))
    port.ready(msgspec.msgpack.encode(timings))
    _serve(port, started.worker)
    return True


def _starter(kernels: str) -> "Callable[[WorkerInit], Started]":
    """torch is imported for the kernels that need it, and for no others: that alone takes seconds."""
    if kernels == "native":
        from diptych.worker import native

        return native.start
    from diptych.worker import reference

    return reference.start


def _serve(port: WorkerPort, worker: "StepWorker") -> None:
    while (work := port.next()) is not None:
        if hasattr(work, "reply"):
            _answer(work, worker)
        else:
            _run_step(work, worker, port)
        # The arrays of a step are views of its arena, which is not ours any more.
        del work


def _run_step(step: Any, worker: "StepWorker", port: WorkerPort) -> None:
    step.mark("start")
    try:
        status, ids, logprobs, *candidates = worker.run(step, port)
    except Exception as error:
        # Whatever it was, the host decides what becomes of the requests.
        log.exception("step %d failed", step.step)
        step.publish_error(type(error).__name__, str(error))
        return
    step.publish(status, ids, logprobs, (candidates[0], candidates[1]))


def _answer(control: Any, worker: "StepWorker") -> None:
    if control.name == "reset":
        worker.reset()
        control.reply(msgspec.msgpack.encode({}))
        return
    if control.name == "stats":
        control.reply(msgspec.msgpack.encode({"pid": os.getpid(), **worker.stats()}))
        return
    raise ValueError(f"the host asks for {control.name!r}, which this worker does not know: use one version of diptych")
