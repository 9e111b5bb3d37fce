"""What each fusion of the native kernels and its prefetch gain: time and bytes of a step with and without it.

    make bench-kernels [ARGS="--weights int8 --rounds 40"]
    make bench-kernels ARGS=--kv-layout

Models that differ in one switch run the same steps in turn, so that a noisy machine bears on all alike. Bytes are
counted from the shapes: what a step writes to memory and reads from it, each pass over an array once. `--kv-layout`
compares layouts of the paged cache instead, natively. Both write a page to bench/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import diptych_core
from diptych.hub.pull import pull
from diptych.models.config import LlamaConfig
from diptych.models.registry import read_config
from diptych.worker.arithmetic import choose_dtype, cpu_flags
from diptych.worker.packed_weights import find_source, open_weights
from diptych.worker.synthetic_step import SyntheticStep
from diptych_core import kernels

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench/results"
MODEL = "smollm2-135m"
BLOCK_SIZE = 16
# A byte that gives every format of the cache small numbers.
FILLER = 0x3C
# The gain below which a fusion is not worth its code.
WORTH = 0.03


@dataclass(frozen=True)
class Load:
    """Rows of a step: all decode one token after `context`, or one brings `prefill` tokens."""

    rows: int
    context: int
    prefill: int = 0

    @property
    def tokens(self) -> int:
        return self.prefill or self.rows

    def __str__(self) -> str:
        if self.prefill:
            return f"prefill of {self.prefill}"
        return f"{self.rows} rows after {self.context}" if self.rows > 1 else f"1 row after {self.context}"


LOADS = (Load(1, 256), Load(8, 256), Load(32, 256), Load(1, 0, 512))
FUSIONS = {
    "swiglu": "SwiGLU over a tile's sums",
    "argmax": "greedy id over a tile's logits",
    "prefetch": "prefetch of weights",
}


@dataclass(frozen=True)
class Sizes:
    """What bytes are counted from."""

    config: LlamaConfig
    weights: int
    kv_token: int

    def step(self, load: Load) -> int:
        """Bytes of a step with every fusion: weights and cache read, what one phase hands to the next written and
        read."""
        config = self.config
        kv = load.rows * load.context + load.tokens
        qkv = (config.heads + 2 * config.kv_heads) * config.head_dim
        between = 4 * config.hidden + qkv + config.heads * config.head_dim + config.intermediate
        return self.weights + kv * self.kv_token + 2 * 4 * load.tokens * between * config.layers

    def without(self, fusion: str, load: Load) -> int:
        """Bytes that come on top where a fusion is switched off."""
        config = self.config
        return {
            "swiglu": 2 * 4 * load.tokens * 2 * config.intermediate * config.layers,
            "argmax": 2 * 4 * load.rows * config.vocabulary,
            "prefetch": 0,
        }[fusion]


class Stepper:
    """A model, and the steps of each load."""

    def __init__(self, weights: kernels.Weights, settings: dict[str, Any]) -> None:
        self.model = kernels.Model(weights, json.dumps(settings).encode())
        self.model.fill_cache(FILLER)
        self.about = json.loads(self.model.describe())
        self.blocks = settings["num_blocks"]
        self.steps: dict[Load, SyntheticStep] = {}

    def time(self, load: Load) -> float:
        """Seconds of one step."""
        if load not in self.steps:
            self._prepare(load)
        step = self.steps[load]
        begun = time.perf_counter()
        self.model.run(step)
        return time.perf_counter() - begun

    def _prepare(self, load: Load) -> None:
        """Makes the step and sets up its tables: block 0 belongs to nobody, the rest is dealt out in turn."""
        generator = np.random.default_rng(7)
        count = load.prefill or 1
        rows = [(row, load.context, generator.integers(0, 1000, count).tolist()) for row in range(load.rows)]
        step = SyntheticStep(rows, 0 if load.prefill else load.rows, False)
        needed = -(-(load.context + count) // BLOCK_SIZE)
        tables = generator.permutation(np.arange(1, self.blocks))[: load.rows * needed].reshape(load.rows, needed)
        owners = step.arrays["rows"].repeat(count)
        positions = step.arrays["positions"].astype(np.int64)
        slots = tables[owners, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        step.arrays["slots"] = slots.astype(np.int64)
        nothing = {name: array for name, array in step.arrays.items() if name.startswith("delta_")}
        step.arrays["delta_rows"] = np.arange(load.rows, dtype=np.int32)
        step.arrays["delta_starts"] = np.zeros(load.rows, dtype=np.int32)
        step.arrays["delta_counts"] = np.full(load.rows, needed, dtype=np.int32)
        step.arrays["delta_blocks"] = tables.ravel().astype(np.int32)
        self.model.run(step)
        step.arrays.update(nothing)
        self.steps[load] = step


@dataclass(frozen=True)
class Gain:
    """A load with and without a fusion: seconds of the fastest step, and the median of the rounds' ratios."""

    load: Load
    fusion: str
    with_s: float
    without_s: float
    ratio: float

    @property
    def is_worth_it(self) -> bool:
        return self.ratio >= 1.0 + WORTH


