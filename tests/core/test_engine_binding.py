"""What the binding itself adds: errors with attributes, the GIL, forks, threads and descriptors."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from scripted_engine import PARAMS, Reader, engine_options, running, stats, submit

import diptych_core
from diptych_core import EngineClosed, EngineError, EngineOptionsError, EngineStartError, InvalidRequest
from diptych_core.engine import Engine


def test_the_clock_is_pythons_monotonic_clock() -> None:
    before = time.monotonic_ns()
    assert before <= diptych_core.now_ns() <= time.monotonic_ns()


def test_options_that_cannot_be_read_are_refused_by_name(tokenizer_folder: Path) -> None:
    with pytest.raises(EngineOptionsError, match="expected u32") as caught:
        Engine(engine_options(tokenizer_folder, block_size="four"))
    assert (caught.value.kind, isinstance(caught.value, EngineError)) == ("options", True)


def test_a_worker_that_does_not_start_is_an_error_with_its_class(tokenizer_folder: Path) -> None:
    options = json.loads(engine_options(tokenizer_folder, "scripted"))
    options["worker"]["python"] = "/bin/false"
    with pytest.raises(EngineStartError) as caught:
        Engine(json.dumps(options).encode())
    assert caught.value.kind == "start"
    assert caught.value.error_class


def test_invalid_parameters_are_refused_on_sight(tokenizer_folder: Path) -> None:
    with running(engine_options(tokenizer_folder)) as engine:
        queue = engine.frame_queue()
        for params in (b"{", b"{}", json.dumps(PARAMS | {"temperature": -1}).encode()):
            with pytest.raises(InvalidRequest) as caught:
                engine.submit(queue, [5], params, 0)
            assert caught.value.kind == "invalid_request"
        with pytest.raises(TypeError, match="JSON"):
            engine.submit(queue, [5], json.dumps(PARAMS).encode(), 0, chat=True)
        with pytest.raises(ValueError, match="NaN is not a time"):
            queue.wait(float("nan"))


def test_a_closed_engine_says_so(tokenizer_folder: Path) -> None:
    with running(engine_options(tokenizer_folder)) as engine:
        queue = engine.frame_queue()
    with pytest.raises(EngineClosed) as caught:
        submit(engine, queue, [5])
    assert caught.value.kind == "closed"
    engine.close(1.0)


def test_waiting_for_frames_releases_the_gil(tokenizer_folder: Path) -> None:
    """Reports E8: another thread must run while this one waits."""
    with running(engine_options(tokenizer_folder)) as engine:
        queue = engine.frame_queue()
        waiter = threading.Thread(target=queue.wait, args=(2.0,))
        waiter.start()
        before = time.monotonic()
        submit(engine, queue, [5])
        waiter.join()
        assert time.monotonic() - before < 1.5


def test_many_threads_may_call_one_engine(tokenizer_folder: Path) -> None:
    """Reports E8: mixed calls from 16 threads neither hang nor fail."""
    errors: list[BaseException] = []

    def work(engine: Engine) -> None:
        try:
            reader = Reader(engine.frame_queue())
            for turn in range(50):
                request = submit(engine, reader.queue, [5 + turn, 6], max_tokens=4)
                stats(engine)
                if turn % 3 == 0:
                    engine.abort(request)
                answer = reader.wait_tokens(request, 10**6)
                assert answer.finished is not None, answer.failure
        except BaseException as error:
            errors.append(error)

    with running(engine_options(tokenizer_folder)) as engine:
        threads = [threading.Thread(target=work, args=(engine,)) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert not errors
        assert stats(engine)["open_requests"] == 0


def test_closing_gives_every_thread_and_descriptor_back(tokenizer_folder: Path) -> None:
    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    def use(kind: str) -> None:
        with running(engine_options(tokenizer_folder, kind)) as engine:
            reader = Reader(engine.frame_queue())
            reader.wait_end([submit(engine, reader.queue, [5, 6])])
            reader.queue.close()

    use("scripted_thread")
    before = held()
    for kind in ("scripted_thread", "scripted"):
        use(kind)
        assert held() == before, kind


FORK = """
import os, sys
from scripted_engine import engine_options, running, stats, submit
from diptych_core import EngineForked
from pathlib import Path
with running(engine_options(Path(sys.argv[1]))) as engine:
    queue = engine.frame_queue()
    child = os.fork()
    if child == 0:
        refused = []
        for call in (lambda: submit(engine, queue, [5]), lambda: engine.stats(), lambda: queue.drain()):
            try:
                call()
            except EngineForked as error:
                refused.append((error.kind, error.pid == os.getpid(), error.owner == os.getppid()))
        del engine, queue
        os._exit(0 if refused == [("forked", True, True)] * 3 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    submit(engine, queue, [5])
    assert queue.wait(10.0)
"""


def test_a_forked_child_is_refused_and_harms_nothing(tokenizer_folder: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "support")}
    command = [sys.executable, "-c", FORK, str(tokenizer_folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
