"""An engine with a scripted worker, driven through `diptych_core` alone, and the oracle of its hash mode."""

import json
import struct
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

import diptych_core
from diptych_core.engine import Accepted, Engine, Failure, Finished, FrameQueue

VOCABULARY = 600
SPECIAL_IDS = [0, 1, 2]
EOS_ID = 2

LIMITS: dict[str, Any] = {
    "block_size": 4,
    "max_running": 8,
    "max_batched_tokens": 32,
    "max_prefill_tokens": None,
    "max_model_len": 256,
    "max_queued_requests": 64,
    "prefix_cache": True,
    "overlap_depth": 0,
}
PARAMS: dict[str, Any] = {
    "max_tokens": 8,
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "seed": None,
    "min_tokens": 0,
    "logit_bias": [],
    "stop": [],
    "stop_token_ids": [],
    "ignore_eos": False,
    "include_stop_str_in_output": False,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "add_special_tokens": True,
    "return_prompt_ids": False,
    "cache_salt": "",
    "cache_ttl": None,
    "cache_retention": 0,
    "n": 1,
    "mean_logprob": False,
}


def hashed_continuation(prompt: list[int], count: int) -> list[int]:
    """What the scripted worker answers in hash mode."""
    ids = list(prompt)
    for _ in range(count):
        id = xxhash.xxh3_64_intdigest(struct.pack(f"<{len(ids)}I", *ids)) % VOCABULARY
        while id in SPECIAL_IDS:
            id = (id + 1) % VOCABULARY
        ids.append(id)
    return ids[len(prompt) :]


def engine_options(
    folder: Path, kind: str = "scripted_thread", *, worker: dict[str, Any] | None = None, **changes: Any
) -> bytes:
    """Options of an engine; `worker` changes the scripted worker's own, keywords change limits."""
    scripted = {"num_blocks": 129, "script": None, "step_ms": 0.0, "eos_id": EOS_ID, "special_ids": SPECIAL_IDS}
    return json.dumps(
        {
            "worker": {
                "kind": kind,
                "python": sys.executable,
                "environment_remove": [],
                "options": scripted | (worker or {}),
                "start_timeout_s": 60,
            },
            "limits": LIMITS | changes,
            "model_folder": str(folder),
            "vocabulary": VOCABULARY,
            "eos_ids": [EOS_ID],
        }
    ).encode()


@contextmanager
def running(options: bytes) -> Iterator[Engine]:
    engine = Engine(options)
    try:
        engine.wait_ready()
        yield engine
    finally:
        engine.close(10.0)


def stats(engine: Engine) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(engine.stats())
    return parsed


def wait_idle(engine: Engine, limit_s: float = 10.0) -> None:
    """Waits until no block is in use: an aborted request keeps its own until the steps launched before have retired."""
    deadline = time.monotonic() + limit_s
    while (used := stats(engine)["kv_blocks_used"]) or stats(engine)["requests_running"]:
        assert time.monotonic() < deadline, f"{used} blocks are still in use"
        time.sleep(0.01)


def submit(engine: Engine, queue: FrameQueue, prompt: str | list[int], *, chat: bool = False, **params: Any) -> int:
    changed = json.dumps(PARAMS | params).encode()
    return engine.submit(queue, prompt, changed, diptych_core.now_ns(), chat=chat)


@dataclass
class Answer:
    """All frames of one request, joined."""

    accepted: Accepted | None = None
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finished: Finished | None = None
    failure: Failure | None = None

    @property
    def ended(self) -> bool:
        return self.finished is not None or self.failure is not None


class Reader:
    """Collects the answers of one queue."""

    def __init__(self, queue: FrameQueue) -> None:
        self.queue = queue
        self.answers: dict[int, Answer] = {}

    def drain(self) -> None:
        for frame in self.queue.drain():
            answer = self.answers.setdefault(frame.request, Answer())
            assert not answer.ended, f"a frame of request {frame.request} after its end"
            answer.accepted = frame.accepted or answer.accepted
            answer.text += frame.text
            answer.token_ids += frame.token_ids
            answer.finished, answer.failure = frame.finished, frame.failure

    def wait_tokens(self, request: int, count: int, limit_s: float = 30.0) -> Answer:
        """Reads until `request` has `count` output ids or ended."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            self.drain()
            answer = self.answers.get(request)
            if answer and (answer.ended or len(answer.token_ids) >= count):
                return answer
            self.queue.wait(0.5)
        raise TimeoutError(f"request {request} after {limit_s} s: {self.answers.get(request)}")

    def wait_end(self, requests: Iterable[int], limit_s: float = 60.0) -> list[Answer]:
        return [self.wait_tokens(request, sys.maxsize, limit_s) for request in requests]
