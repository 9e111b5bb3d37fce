"""What each format of weights and KV cache costs: perplexity, KL divergence and greedy agreement, against bfloat16.

    make quality [ARGS="--tokens 6000 --weights int8,int8-g32"]

The sample model reads bench/data/kjv.txt (public domain) in windows of 1,024 tokens through the native kernels, all
formats side by side, so that nothing but a slice of logits is kept. Fails if an int8 format costs more than 0.5 % of
perplexity. Writes bench/results/quality.md, unless the text is cut short or formats are chosen.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

import diptych_core
from diptych.hub.pull import pull
from diptych.worker.arithmetic import choose_dtype, cpu_flags
from diptych_core import kernels

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests/support"))

from format_quality import WINDOW, Scores, Variant, encode, load, measure  # noqa: E402

MODEL = "smollm2-135m"
TEXT = ROOT / "bench/data/kjv.txt"
RESULTS = ROOT / "bench/results/quality.md"
# Float32 products take most of the time, and their small costs show early: one window of so many is read with them.
SELDOM = 8
# Share of perplexity that an int8 format may cost.
BOUND = 0.005


def choose_variants(arithmetic: str) -> list[Variant]:
    """The base first, then every format of the weights over its KV cache, then every format of the cache."""
    base = Variant("bfloat16", "bfloat16", arithmetic)
    variants = [base]
    if arithmetic != "float32":
        variants.append(Variant("bfloat16", "bfloat16", "float32", SELDOM))
    # These are multiplied in float32 only.
    variants += [Variant(weights, "bfloat16", "float32", SELDOM) for weights in ("float16", "float32")]
    variants += [Variant(weights, "bfloat16", arithmetic) for weights in ("int8", "int8-g32", "int4", "gguf")]
    return variants + [Variant("bfloat16", kv, arithmetic) for kv in ("float16", "float32", "int8")]


def over_bound(scores: list[Scores]) -> list[str]:
    """The int8 formats that cost too much."""
    found = []
    for score in scores:
        cost, _ = score.cost(scores[0])
        if "int8" in f"{score.variant.weights} {score.variant.kv}" and cost > BOUND:
            found.append(f"{score.variant}: {cost:.2%} of perplexity, at most {BOUND:.1%} are allowed")
    return found


def report(scores: list[Scores], seconds: float) -> str:
    """The page of results."""
    positions = len(scores[0].loss)
    lines = [
        "# What number formats cost",
        "",
        f"`make quality` on {time.strftime('%Y-%m-%d')}: {MODEL} over {positions:,} positions of bench/data/kjv.txt "
        f"(public domain), in windows of {WINDOW:,} tokens; {kernels.instruction_sets()[0]}, {platform.machine()}, "
        f"{seconds:.0f} s.",
        "",
        "Everything is compared with the first line. The model's bfloat16 weights were made from a GGUF file in Q4_1 "
        "(embedding in Q8_0), so that `gguf` holds nearly the same numbers, and the groups of `int4`, which are those "
        "of Q4_1, fit them better than they would fit weights that were never quantized. `float16` and `float32` "
        "weights hold the bfloat16 numbers. Quantized weights are multiplied with activations in int8. "
        f"Products in float32 were computed for one window of {SELDOM}. Cost: growth of the perplexity, with the "
        "standard error of the paired differences; divergence: mean of "
        "KL(first line ‖ this line) in nats; agreement: share of positions with the same greedy id.",
        "",
        "| weights | KV cache | arithmetic | positions | perplexity | cost | divergence | agreement |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for score in scores:
        variant, (cost, error) = score.variant, score.cost(scores[0])
        change = f"{cost:+.3%} ± {error:.3%}" if score is not scores[0] else "–"
        lines.append(
            f"| {variant.weights} | {variant.kv} | {variant.arithmetic} | {len(score.loss):,} | "
            f"{score.perplexity:.4f} | {change} | {score.divergence:.2e} | {score.agreement:.2%} |"
        )
    failures = over_bound(scores)
    bound = f"at most {BOUND:.1%} of perplexity for every int8 format"
    return "\n".join([*lines, "", f"Held: {bound}." if not failures else f"MISSED: {'; '.join(failures)}.", ""])


def run(arguments: argparse.Namespace) -> int:
    """Measures, prints and writes; gives 1 if a bound is missed."""
    folder = pull(MODEL)
    threads = len(os.sched_getaffinity(0))
    ids = encode(folder, TEXT.read_text(), arguments.tokens)
    arithmetic, _ = choose_dtype("auto", "cpu", "bfloat16", cpu_flags())
    variants = choose_variants(arithmetic)
    if arguments.weights:
        variants = [variants[0], *(one for one in variants[1:] if one.weights in arguments.weights.split(","))]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="diptych-quality-") as cache:
        # Packed weights of formats that nobody serves do not stay in the user's cache.
        os.environ["XDG_CACHE_HOME"] = cache
        models = load(folder, variants, threads)
    scores: list[Scores] = []
    for scores in measure(variants, models, ids, threads):
        done, seconds = len(scores[0].loss), time.monotonic() - started
        print(f"{done:,} of {len(ids):,} positions, {seconds:.0f} s", flush=True)
    for score in scores:
        print(f"{score.variant}: {len(score.loss) / score.seconds:.0f} positions/s", flush=True)
    page = report(scores, time.monotonic() - started)
    print(page)
    if arguments.tokens is None and not arguments.weights:
        arguments.output.write_text(page)
    return 1 if over_bound(scores) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, help="read only the first tokens of the text, and write no page")
    parser.add_argument("--weights", help="compare these formats of weights only, with commas, and write no page")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if diptych_core.build_profile != "release":
        sys.exit(f"bench/quality.py: diptych_core is a {diptych_core.build_profile} build: run `make setup` first")
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
