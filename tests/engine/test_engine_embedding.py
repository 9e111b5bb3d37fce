"""A good guest: what the host had before is what it has after, and nothing is left when the engine is closed.

Each case is a program of its own, so that nothing else in the test process moves.
"""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HEAD = """
import asyncio, logging, os, signal, sys, threading, time
from pathlib import Path

FOLDER = sys.argv[1]

def descriptors():
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:  # the listing's own
            pass
    return sorted(links)

def shared_memory():
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted(line.split()[-1] for line in lines if "memfd" in line or "/dev/shm" in line)

def threads():
    # The system ends a thread a moment after it was joined.
    limit = time.monotonic() + 5
    while len(os.listdir("/proc/self/task")) > threading.active_count() and time.monotonic() < limit:
        time.sleep(0.001)
    return sorted(Path(f"/proc/self/task/{task}/comm").read_text() for task in os.listdir("/proc/self/task"))

def children():
    # A process is listed under the thread that started it.
    found = []
    for task in os.listdir("/proc/self/task"):
        try:
            found += Path(f"/proc/self/task/{task}/children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):  # the thread has ended
            pass
    return found

async def one(engine, tokens=8):
    from diptych import SamplingParams
    return [output async for output in engine.generate([5, 6], SamplingParams(max_tokens=tokens))]

def configuration(worker="scripted"):
    from diptych import EngineConfig
    return EngineConfig(FOLDER, worker=worker)
"""


def run_program(folder: Path, code: str) -> str:
    program = HEAD + textwrap.dedent(code)
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program, str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Error" not in ended.stderr and "Warning" not in ended.stderr, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("worker", ["scripted", "scripted_thread"])
def test_closing_gives_every_thread_descriptor_mapping_and_process_back(folder: Path, worker: str) -> None:
    run_program(
        folder,
        f"""
        async def main():
            from diptych import AsyncEngine
            async with AsyncEngine(configuration({worker!r})) as engine:
                await one(engine)
            before = descriptors(), shared_memory(), threads(), children(), threading.enumerate()
            for _ in range(3):
                async with AsyncEngine(configuration({worker!r})) as engine:
                    await asyncio.gather(*(one(engine) for _ in range(16)))
                    stream = engine.generate([5, 6], __import__("diptych").SamplingParams(max_tokens=500))
                    await anext(stream)
                    assert len(os.listdir("/proc/self/task")) > len(before[2])
            await stream.aclose()
            after = descriptors(), shared_memory(), threads(), children(), threading.enumerate()
            assert after == before, (before, after)
            assert before[3] == [] and before[1] == []
        asyncio.run(main())
        """,
    )


def test_the_hosts_signals_environment_logging_policy_and_tracer_stay_as_they_were(folder: Path) -> None:
    run_program(
        folder,
        """
        from opentelemetry import trace, metrics, propagate
        handler = lambda *_: None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGUSR1):
            signal.signal(number, handler)
        os.environ["HF_TOKEN"] = "secret"

        def state():
            return (
                [signal.getsignal(number) for number in signal.valid_signals()],
                signal.pthread_sigmask(signal.SIG_BLOCK, []),
                dict(os.environ), os.getcwd(), os.umask(0o22), sys.excepthook, threading.excepthook,
                logging.root.level, list(logging.root.handlers), logging.getLoggerClass(), logging.raiseExceptions,
                type(asyncio.get_event_loop_policy()),
                id(trace._TRACER_PROVIDER), id(metrics._internal._METER_PROVIDER), id(propagate.get_global_textmap()),
                sys.getswitchinterval(), sys.getrecursionlimit(), list(sys.path), sys.flags,
            )

        before = state()
        async def main():
            from diptych import AsyncEngine
            async with AsyncEngine(configuration()) as engine:
                assert state() == before
                await one(engine)
                assert state() == before
        asyncio.run(main())
        assert state() == before
        assert not logging.getLogger("diptych").handlers
        """,
    )


def test_importing_starts_nothing_and_loads_nothing_heavy(folder: Path) -> None:
    run_program(
        folder,
        """
        before = dict(os.environ)
        import diptych
        from diptych import AsyncEngine, EngineConfig, LLM, Output, SamplingParams, Usage, errors
        heavy = {"torch", "transformers", "numpy", "gguf", "huggingface_hub", "safetensors", "aiohttp"}
        assert not heavy & set(sys.modules), heavy & set(sys.modules)
        assert len(threads()) == 1 and dict(os.environ) == before
        assert set(diptych.__all__) <= set(dir(diptych))
        async def main():
            async with AsyncEngine(configuration()) as engine:
                await one(engine)
        asyncio.run(main())
        assert not {"torch", "transformers", "numpy"} & set(sys.modules)
        """,
    )


