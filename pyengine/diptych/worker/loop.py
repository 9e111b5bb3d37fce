"""The life of a model worker: start, say so, run steps until told to leave. The same in a process and in a thread."""

import gc
import logging
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from diptych.worker.init import WorkerInit, decode_init

if TYPE_CHECKING:
    # Imported late by `run`, which measures how long that takes.
    from diptych.worker.runner import ModelRunner
    from diptych.worker.startup import Started

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
        import torch

        from diptych.worker import startup

        import_s = time.monotonic() - began
        with torch.inference_mode():
            started = startup.start(settings)
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
    with torch.inference_mode():
        _serve(port, started)
    return True


def _serve(port: WorkerPort, started: "Started") -> None:
    runner = started.runner
    runner.executors.on_layer = port.progress
    while (work := port.next()) is not None:
        if hasattr(work, "reply"):
            _answer(work, runner)
        else:
            _run_step(work, runner)
        # The arrays of a step are views of its arena, which is not ours any more.
        del work


def _run_step(step: Any, runner: "ModelRunner") -> None:
    def forward_done(kind: str) -> None:
        # In a mixed step both parts end together: the linear layers ran fused.
        for part in ("prefill", "decode"):
            if kind in (part, "mixed"):
                step.mark(f"{part}_done")

    step.mark("start")
    try:
        result = runner.run(step, forward_done)
    except Exception as error:
        # Whatever it was, the host decides what becomes of the requests.
        log.exception("step %d failed", step.step)
        step.publish_error(type(error).__name__, str(error))
        return
    step.publish(result.status.numpy(), result.ids.numpy())


def _answer(control: Any, runner: "ModelRunner") -> None:
    if control.name == "reset":
        runner.state.reset()
        control.reply(msgspec.msgpack.encode({}))
        return
    if control.name == "stats":
        control.reply(msgspec.msgpack.encode({"pid": os.getpid(), "steps": dict(runner.executors.steps)}))
        return
    raise ValueError(f"the host asks for {control.name!r}, which this worker does not know: use one version of diptych")
