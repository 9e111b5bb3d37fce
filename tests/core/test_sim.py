"""The golden traces of `tests/traces` through Python, with the same plans as in Rust."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diptych_core.sim import Core, replay

TRACES = sorted((Path(__file__).parents[1] / "traces").glob("*.jsonl"))
CONFIG = {"block_size": 4, "num_blocks": 17, "max_running": 4, "max_batched_tokens": 16, "max_model_len": 64}


def records(trace: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for line in trace.read_text().splitlines():
        yield next(iter(json.loads(line).items()))


def rows(told: dict[str, Any]) -> list[tuple[str, int]]:
    failed = {row: status for row, status in told.get("failed", [])}
    return [(failed.get(row, "ok"), id) for row, id in enumerate(told["ids"])]


def handle(told: dict[str, int]) -> tuple[int, int]:
    return told["slot"], told["generation"]


class Player:
    """Drives a core by the records of a trace and compares its answers."""

    def __init__(self) -> None:
        self.core: Core
        self.plans = 0
        self._submitted: tuple[int, int] | None = None
        self._digest: dict[str, Any] | None = None

    def play(self, kind: str, told: dict[str, Any]) -> None:
        getattr(self, f"_{kind}")(told)
        if kind != "core":
            self.core.check()

    def _core(self, told: dict[str, Any]) -> None:
        self.core = Core(json.dumps(told["config"]).encode(), epoch=told["epoch"])

    def _submit(self, told: dict[str, Any]) -> None:
        self._submitted = self.core.submit(json.dumps(told["request"]).encode(), told["now"])

    def _submitted_is(self, told: dict[str, Any]) -> None:
        assert self._submitted == handle(told["handle"])

    def _abort(self, told: dict[str, Any]) -> None:
        self.core.abort(handle(told["handle"]), told["now"])

    def _expire(self, told: dict[str, Any]) -> None:
        self.core.expire(told["now"])

    def _ack(self, told: dict[str, Any]) -> None:
        self.core.text_ack(handle(told["handle"]), told["checked"], told["stop_at"])

    def _mask(self, told: dict[str, Any]) -> None:
        self.core.mask_ready(handle(told["handle"]), told["index"])

    def _plan(self, told: dict[str, Any]) -> None:
        plan = self.core.plan(told["now"])
        self._digest = None if plan is None else json.loads(plan.digest())

    def _planned(self, told: dict[str, Any]) -> None:
        assert self._digest == told["plan"]
        self.plans += told["plan"] is not None

    def _complete(self, told: dict[str, Any]) -> None:
        step = told["epoch"], told["step"], rows(told["rows"]), told["now"]
        self.core.complete(*step, duration_ns=told.get("duration_ns"))

    def _worker_lost(self, told: dict[str, Any]) -> None:
        self.core.worker_lost(told["epoch"], told["now"])

    def _reset_prefix_cache(self, _told: dict[str, Any]) -> None:
        self.core.reset_prefix_cache()


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.stem)
def test_a_golden_trace_gives_the_same_plans(trace: Path) -> None:
    player = Player()
    for kind, told in records(trace):
        player.play("submitted_is" if kind == "submitted" else kind, told)
    assert player.plans > 5


def test_there_are_golden_traces() -> None:
    assert len(TRACES) >= 6


def test_a_core_explains_and_tells_what_it_holds() -> None:
    core = Core(json.dumps({**CONFIG, "kv_events": 64}).encode())
    request = {"submission": 7, "prompt": list(range(9)), "max_tokens": 1}
    first = core.submit(json.dumps(request).encode(), 100)
    told = json.loads(core.explain(first, 150) or b"null")
    assert (told["waiting_for"], told["waits"]) == ("worker", [{"reason": "worker", "ns": 50, "steps": 0}])
    plan = core.plan(200)
    assert plan is not None
    assert (plan.token_ids, plan.sampling, plan.query_starts) == (list(range(9)), [(7, 0, 0)], [0, 9])
    core.complete(plan.epoch, plan.step, [("ok", 3)], 300)
    assert core.take_tokens() == [(7, 0, 0, 3)]
    assert core.explain(first, 300) is None
    told = json.loads(core.explain_ended(7) or b"null")
    assert told["cache"] == {"queried": 9, "cached": 0, "end": {"reason": "never_stored"}}
    assert [decision["kind"] for decision in told["decisions"]] == ["admitted", "chunk"]
    assert told["chunks"] == [{"limit": "prompt", "chunks": 1, "tokens": 9}]
    events = json.loads(core.kv_events(0, 10))
    assert [(event["sequence"], event["type"]) for event in events] == [(0, "stored"), (1, "stored")]
    assert events[1]["parent"] == events[0]["hash"]
    snapshot = json.loads(core.kv_snapshot())
    assert snapshot["next"] == 2
    assert [block["tokens"] for block in snapshot["blocks"]] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_row_of_a_beam_names_its_continuations() -> None:
    core = Core(json.dumps(CONFIG).encode())
    beams = {"length_penalty": 1.0, "early_stopping": "no"}
    request = {"submission": 7, "prompt": [1, 2, 3], "max_tokens": 1, "choices": 2, "beams": beams}
    core.submit(json.dumps(request).encode(), 0)
    plan = core.plan(100)
    assert plan is not None
    with pytest.raises(ValueError, match="continuations"):
        core.complete(plan.epoch, plan.step, [("ok", 5)], 200)
    core.complete(plan.epoch, plan.step, [("ok", 5, [(5, -0.5), (3, -1.0), (8, -2.0), (2, -4.0)])], 200)
    assert core.take_tokens() == [(7, 0, 0, 5), (7, 1, 0, 3)]


def test_wrong_input_is_an_error_of_its_own() -> None:
    with pytest.raises(ValueError, match="block_size"):
        Core(b'{"block_size": 3}')
    core = Core(json.dumps(CONFIG).encode())
    with pytest.raises(ValueError, match="prompt is empty"):
        core.submit(b'{"max_tokens": 1}', 0)
    with pytest.raises(ValueError, match="KV events are off"):
        core.kv_events(0, 1)
    with pytest.raises(ValueError, match="no status"):
        core.complete(1, 1, [("fine", 3)], 0)
    with pytest.raises(ValueError, match="epoch 1 step 1"):
        core.complete(1, 1, [], 0)


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "log"
    with pytest.raises(OSError, match="log"):
        replay(file)
    file.write_bytes(b"something else altogether")
    with pytest.raises(ValueError, match="no event log"):
        replay(file)
