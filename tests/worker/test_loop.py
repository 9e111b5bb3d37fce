"""The life of a worker on a port that a test holds: start, steps, questions, errors, the end."""

import logging
import threading
import tracemalloc

import msgspec
import numpy as np
import pytest
import torch
from worker_rig import KERNELS, SyntheticStep, worker_init, write_random_llama

from diptych.worker import loop


class FakeStep(SyntheticStep):
    """A step that remembers what was published."""

    def __init__(self, number, rows, num_decode_rows=0):
        super().__init__(rows, num_decode_rows, sampled=False)
        self.step = number
        self.arrays["slots"] = self.arrays["positions"].astype(np.int64)
        self.marks, self.published, self.error = [], None, None

    def mark(self, name):
        self.marks.append(name)

    def publish(self, status, ids, logprobs=None, candidates=None):
        status, ids = memoryview(status), memoryview(ids)
        assert status.format == ids.format == "i" and status.contiguous and ids.contiguous
        self.published = list(status), list(ids)

    def publish_error(self, error_class, message):
        self.error = error_class, message


class FakeControl:
    def __init__(self, name):
        self.name, self.answer = name, None

    def reply(self, payload):
        self.answer = msgspec.msgpack.decode(payload)


class FakePort:
    """Gives its work one after the other, then says leave."""

    def __init__(self, *work):
        self.work, self.said, self.layers = list(work), [], 0

    def hello(self, info):
        self.said.append(("hello", msgspec.msgpack.decode(info)))

    def ready(self, info):
        self.said.append(("ready", msgspec.msgpack.decode(info)))

    def fail(self, error_class, message):
        self.said.append((error_class, message))

    def next(self):
        return self.work.pop(0) if self.work else None

    def progress(self):
        self.layers += 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    write_random_llama(folder)
    return folder


@pytest.fixture(scope="module", params=KERNELS)
def kernels(request):
    return request.param


def message(folder, **changes):
    return msgspec.msgpack.encode(worker_init(folder, **changes))


def test_a_worker_says_hello_and_ready_and_runs_steps(folder, kernels, caplog):
    prefill = FakeStep(1, [(0, 0, [1, 2, 3])])
    mixed = FakeStep(2, [(0, 3, [5]), (1, 0, [7, 8])], num_decode_rows=1)
    decode = FakeStep(3, [(0, 4, [5]), (1, 2, [7])], num_decode_rows=2)
    port = FakePort(prefill, mixed, decode)
    with caplog.at_level(logging.INFO):
        assert loop.run(port, message(folder, kernels=kernels))
    (hello, about), (ready, timings) = port.said
    assert (hello, ready) == ("hello", "ready")
    assert about["vocabulary"] == 96
    assert about["num_blocks"] == (1 << 20) // about["kv_layout"]["bytes_per_block"]
    assert about["kv_layout"]["bytes_per_block"] == 2 * 2 * 4 * 2 * 8 * 4
    assert about["implementation"].get("kernels", "reference") == kernels
    assert set(timings) >= {"import", "weights", "kv"}
    assert all(value >= 0 for value in timings.values())
    assert prefill.marks == ["start", "prefill_done"]
    assert mixed.marks == ["start", "prefill_done", "decode_done"]
    assert decode.marks == ["start", "decode_done"]
    for step in (prefill, mixed, decode):
        status, ids = step.published
        assert status == [0] * step.num_rows
        assert all(0 <= token < 96 for token in ids)
    assert port.layers == 3 * 2
    assert any("activation bound" in line for line in caplog.messages)
    assert any("KV cache" in line and "blocks" in line for line in caplog.messages)


def test_an_error_in_a_step_is_published_with_class_and_message_and_the_worker_goes_on(folder, kernels):
    bad, good = FakeStep(1, [(0, 0, [1, 2, 3])]), FakeStep(2, [(0, 0, [1, 2, 3])])
    bad.arrays["token_ids"][1] = 96
    assert loop.run(FakePort(bad, good), message(folder, kernels=kernels))
    assert bad.published is None
    error_class, error = bad.error
    assert error_class == "PlanError"
    assert error.startswith("token_ids from 1 to 96 in a plan: allowed -1 to ")
    assert good.published is not None


def test_reset_and_stats_are_answered(folder, kernels):
    step, stats, reset = FakeStep(1, [(0, 0, [1, 2])]), FakeControl("stats"), FakeControl("reset")
    loop.run(FakePort(step, stats, reset), message(folder, kernels=kernels))
    # Beside those of the warm-up.
    assert stats.answer["steps"]["prefill"] >= 1
    assert stats.answer["steps"]["mixed"] == 0
    assert reset.answer == {}


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"kv_cache_bytes": 1000}, "MemoryPlanError", "max_model_len 128"),
        ({"model": "/nowhere"}, "SettingError", "/nowhere/config.json"),
        ({"threads": "two"}, "ValidationError", "threads"),
        ({"surprise": 1}, "ValidationError", "surprise"),
    ],
)
def test_a_start_that_fails_tells_the_host_why(folder, kernels, changes, error, words):
    port = FakePort()
    init = worker_init(folder, kernels=kernels)
    options = {**init.options, **changes}
    assert not loop.run(port, msgspec.msgpack.encode(msgspec.structs.replace(init, options=options)))
    [(got, text)] = port.said
    assert got == error
    assert words in text


def test_a_worker_runs_in_a_thread_and_leaves_torch_as_it_was(folder, kernels):
    step, port_error = FakeStep(1, [(0, 0, [1, 2, 3])]), []

    def target():
        try:
            loop.run(FakePort(step), message(folder, kernels=kernels))
        except BaseException as error:
            port_error.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    thread.join(60)
    assert not port_error
    assert step.published is not None
    assert not torch.is_inference_mode_enabled()


def test_python_objects_of_a_step_do_not_grow_with_its_rows(folder, kernels):
    """Blocks allocated by Python at the peak of a step, for 2 and for 64 decode rows."""
    peaks = {}
    for count in (2, 64):
        steps = [FakeStep(i, [(row, 3, [5]) for row in range(count)], num_decode_rows=count) for i in range(1, 4)]
        port = FakePort(*steps)
        original, seen = port.next, []

        def watched(original=original, seen=seen):
            if tracemalloc.is_tracing():
                seen.append(tracemalloc.get_traced_memory()[1])
                tracemalloc.stop()
            work = original()
            tracemalloc.start()
            return work

        port.next = watched
        loop.run(port, message(folder, kernels=kernels, max_running=64))
        tracemalloc.stop()
        peaks[count] = min(seen)
    assert peaks[64] < 2 * peaks[2] + 4096
