"""The worker's face, by an inline worker written in the test: it sees the arrays that the layout promises."""

import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from scripted_engine import Reader, engine_options, submit

from diptych_core.engine import Engine
from diptych_core.worker import Port, Step, WorkerUsageError

pytestmark = pytest.mark.timeout(60)
DTYPES = {
    "token_ids": "int32",
    "positions": "int32",
    "slots": "int64",
    "rows": "int32",
    "query_starts": "int32",
    "sequence_lengths": "int32",
    "sampling_tokens": "int32",
    "temperature": "float32",
    "top_p": "float32",
    "seed": "int64",
    "submission": "int64",
    "side": "uint32",
}


class InlineWorker:
    """Answers every sampling row with its output index, and keeps what it saw."""

    def __init__(self, port: Port) -> None:
        self.port = port
        self.steps: list[dict[str, Any]] = []
        self.views: list[memoryview] = []
        self.errors: list[BaseException] = []
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        try:
            self.serve()
        except BaseException as error:
            self.errors.append(error)

    def serve(self) -> None:
        init = msgspec.msgpack.decode(self.port.init())
        assert (init["kind"], init["epoch"], init["block_size"]) == ("inline", 1, 4)
        self.port.hello(msgspec.msgpack.encode({"vocabulary": 600, "num_blocks": 65, "kv_layout": {}, "buckets": []}))
        self.port.ready(msgspec.msgpack.encode({"import": 0.0}))
        while (work := self.port.next()) is not None:
            if isinstance(work, Step):
                self.answer(work)
            else:
                work.reply(msgspec.msgpack.encode({}))

    def answer(self, step: Step) -> None:
        arrays = {name: step.array(name) for name in DTYPES}
        assert {name: array.dtype for name, array in arrays.items()} == DTYPES
        seen = {name: np.frombuffer(array, dtype=array.dtype).tolist() for name, array in arrays.items() if len(array)}
        self.steps.append({"tokens": step.num_tokens, "decode_rows": step.num_decode_rows, **seen})
        self.views.append(memoryview(arrays["token_ids"]))
        output = np.frombuffer(step.array("output_index"), dtype=np.int32)
        step.mark("prefill_done")
        with pytest.raises(WorkerUsageError, match="samples"):
            step.publish(np.zeros(99, np.int32), np.zeros(99, np.int32))
        step.publish(np.zeros(step.num_sampling_rows, np.int32), output + 100)


@pytest.fixture
def worker_and_reader(tokenizer_folder: Path) -> Any:
    engine = Engine(engine_options(tokenizer_folder, "inline"))
    port = engine.inline_port()
    assert port is not None
    worker = InlineWorker(port)
    engine.wait_ready()
    yield engine, worker, Reader(engine.frame_queue())
    engine.close(10.0)
    worker.thread.join(10)
    assert not worker.thread.is_alive()
    assert not worker.errors


def test_a_step_says_what_to_compute(worker_and_reader: Any) -> None:
    engine, worker, reader = worker_and_reader
    [answer] = reader.wait_end([submit(engine, reader.queue, [11, 12, 13, 14, 15], max_tokens=2, temperature=0.5)])
    assert answer.token_ids == [100, 101]
    prefill, decode = worker.steps
    assert prefill["token_ids"] == [11, 12, 13, 14, 15]
    assert prefill["positions"] == [0, 1, 2, 3, 4]
    assert (prefill["query_starts"], prefill["sequence_lengths"]) == ([0, 5], [5])
    assert (prefill["sampling_tokens"], prefill["temperature"], prefill["top_p"]) == ([4], [0.5], [1.0])
    assert [slot % 4 for slot in prefill["slots"]] == [0, 1, 2, 3, 0]
    assert (decode["token_ids"], decode["positions"], decode["decode_rows"]) == ([100], [5], 1)
    assert decode["rows"] == [prefill["rows"][0]]
    assert decode["seed"] == prefill["seed"]


def test_views_are_read_only_unless_insisted_on_and_outlive_the_engine(worker_and_reader: Any) -> None:
    engine, worker, reader = worker_and_reader
    reader.wait_end([submit(engine, reader.queue, [11, 12], max_tokens=1)])
    [view] = worker.views
    assert (view.readonly, view.format, view.shape, view.strides) == (True, "i", (2,), (4,))
    with pytest.raises(TypeError, match="read-only"):
        view[0] = 1
    engine.close(10.0)
    assert len(view.tolist()) == 2


def test_torch_reads_an_array_without_a_copy_or_a_warning(worker_and_reader: Any) -> None:
    torch = pytest.importorskip("torch")
    engine, worker, reader = worker_and_reader
    seen = []

    def answer(step: Step) -> None:
        array = step.array("token_ids")
        seen.append(torch.frombuffer(array, dtype=torch.int32).tolist())
        InlineWorker.answer(worker, step)

    worker.answer = answer
    reader.wait_end([submit(engine, reader.queue, [11, 12], max_tokens=1)])
    assert seen == [[11, 12]]


def test_unknown_names_are_refused(worker_and_reader: Any) -> None:
    engine, worker, reader = worker_and_reader
    refused = []

    def answer(step: Step) -> None:
        for call in (step.array, step.mark):
            with pytest.raises(ValueError, match="nonsense") as caught:
                call("nonsense")
            refused.append(caught.value)
        InlineWorker.answer(worker, step)

    worker.answer = answer
    reader.wait_end([submit(engine, reader.queue, [11, 12], max_tokens=1)])
    assert len(refused) == 2
