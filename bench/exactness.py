"""Logits of the sample model, bit by bit: alone, in chunks, token by token, beside others, on other threads, restarted.

    python bench/exactness.py [--formats bfloat16 int8 ...]     (part of `make parity`)

What tests/worker/test_native_exact.py holds for a tiny model, once for the sample model in every format of weights and
KV cache that fits its shapes. Writes bench/results/exactness.md; fails on the first bit that differs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from diptych.hub.pull import pull
from diptych_core import kernels

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests/support"))

from worker_rig import NativeRunner, Schedule, start_native, step_logits  # noqa: E402

MODEL = "smollm2-135m"
RESULTS = ROOT / "bench/results/exactness.md"
VOCABULARY = 49_152
LENGTHS = (1, 16, 17, 255, 256, 257, 600)
TOKENS = [(7 * index * index + 31 * index + 5) % 48_000 for index in range(max(LENGTHS))]
SETTINGS = {
    **{"vocabulary": VOCABULARY, "block_size": 16, "max_running": 16, "max_model_len": 1024},
    **{"max_batched_tokens": 2048, "kv_cache_bytes": 1 << 29, "threads": 2},
}
FORMATS: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16, float32 arithmetic": {"dtype": "float32"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "int8-g32": {"dtype": "bfloat16", "quantization": "int8-g32"},
    "int4": {"dtype": "bfloat16", "quantization": "int4"},
    "gguf": {"dtype": "bfloat16", "quantization": "gguf"},
    "bfloat16, KV float32": {"dtype": "bfloat16", "kv_cache_dtype": "float32"},
    "bfloat16, KV float16": {"dtype": "bfloat16", "kv_cache_dtype": "float16"},
    "bfloat16, KV int8": {"dtype": "bfloat16", "kv_cache_dtype": "int8"},
}


def logits_after(runner: NativeRunner, length: int, chunks: list[int], neighbours: int = 0) -> torch.Tensor:
    """Logits [vocabulary] of the last of `length` tokens; the last chunk beside `neighbours` other rows."""
    schedule = Schedule(runner, seed=length + neighbours)
    others = [schedule.add(1 + index, TOKENS[index : index + 1 + 9 * index]) for index in range(neighbours)]
    request = schedule.add(0, TOKENS[:length])
    for chunk in chunks[:-1]:
        decodes = chunk == 1 and request.computed > 0
        step_logits(runner, schedule.step([request] if decodes else [], [] if decodes else [(request, chunk)]))
        request.computed += chunk
    decodes = chunks[-1] == 1 and request.computed > 0
    rest = [(other, len(other.tokens)) for other in others]
    step = schedule.step([request] if decodes else [], rest if decodes else [*rest, (request, chunks[-1])])
    found = step_logits(runner, step)[step.arrays["sampling_rows"].tolist().index(0)]
    for each in (request, *others):
        schedule.release(each)
    return found


def split(length: int, chunk: int) -> list[int]:
    return [min(chunk, length - start) for start in range(0, length, chunk)]


def ways(runner: NativeRunner) -> Iterator[tuple[str, Callable[[int], torch.Tensor]]]:
    """Names, and the logits after so many tokens computed that way."""
    for chunk in (16, 64, 250):
        yield f"chunks of {chunk}", lambda length, chunk=chunk: logits_after(runner, length, split(length, chunk))
    yield "the last 20 tokens decoded", lambda length: logits_after(runner, length, decoded(length))
    for count in (1, 7, 15):
        yield f"beside {count} rows", lambda length, count=count: logits_after(runner, length, [length], count)
    yield "decoded beside 15 rows", lambda length: logits_after(runner, length, decoded(length), 15)


def decoded(length: int) -> list[int]:
    last = min(length - 1, 20)
    return [length - last, *([1] * last)]


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


def check(folder: Path, options: dict[str, Any]) -> tuple[int, list[str]]:
    """How many logit rows were compared, and which differed."""
    runner = start_native(folder, **{**SETTINGS, **options})
    wanted = {length: logits_after(runner, length, [length]) for length in LENGTHS}
    compared, wrong = 0, []
    runs = list(ways(runner))
    for threads in (1, 3):
        other = start_native(folder, **{**SETTINGS, **options, "threads": threads})
        name = f"restarted with {threads} threads"
        runs.append((name, lambda length, other=other: logits_after(other, length, split(length, 100), 3)))
    for name, run in runs:
        for length in LENGTHS:
            compared += 1
            if not same_bits(run(length), wanted[length]):
                wrong.append(f"{name}, {length} tokens")
    return compared, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", nargs="+", choices=list(FORMATS), default=list(FORMATS))
    options = parser.parse_args()
    folder, lines, failed = pull(MODEL), [], False
    for name in options.formats:
        began = time.monotonic()
        compared, wrong = check(folder, FORMATS[name])
        outcome = "equal" if not wrong else "DIFFER: " + "; ".join(wrong)
        lines.append(f"| {name} | {compared} | {outcome} |")
        failed = failed or bool(wrong)
        print(f"{name}: {compared} rows of logits, {outcome} ({time.monotonic() - began:.0f} s)", flush=True)
    if options.formats == list(FORMATS):
        RESULTS.write_text(page(lines))
    return 1 if failed else 0


def page(lines: list[str]) -> str:
    return "\n".join(
        (
            "# Bit exactness on the sample model",
            "",
            f"`make parity`: {MODEL}, instruction set {kernels.instruction_sets()[0]}. Logits after {LENGTHS} tokens,",
            "computed at once and alone, against the same in chunks of 16, 64 and 250, with the last 20 tokens decoded",
            "one by one, beside 1, 7 and 15 other rows, and by a fresh model on 1 and 3 threads: every bit of 49,152",
            "numbers.",
            "",
            "| format | rows of logits compared | outcome |",
            "|---|---|---|",
            *lines,
            "",
        )
    )


if __name__ == "__main__":
    sys.exit(main())
