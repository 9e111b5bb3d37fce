"""Is the first request after a start as fast as the tenth? Every executor is warmed up before ready, so it should be.

    python bench/first_request.py [--starts 5]

Starts an engine several times; each time ten requests run one after another, with distinct 256-token prompts and the
prefix cache off. Printed: the time to first token (arrival to its frame, as the engine measures it) of the
first and the tenth, the median of each over the starts, and their ratio, which must be at most 1.2.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Sequence

from diptych import AsyncEngine, EngineConfig, SamplingParams

REQUESTS = 10
PROMPT_TOKENS = 256
LIMIT = 1.2


async def time_to_first_token(engine: AsyncEngine, number: int) -> float:
    """Milliseconds from arrival to the first token of a prompt that no other request has."""
    first_id = 1000 + number * PROMPT_TOKENS
    prompt = list(range(first_id, first_id + PROMPT_TOKENS))
    timings = None
    async for output in engine.generate(prompt, SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)):
        timings = output.timings or timings
    if timings is None:
        raise SystemExit(f"first_request: request {number} ended without timings")
    return (timings.first_token - timings.arrived) / 1e6


async def one_start(config: EngineConfig) -> list[float]:
    """The ten times of one engine, in milliseconds."""
    async with AsyncEngine(config) as engine:
        return [await time_to_first_token(engine, number) for number in range(REQUESTS)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="TTFT of the first and the tenth request after a start")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--starts", type=int, default=5)
    options = parser.parse_args(arguments)
    config = EngineConfig(model=options.model, prefix_cache=False)
    firsts, tenths = [], []
    for start in range(options.starts):
        times = asyncio.run(one_start(config))
        firsts.append(times[0])
        tenths.append(times[-1])
        print(f"start {start + 1}: " + " ".join(f"{time:.1f}" for time in times) + " ms", flush=True)
    first, tenth = statistics.median(firsts), statistics.median(tenths)
    ratio = first / tenth
    print(f"median TTFT: first {first:.1f} ms, tenth {tenth:.1f} ms, ratio {ratio:.2f} (at most {LIMIT})")
    if ratio > LIMIT:
        sys.exit("first_request: the first request is slower than it may be")


if __name__ == "__main__":
    main()
