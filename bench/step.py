"""The cost of a step: the core's two calls beside their targets, and the whole engine around a worker without a model.

    bench/step.py [--skip-criterion] [--tokens 256]

Criterion measures `plan` and `complete` alone, in Rust. The engine part runs the same core with all its threads, arenas
and frames, and a scripted worker that answers at once: what remains when the model costs nothing.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import diptych_core

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests/support"))

from scripted_engine import Reader, engine_options, running, stats, submit  # noqa: E402
from tiny_tokenizer import write_tokenizer  # noqa: E402

RUNNING = (1, 64, 256, 1024)
# Median microseconds on an unloaded Zen 4 core.
TARGETS = {"plan": (1.5, 4.0, 12.0, 45.0), "complete": (1.5, 6.0, 20.0, 80.0)}


def run_criterion() -> None:
    names = "^(" + "|".join(TARGETS) + ")/"
    command = ["cargo", "bench", "--quiet", "-p", "diptych-core", "--bench", "step", "--", names]
    subprocess.run(command, cwd=ROOT, check=True)


def median_us(call: str, running: int) -> float | None:
    """Criterion's estimate of one call, in microseconds; None if it was never measured."""
    target = json.loads(subprocess.check_output(["cargo", "metadata", "--no-deps", "--format-version=1"], cwd=ROOT))
    estimates = Path(target["target_directory"]) / "criterion" / call / str(running) / "new/estimates.json"
    if not estimates.exists():
        return None
    return float(json.loads(estimates.read_text())["median"]["point_estimate"]) / 1000


def print_core_table() -> None:
    print("\nThe core alone (criterion, median of one call)")
    print(f"{'running':>8} {'call':>9} {'µs':>9} {'target µs':>10} {'of target':>10} {'ns/request':>11}")
    for index, requests in enumerate(RUNNING):
        for call, targets in TARGETS.items():
            measured = median_us(call, requests)
            if measured is None:
                print(f"{requests:>8} {call:>9} {'none':>9} {targets[index]:>10.1f}")
                continue
            share, each = measured / targets[index], measured * 1000 / requests
            print(f"{requests:>8} {call:>9} {measured:>9.2f} {targets[index]:>10.1f} {share:>9.2f}x {each:>11.1f}")


@dataclass(frozen=True)
class EngineCost:
    running: int
    steps: int
    tokens: int
    seconds: float

    @property
    def step_us(self) -> float:
        return self.seconds * 1e6 / self.steps


def measure_engine(folder: Path, running_requests: int, tokens: int) -> EngineCost:
    """From the first submission to the last frame of `running_requests` requests of `tokens` output tokens each."""
    blocks = running_requests * (-(-(tokens + 32) // 16) + 1) + 1
    options = engine_options(
        folder,
        worker={"num_blocks": blocks, "script": [[100] * tokens]},
        block_size=16,
        max_running=running_requests,
        max_batched_tokens=max(512, running_requests),
        max_model_len=tokens + 64,
        max_queued_requests=2048,
    )
    with running(options) as engine:
        reader = Reader(engine.frame_queue())
        warm = submit(engine, reader.queue, [5], max_tokens=8)
        reader.wait_end([warm])
        before = stats(engine)["steps"]
        start = time.perf_counter()
        prompts = ([5 + index % 500] * 16 for index in range(running_requests))
        requests = [submit(engine, reader.queue, prompt, max_tokens=tokens) for prompt in prompts]
        answers = reader.wait_end(requests, limit_s=300.0)
        seconds = time.perf_counter() - start
        steps = stats(engine)["steps"] - before
    return EngineCost(running_requests, steps, sum(len(answer.token_ids) for answer in answers), seconds)


def print_engine_table(tokens: int) -> None:
    print("\nThe engine around a worker that answers at once (threads, arenas, text and frames included)")
    print(f"{'running':>8} {'steps/s':>9} {'tokens/s':>10} {'µs/step':>9} {'of 1':>7} {'µs/token':>9} {'of 1':>7}")
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder))
        costs = [measure_engine(Path(folder), running, tokens) for running in RUNNING]
    first = costs[0]
    for cost in costs:
        token_us, first_token_us = cost.seconds * 1e6 / cost.tokens, first.seconds * 1e6 / first.tokens
        print(
            f"{cost.running:>8} {cost.steps / cost.seconds:>9.0f} {cost.tokens / cost.seconds:>10.0f}"
            f" {cost.step_us:>9.1f} {cost.step_us / first.step_us:>6.2f}x {token_us:>9.2f}"
            f" {token_us / first_token_us:>6.2f}x"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--skip-criterion", action="store_true", help="read the estimates of the last criterion run")
    parser.add_argument("--tokens", type=int, default=256, help="output tokens of each request (256)")
    arguments = parser.parse_args()
    if diptych_core.build_profile != "release":
        sys.exit(
            f"bench/step.py: diptych_core is a {diptych_core.build_profile} build: run `make setup` for a release one"
        )
    if not arguments.skip_criterion:
        run_criterion()
    print_core_table()
    print_engine_table(arguments.tokens)


if __name__ == "__main__":
    main()
