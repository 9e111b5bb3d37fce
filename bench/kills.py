"""Streams go on while their worker is killed again and again: every id is checked, each restart is timed in parts.

python bench/kills.py --kills 20 --streams 8                        (scripted worker: ids are a hash of the prefix)
python bench/kills.py --kills 20 --streams 16 --model smollm2-135m  (half greedy, half seeded; held against the same
                                                                     requests undisturbed)
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from pathlib import Path

from diptych import AsyncEngine, EngineConfig, SamplingParams
from diptych.hub.pull import pull
from diptych.stats import Restart

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from tiny_folder import HashOracle, write_folder


async def stream(engine: AsyncEngine, oracle: HashOracle, name: str, done: asyncio.Event) -> tuple[int, int]:
    """Requests one after the other until `done`: how many there were, and how many had wrong ids."""
    finished = wrong = 0
    while not done.is_set():
        prompt, length = f"{name}, request {finished}", 300
        ids: list[int] = []
        async for output in engine.generate(prompt, SamplingParams(max_tokens=length)):
            ids += output.token_ids
        finished += 1
        wrong += ids != oracle.continuation(oracle.encode(prompt), length)
    return finished, wrong


async def restarted(engine: AsyncEngine, before: int, limit: float = 30.0) -> Restart:
    """The parts of the restart after the one numbered `before`."""
    for _ in range(int(limit / 0.005)):
        stats = engine.stats()
        if stats.worker_restarts > before and stats.last_restart is not None and engine.worker_pid() is not None:
            return stats.last_restart
        await asyncio.sleep(0.005)
    raise TimeoutError(f"the worker was not restarted within {limit} s")


async def kill(engine: AsyncEngine, count: int, every: float) -> None:
    """Kills the worker `count` times, each time after it has worked for `every` seconds."""
    for number in range(count):
        await asyncio.sleep(every)
        pid, before = engine.worker_pid(), engine.stats().worker_restarts
        assert pid is not None, "the worker has no process"
        os.kill(pid, signal.SIGKILL)
        parts = await restarted(engine, before)
        print(
            f"kill {number + 1:2}: detected in {1e3 * parts.detect_s:6.2f} ms, spawned in {1e3 * parts.spawn_s:6.2f}, "
            f"hello after {1e3 * parts.hello_s:7.1f}, ready after {1e3 * parts.ready_s:6.2f}"
        )


async def run(options: argparse.Namespace, folder: Path) -> int:
    oracle = HashOracle(folder)
    config = EngineConfig(str(folder), worker="scripted", max_running=64, script_step_ms=options.step_ms)
    async with AsyncEngine(config) as engine:
        done = asyncio.Event()
        streams = [
            asyncio.create_task(stream(engine, oracle, f"stream {number}", done)) for number in range(options.streams)
        ]
        await kill(engine, options.kills, options.every)
        done.set()
        results = await asyncio.gather(*streams)
        used = engine.stats().kv_blocks_used
    finished, wrong = (sum(column) for column in zip(*results, strict=True))
    print(f"{options.kills} kills, {finished} requests, {wrong} with wrong ids, {used} blocks in use at the end")
    return 1 if wrong or used else 0


# Name of a stream and number of its request; parameters; ids.
Answers = dict[tuple[int, int], list[int]]


def asked(stream_number: int, request: int) -> tuple[str, SamplingParams]:
    """Even streams are greedy, odd ones seeded."""
    prompt = f"Tell me, in your own words, story number {request} about the town on hill {stream_number}. " * 4
    if stream_number % 2 == 0:
        return prompt, SamplingParams(temperature=0.0, max_tokens=120, ignore_eos=True)
    seed = 1000 * stream_number + request
    return prompt, SamplingParams(temperature=0.9, top_p=0.95, seed=seed, max_tokens=120, ignore_eos=True)


async def answer(engine: AsyncEngine, key: tuple[int, int], answers: Answers) -> None:
    ids: list[int] = []
    prompt, params = asked(*key)
    async for output in engine.generate(prompt, params):
        ids += output.token_ids
    answers[key] = ids


async def run_model(options: argparse.Namespace) -> int:
    """Streams of a real model under kills, then each of their requests again, alone with nobody killing."""
    answers: Answers = {}
    again: Answers = {}
    async with AsyncEngine(EngineConfig(str(pull(options.model)))) as engine:
        done = asyncio.Event()

        async def stream_on(number: int) -> None:
            request = 0
            while not done.is_set():
                await answer(engine, (number, request), answers)
                request += 1

        streams = [asyncio.create_task(stream_on(number)) for number in range(options.streams)]
        await kill(engine, options.kills, options.every)
        done.set()
        await asyncio.gather(*streams)
        for key in sorted(answers):
            await answer(engine, key, again)
        used = engine.stats().kv_blocks_used
    wrong = [key for key in answers if answers[key] != again[key]]
    short = [key for key in answers if len(answers[key]) != 120]
    print(
        f"{options.kills} kills, {len(answers)} requests on {options.streams} streams, {len(wrong)} differ from an "
        f"undisturbed run {wrong or ''}, {len(short)} incomplete, {used} blocks in use at the end"
    )
    return 1 if wrong or short or used else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--every", type=float, default=0.4, help="seconds between kills (default: %(default)s)")
    parser.add_argument("--step-ms", type=float, default=3.0, help="time of a step (default: %(default)s)")
    parser.add_argument("--model", default=None, help="a real model instead of the scripted worker")
    options = parser.parse_args()
    if options.model:
        return asyncio.run(run_model(options))
    with tempfile.TemporaryDirectory(prefix="diptych-kills-") as folder:
        return asyncio.run(run(options, write_folder(Path(folder) / "tiny")))


if __name__ == "__main__":
    sys.exit(main())
