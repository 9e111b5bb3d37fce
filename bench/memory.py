"""The worker's memory peak: does it depend on the chunk, and not on the prompt?

    python bench/memory.py

For steps of 256, 1,024 and unbounded prefill tokens an engine is started on the sample model; the worker's log prints
the bound on its activations. Then a prompt of 1,024 and one of 4,096 tokens run alone, and the peak of the worker's
resident memory during each is read from VmHWM, which is reset before. Held, for every chunk size:

    growth    the peak during a prompt is above the memory at rest by no more than the bound
    prompts   at 256 the two peaks differ by at most 2 % of the peak (the KV pool is touched before ready, so the longer
              prompt's KV bytes are resident in both)
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from diptych import AsyncEngine, EngineConfig, SamplingParams
from diptych.hub.pull import pull

RESULTS = Path(__file__).parent / "results" / "memory.md"
MODEL = "smollm2-135m"
PROMPTS = (1024, 4096)
CHUNKS = (256, 1024, None)
MAX_MODEL_LEN = 4224
KV_BYTES = 256 << 20
MAX_RUNNING = 64


def status_bytes(pid: int, field: str) -> int:
    """A field of /proc/PID/status, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"memory: /proc/{pid}/status has no {field}")


def reset_peak(pid: int) -> None:
    """Sets VmHWM to what is resident now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def bound_bytes(config: EngineConfig, folder: Path) -> int:
    """The bound that the worker plans with and logs."""
    import json

    import torch

    from diptych.models.registry import read_config
    from diptych.worker.init import WorkerInit
    from diptych.worker.startup import activation_bytes

    model = read_config(json.loads((folder / "config.json").read_text()))
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.dtype]
    names = ("block_size", "max_running", "max_batched_tokens", "max_prefill_tokens", "max_model_len")
    fixed: dict[str, Any] = {"kind": "process", "epoch": 0, "layout_version": 1, "options": {}}
    init = WorkerInit(vocabulary=model.vocabulary, **fixed, **{name: getattr(config, name) for name in names})
    return activation_bytes(model, dtype, init)


async def measure(chunk: int | None, dtype: str, folder: Path) -> tuple[int, int, dict[int, int]]:
    """Bound, memory at rest, and the peak for each prompt length, in bytes."""
    config = EngineConfig(
        model=MODEL,
        dtype=dtype,
        max_model_len=MAX_MODEL_LEN,
        kv_cache_bytes=KV_BYTES,
        max_batched_tokens=MAX_MODEL_LEN,
        max_prefill_tokens=chunk,
        max_running=MAX_RUNNING,
        prefix_cache=False,
    )
    bound = bound_bytes(config, folder)
    print(f"chunk {chunk or 'unbounded'}: activation bound {bound / 2**20:.1f} MiB", flush=True)
    peaks: dict[int, int] = {}
    async with AsyncEngine(config) as engine:
        pid = engine.worker_pid()
        if pid is None:
            raise SystemExit("memory: the engine has no worker process")
        # One short request first: what the first step of any kind sets up is no activation.
        await run_prompt(engine, 64)
        rest = status_bytes(pid, "VmRSS")
        for length in PROMPTS:
            reset_peak(pid)
            await run_prompt(engine, length)
            peaks[length] = status_bytes(pid, "VmHWM")
    return bound, rest, peaks


async def run_prompt(engine: AsyncEngine, length: int) -> None:
    """A prompt of distinct ids and four greedy tokens."""
    prompt = [1000 + index * 7 % 40000 for index in range(length)]
    async for _ in engine.generate(prompt, SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)):
        pass


def report(rows: list[dict[str, Any]], dtype: str, failures: list[str]) -> str:
    """The page of results."""
    lines = [
        "# Memory peak of the worker",
        "",
        f"`python bench/memory.py` on {time.strftime('%Y-%m-%d')}: {MODEL} in {dtype}, prompts of {PROMPTS[0]:,} and "
        f"{PROMPTS[1]:,} tokens alone, a KV pool of {KV_BYTES >> 20} MiB that is touched before ready. In MiB.",
        "",
        "| max_prefill_tokens | activation bound | at rest | peak, 1,024 tokens | peak, 4,096 tokens | difference |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        sizes = (row["bound"], row["rest"], row["peaks"][PROMPTS[0]], row["peaks"][PROMPTS[1]])
        cells = " | ".join(f"{size / 2**20:.1f}" for size in sizes)
        share = row["difference"] / row["peaks"][PROMPTS[1]]
        lines.append(f"| {row['chunk'] or 'unbounded'} | {cells} | {row['difference'] / 2**20:.1f} ({share:.2%}) |")
    held = "Held: no peak is above rest by more than the bound; at 256 the peaks differ by at most 2 %."
    return "\n".join([*lines, "", *([f"FAILED: {failure}" for failure in failures] or [held]), ""])


def main() -> int:
    """Measures, prints a table, and gives 1 when something does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    folder = pull(MODEL)
    failures, rows = [], []
    for chunk in CHUNKS:
        bound, rest, peaks = asyncio.run(measure(chunk, arguments.dtype, folder))
        difference = abs(peaks[PROMPTS[1]] - peaks[PROMPTS[0]])
        rows.append({"chunk": chunk, "bound": bound, "rest": rest, "peaks": peaks, "difference": difference})
        for length, peak in peaks.items():
            print(f"  {length} tokens: peak {peak / 2**20:.1f} MiB, {(peak - rest) / 2**20:+.1f} MiB above rest")
            if peak - rest > bound:
                failures.append(f"chunk {chunk}, {length} tokens: grew by {peak - rest} B, the bound is {bound} B")
        share = difference / peaks[PROMPTS[1]]
        print(f"  the peaks differ by {difference / 2**20:.1f} MiB, {share:.2%} of the larger prompt's", flush=True)
        if chunk == CHUNKS[0] and share > 0.02:
            failures.append(f"chunk {chunk}: the peaks differ by {share:.2%}, allowed 2 %")
    for failure in failures:
        print(f"FAILED: {failure}")
    arguments.output.write_text(report(rows, arguments.dtype, failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