def test_asyncio_run_returns_after_close_and_the_program_ends(folder: Path) -> None:
    assert "ended" in run_program(
        folder,
        """
        async def main():
            from diptych import AsyncEngine
            engine = AsyncEngine(configuration())
            await engine.start()
            await one(engine)
            await engine.close()
            assert len(asyncio.all_tasks()) == 1
        asyncio.run(main())
        print("ended")
        """,
    )


@pytest.mark.parametrize("worker", ["scripted", "scripted_thread"])
def test_an_engine_that_nobody_closes_does_not_keep_the_program_alive(folder: Path, worker: str) -> None:
    out = run_program(
        folder,
        f"""
        from diptych import AsyncEngine, LLM
        async def main():
            global engine
            engine = AsyncEngine(configuration({worker!r}))
            await engine.start()
            await one(engine)
            print(engine.worker_pid())
        asyncio.run(main())
        llm = LLM(configuration({worker!r}))
        llm.generate([[5, 6]])
        """,
    )
    pid = out.strip()
    assert pid == "None" or not Path(f"/proc/{pid}").exists()


def test_an_engine_starts_in_a_thread_that_is_not_the_main_one(folder: Path) -> None:
    run_program(
        folder,
        """
        found = []
        async def main():
            from diptych import AsyncEngine
            async with AsyncEngine(configuration()) as engine:
                found.extend(await one(engine))
        thread = threading.Thread(target=asyncio.run, args=(main(),))
        thread.start()
        thread.join(30)
        assert found[-1].finish_reason == "length"
        """,
    )


def test_a_loop_of_another_kind_works_too(folder: Path) -> None:
    run_program(
        folder,
        """
        import uvloop
        async def main():
            from diptych import AsyncEngine
            async with AsyncEngine(configuration()) as engine:
                results = await asyncio.gather(*(one(engine) for _ in range(8)))
                assert all(result[-1].finish_reason == "length" for result in results)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())
        """,
    )


def test_a_script_without_a_main_guard_is_no_fork_bomb(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom diptych import LLM\nprint('begun')\n"
        "llm = LLM(sys.argv[1], worker='scripted')\nprint(llm.generate([[5, 6]])[0].finish_reason)\nllm.close()\n"
    )
    ended = subprocess.run(
        [sys.executable, str(script), str(folder)], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.split() == ["begun", "length"]


def test_a_module_named_torch_in_the_working_folder_is_not_run(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('the wrong torch')\n")
    (tmp_path / "diptych_core.py").write_text("raise SystemExit('the wrong core')\n")
    code = (
        "import sys\nsys.path.pop(0)\nfrom diptych import LLM\n"
        "with LLM(sys.argv[1], worker='scripted') as llm:\n    print(llm.generate([[5, 6]])[0].finish_reason)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(folder)], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "length\n"), ended.stderr


def test_a_forked_child_is_told_to_make_its_own_engine(folder: Path) -> None:
    out = run_program(
        folder,
        """
        from diptych import LLM, errors
        llm = LLM(configuration())
        llm.generate([[5, 6]])
        child = os.fork()
        if child == 0:
            for call in (llm.stats, lambda: llm.generate([[5, 6]])):
                try:
                    call()
                    os._exit(3)
                except errors.EngineForkedError:
                    pass
            llm.close()
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        assert llm.generate([[5, 6]])[0].finish_reason == "length"
        llm.close()
        """,
    )
    assert out.strip() == "0"


@pytest.mark.parametrize("start", ["LLM(slow)", "asyncio.run(AsyncEngine(slow).start())"])
def test_a_start_is_interrupted_by_control_c(folder: Path, tmp_path: Path, start: str) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 60\n")
    silent.chmod(0o755)
    run_program(
        folder,
        f"""
        import _thread, signal, time
        from diptych import LLM, AsyncEngine, EngineConfig
        slow = EngineConfig(FOLDER, worker="scripted", worker_python={str(silent)!r})
        # Whoever runs the tests in the background has it ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        def interrupt():
            while not children():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt).start()
        began = time.monotonic()
        try:
            {start}
            raise SystemExit("it started")
        except KeyboardInterrupt:
            pass
        while children():
            assert time.monotonic() < began + 10, children()
            time.sleep(0.01)
        """,
    )


def test_a_worker_that_cannot_start_is_a_clear_error_and_leaves_nothing(folder: Path) -> None:
    run_program(
        folder,
        """
        from diptych import AsyncEngine, EngineConfig, errors
        async def main():
            before = threads(), children()
            engine = AsyncEngine(EngineConfig(FOLDER, worker="scripted", worker_python="/bin/false"))
            try:
                await engine.start()
                raise SystemExit("it started")
            except errors.EngineStartError as error:
                assert "worker" in str(error), error
            assert not engine.ready
            await engine.close()
            assert (threads(), children()) == before
        asyncio.run(main())
        """,
    )