def measure_fusions(weights: kernels.Weights, settings: dict[str, Any], rounds: int) -> tuple[list[Gain], Stepper]:
    """Every load with and without every fusion."""
    base = Stepper(weights, settings)
    others = {fusion: Stepper(weights, {**settings, "without": [fusion]}) for fusion in FUSIONS}
    gains = []
    for load in LOADS:
        count = max(8, rounds // 4) if load.prefill else rounds
        times: dict[str, list[float]] = {name: [] for name in ("", *FUSIONS)}
        order = [("", base), *others.items()]
        for _ in range(count):
            # Nobody always follows the same one.
            order = [*order[1:], order[0]]
            for name, stepper in order:
                times[name].append(stepper.time(load))
        for fusion in FUSIONS:
            ratios = [without / fused for without, fused in zip(times[fusion], times[""], strict=True)]
            gains.append(Gain(load, fusion, min(times[""]), min(times[fusion]), statistics.median(ratios)))
        print(f"{load}: {min(times['']) * 1e3:.2f} ms", flush=True)
    return gains, base


def report_fusions(gains: list[Gain], sizes: Sizes) -> list[str]:
    """The table of one format of weights."""
    lines = [
        "| step | fusion | ms with | ms without | ratio | MB with | MB without |",
        "|---|---|---|---|---|---|---|",
    ]
    for gain in gains:
        moved = sizes.step(gain.load)
        more = moved + sizes.without(gain.fusion, gain.load)
        lines.append(
            f"| {gain.load} | {FUSIONS[gain.fusion]} (`{gain.fusion}`) | {gain.with_s * 1e3:.2f} | "
            f"{gain.without_s * 1e3:.2f} | {gain.ratio:.3f} | {moved / 1e6:.1f} | {more / 1e6:.1f} |"
        )
    return lines


def verdict(gains: list[Gain]) -> str:
    """Which fusions are not worth their code."""
    idle = [name for name in FUSIONS if not any(gain.is_worth_it for gain in gains if gain.fusion == name)]
    if idle:
        return f"Gains less than {WORTH:.0%} in every step: {', '.join(idle)}."
    return f"Each gains {WORTH:.0%} or more in some step."


def run_fusions(arguments: argparse.Namespace) -> str:
    """Measures the fusions with each format of weights; gives the page."""
    lines = [
        "# Fusions of the native kernels",
        "",
        f"`make bench-kernels` on {time.strftime('%Y-%m-%d')}: {MODEL}, {platform.machine()}. Steps with and without "
        "each fusion in turn: the fastest of each, and the median of the ratios (above 1: the fusion gains). Bytes are "
        "counted from the shapes.",
        "",
    ]
    gains: list[Gain] = []
    for form in arguments.weights.split(","):
        found, sizes, about = measure_weights(form, arguments.rounds)
        gains += found
        lines += [f"## {about}", "", *report_fusions(found, sizes), ""]
    return "\n".join([*lines, verdict(gains), ""])


def measure_weights(form: str, rounds: int) -> tuple[list[Gain], Sizes, str]:
    """Every fusion with weights of one format; what was measured, in words."""
    folder, threads = pull(MODEL), len(os.sched_getaffinity(0))
    config = read_config(json.loads((folder / "config.json").read_text()))
    source = find_source(folder, config, "gguf" if form == "gguf" else None)
    arithmetic, _ = choose_dtype("auto", "cpu", source.stored, cpu_flags())
    tokens = max(load.rows * (load.context + BLOCK_SIZE) + load.prefill for load in LOADS)
    settings = {
        "threads": threads,
        "arithmetic": arithmetic,
        "kv": arithmetic,
        "block_size": BLOCK_SIZE,
        "num_blocks": tokens // BLOCK_SIZE + 1,
        "max_running": max(load.rows for load in LOADS),
        "max_tokens": max(load.tokens for load in LOADS),
        "max_model_len": 1024,
        "vocabulary": config.vocabulary,
    }
    with tempfile.TemporaryDirectory(prefix="diptych-kernels-") as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        weights = open_weights(source, config, form, threads)
    needs = json.loads(weights.needs(json.dumps(settings).encode()))
    gains, base = measure_fusions(weights, settings, rounds)
    sizes = Sizes(config, base.about["weight_bytes"], needs["bytes_per_block"] // BLOCK_SIZE)
    stored = source.stored if form == "auto" else form
    about = f"{stored} weights, {arithmetic} KV, {base.about['instruction_set']}, {threads} threads"
    return gains, sizes, about


def run_kv_layout() -> str:
    """Measures layouts of the cache; gives the page."""
    command = ["cargo", "bench", "--quiet", "--locked", "-p", "diptych-cpu", "--bench", "attention"]
    found = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    when = f"`make bench-kernels ARGS=--kv-layout` on {time.strftime('%Y-%m-%d')}, {platform.machine()}."
    return "\n".join(["# Layouts of the KV cache", "", when, "", "```", found.strip(), "```", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kv-layout", action="store_true", help="compare layouts of the paged cache instead")
    parser.add_argument("--weights", default="auto,int8", help="formats, in turn (auto: the checkpoint's)")
    parser.add_argument("--rounds", type=int, default=40, help="steps of each kind (40; prefill a quarter)")
    parser.add_argument("--output", type=Path, help="where the page goes (bench/results/kernels.md or kv_layout.md)")
    arguments = parser.parse_args()
    if diptych_core.build_profile != "release":
        sys.exit(f"bench/kernels.py: diptych_core is a {diptych_core.build_profile} build: run `make setup` first")
    page = run_kv_layout() if arguments.kv_layout else run_fusions(arguments)
    print(page)
    name = "kv_layout.md" if arguments.kv_layout else "kernels.md"
    (arguments.output or RESULTS / name).write_text(page)


if __name__ == "__main__":
    main()
