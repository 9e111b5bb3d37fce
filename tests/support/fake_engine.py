"""A native engine in Python whose frames the test writes: for what the real one does rarely or at no chosen moment."""

from __future__ import annotations

import json
import os
import select
import threading
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar

EMPTY_STATS: dict[str, Any] = {
    "requests_running": 0,
    "requests_waiting": 0,
    "kv_blocks_total": 8,
    "kv_blocks_used": 2,
    "kv_blocks_cached": 1,
    "prefix_cache_queries": 0,
    "prefix_cache_hits": 0,
    "prompt_tokens": 0,
    "generation_tokens": 0,
    "preemptions": 0,
    "requests_total": {},
    "worker_restarts": 0,
    "epoch": 0,
    "steps": 0,
    "steps_ahead": 0,
    "worker_alive": True,
    "histograms": {},
    "last_restart": None,
    "open_requests": 0,
}


@dataclass(frozen=True)
class Accepted:
    prompt_tokens: int = 3
    prompt_ids: list[int] | None = None
    prompt_text: str | None = None


@dataclass(frozen=True)
class Finished:
    reason: str = "length"
    stop_string: str | None = None
    stop_token: int | None = None
    prompt_tokens: int = 3
    completion_tokens: int = 2
    cached_tokens: int = 0
    mean_logprob: float | None = None
    reasoning_tokens: int | None = None
    timings: tuple[int, int, int, int, int, int, int] = (0, 0, 0, 0, 0, 0, 0)
    preemptions: int = 0
    events: list[tuple[int, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Failure:
    kind: str
    message: str = "it failed"
    details: str = "{}"
    timings: tuple[int, int, int, int, int, int, int] = (0, 0, 0, 0, 0, 0, 0)
    prompt_tokens: int = 3
    completion_tokens: int = 0


@dataclass(frozen=True)
class Frame:
    request: int
    choice: int = 0
    accepted: Accepted | None = None
    text: str = ""
    reasoning: str = ""
    calls: list[tuple[int, str | None, str]] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[tuple[tuple[int, float, bytes], int, list[tuple[int, float, bytes]]]] = field(default_factory=list)
    prompt_logprobs: list[tuple[tuple[int, float, bytes], int, list[tuple[int, float, bytes]]]] = field(
        default_factory=list
    )
    finished: Finished | None = None
    failure: Failure | None = None
    explanation: str | None = None


class FrameQueue:
    def __init__(self) -> None:
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._frames: list[Frame] = []
        self._lock = threading.Lock()
        self.closed = False

    def fileno(self) -> int:
        return self._event

    def push(self, frame: Frame) -> None:
        with self._lock:
            if not self.closed:
                self._frames.append(frame)
                os.eventfd_write(self._event, 1)

    def drain(self) -> list[Frame]:
        with self._lock:
            frames, self._frames = self._frames, []
            if frames:
                os.eventfd_read(self._event)
        return frames

    def wait(self, timeout_s: float) -> bool:
        return bool(select.select([self._event], [], [], timeout_s)[0])

    def close(self) -> None:
        with self._lock:
            if not self.closed:
                self.closed = True
                os.close(self._event)


class Engine:
    """Set `on_submit` to answer requests as they come; `made` holds every engine in the order of construction."""

    made: ClassVar[list[Engine]] = []
    starts_after_s: float = 0.0
    closes_after_s: float = 0.0

    def __init__(self, options: bytes, *, wait: bool = True) -> None:
        self.options = json.loads(options)
        self.submitted: list[dict[str, Any]] = []
        self.queues: list[FrameQueue] = []
        self.aborted: list[int] = []
        self.closed = 0
        self.stats_now = dict(EMPTY_STATS)
        self.on_submit: Any = None
        Engine.made.append(self)

    def wait_ready(self) -> bytes:
        return json.dumps({"num_blocks": 8, "hello": {}, "timings": {"weights": 0.5}}).encode()

    def ready_within(self, limit_s: float) -> bytes | None:
        if self.starts_after_s > 0.0:
            time.sleep(limit_s)
            self.starts_after_s -= limit_s
            return None
        return self.wait_ready()

    def inline_port(self) -> None:
        return None

    def frame_queue(self) -> FrameQueue:
        self.queues.append(FrameQueue())
        return self.queues[-1]

    def submit(self, queue: FrameQueue, prompt: Any, params: bytes, arrived_ns: int, *, chat: bool = False) -> int:
        number = len(self.submitted)
        self.submitted.append(
            {"queue": queue, "prompt": prompt, "params": json.loads(params), "arrived_ns": arrived_ns, "chat": chat}
        )
        if self.on_submit is not None:
            self.on_submit(self, number)
        return number

    def emit(self, request: int, **content: Any) -> None:
        self.submitted[request]["queue"].push(Frame(request, **content))

    def abort(self, request: int) -> None:
        """As the core does, the end follows: admitted 2 ms, first token 3 ms, end 4 ms after arrival."""
        self.aborted.append(request)
        arrived = self.submitted[request]["arrived_ns"]
        moments = tuple(arrived + 1_000_000 * step for step in range(5))
        self.emit(request, finished=Finished("abort", timings=moments))  # type: ignore[arg-type]

    def stats(self) -> bytes:
        return json.dumps(self.stats_now).encode()

    def worker_pid(self) -> int | None:
        return None

    def close(self, limit_s: float) -> None:
        time.sleep(self.closes_after_s)
        self.closed += 1


def answer_at_once(engine: Engine, number: int) -> None:
    """Accepted, two tokens, the end: three frames, with moments one millisecond apart."""
    arrived = engine.submitted[number]["arrived_ns"]
    engine.emit(number, accepted=Accepted())
    engine.emit(number, text="a", token_ids=[5])
    moments = tuple(arrived + 1_000_000 * step for step in range(5))
    engine.emit(number, text="b", token_ids=[6], finished=Finished(timings=moments))  # type: ignore[arg-type]


def answer_soon(engine: Engine, number: int) -> None:
    """As `answer_at_once`, from another thread a moment later."""

    def later() -> None:
        time.sleep(0.005)
        answer_at_once(engine, number)

    threading.Thread(target=later).start()
