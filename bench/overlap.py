"""What planning ahead gains: the same streams with 0, 1 and 2 steps planned while another runs.

    bench/overlap.py [--model smollm2-135m] [--streams 1,8,32] [--tokens 128] [--rounds 5] [--depths 0,1,2]

Per depth and number of streams: output tokens a second, the worker's time between two steps (its own timestamps, where
there was work), the share of steps that were planned ahead, and the TTFT of a request of one token that comes while the
streams decode. Depths take turns within each round, so that a machine that slows down slows all of them; figures are
medians over the rounds. Two workers: the model on native kernels, and a scripted one whose step lasts `--step-ms`.
"""

import argparse
import asyncio
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

import diptych_core
from diptych import AsyncEngine, EngineConfig, EngineStats, SamplingParams

PROMPT = [(7 * index) % 900 + 100 for index in range(24)]


@dataclass(frozen=True)
class Round:
    """One run at one depth. Times in seconds."""

    tokens_per_s: float
    gap: float
    ahead: float
    newcomer: float


async def read(engine: AsyncEngine, prompt: list[int], tokens: int) -> float:
    """Reads a whole stream; seconds to its first token."""
    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    begun, first = time.perf_counter(), 0.0
    async for output in engine.generate(prompt, params):
        if output.token_ids and not first:
            first = time.perf_counter() - begun
    return first


def gaps(stats: EngineStats) -> tuple[float, int]:
    """Seconds the worker waited in all, and how often."""
    found = stats.histograms["step_gap"]
    return found.sum, found.count


async def run_streams(engine: AsyncEngine, streams: int, tokens: int) -> tuple[float, float, float]:
    """Tokens a second, mean gap in seconds, share of steps planned ahead."""
    before = engine.stats()
    begun = time.perf_counter()
    await asyncio.gather(*(read(engine, [*PROMPT, 1000 + stream], tokens) for stream in range(streams)))
    seconds = time.perf_counter() - begun
    after = engine.stats()
    waited, count = (now - then for now, then in zip(gaps(after), gaps(before), strict=True))
    ahead = (after.steps_ahead - before.steps_ahead) / (after.steps - before.steps)
    return streams * tokens / seconds, waited / max(count, 1), ahead


async def run_newcomers(engine: AsyncEngine, streams: int, tokens: int) -> float:
    """Median TTFT of requests that come one by one while the streams decode."""
    background = [asyncio.create_task(read(engine, [*PROMPT, 2000 + index], tokens)) for index in range(streams)]
    await asyncio.sleep(0.1)
    found = []
    while not background[0].done():
        found.append(await read(engine, [*PROMPT[:8], 3000 + len(found)], 1))
        await asyncio.sleep(0.003 * (len(found) % 5))
    await asyncio.gather(*background)
    return statistics.median(found)


async def measure(settings: dict[str, Any], depths: list[int], streams: list[int], arguments: Any) -> None:
    engines = {depth: AsyncEngine(EngineConfig(**settings, overlap=depth)) for depth in depths}
    found: dict[tuple[int, int], list[Round]] = {(depth, count): [] for depth in depths for count in streams}
    for engine in engines.values():
        await engine.start()
        await run_streams(engine, 2, 16)
    for _ in range(arguments.rounds):
        for (depth, count), rounds in found.items():
            figures = await run_streams(engines[depth], count, arguments.tokens)
            rounds.append(Round(*figures, await run_newcomers(engines[depth], count, arguments.tokens)))
    for engine in engines.values():
        await engine.close()
    print_table(found, streams, depths)


def print_table(found: dict[tuple[int, int], list[Round]], streams: list[int], depths: list[int]) -> None:
    print("| streams | overlap | tokens/s | of 0 | gap between steps µs | planned ahead | newcomer's TTFT ms |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for count in streams:
        for depth in depths:
            rounds = found[depth, count]
            rate = statistics.median(round.tokens_per_s for round in rounds)
            base = statistics.median(round.tokens_per_s for round in found[depths[0], count])
            gap = statistics.median(round.gap for round in rounds) * 1e6
            ahead = statistics.median(round.ahead for round in rounds)
            newcomer = statistics.median(round.newcomer for round in rounds) * 1e3
            print(
                f"| {count} | {depth} | {rate:.1f} | {rate / base:.3f} | {gap:.0f} | {ahead:.0%} | {newcomer:.1f} |",
                flush=True,
            )


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="a known name or a folder (smollm2-135m)")
    parser.add_argument("--workers", default="native,scripted", help="which of native, scripted (both)")
    parser.add_argument("--streams", type=numbers, default=[1, 8, 32], help="numbers of streams (1,8,32)")
    parser.add_argument("--depths", type=numbers, default=[0, 1, 2], help="values of overlap (0,1,2)")
    parser.add_argument("--tokens", type=int, default=128, help="output tokens of each stream (128)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, of which medians are shown (5)")
    parser.add_argument("--step-ms", type=float, default=2.0, help="time of a scripted step in ms (2)")
    arguments = parser.parse_args()
    if diptych_core.build_profile != "release":
        sys.exit(f"bench/overlap.py: diptych_core is a {diptych_core.build_profile} build: run `make setup`")
    shared = {"model": arguments.model, "max_model_len": 2048, "prefix_cache": False, "kv_cache_bytes": 1 << 28}
    workers = {
        "native": shared,
        "scripted": {**shared, "worker": "scripted", "script_step_ms": arguments.step_ms},
    }
    for name in arguments.workers.split(","):
        print(f"\n{name} worker, {arguments.tokens} tokens a stream, medians of {arguments.rounds} rounds\n")
        asyncio.run(measure(workers[name], arguments.depths, arguments.streams, arguments))


if __name__ == "__main__":
    main()
