"""Greedy ids of the engine against transformers in float32, on the sample model.

    make parity [ARGS="--only alone together"]

For each prompt and each way of running it, transformers computes one forward over the prompt followed by our output;
at every position the argmax of its logits, given our own prefix, must be our id. That is the same criterion as equality
with `generate` (by induction over positions), at the cost of one forward. A difference is allowed only where the two
best logits differ by less than 1e-4 in a float64 recomputation, and each one is listed in bench/results/parity.md.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from parity_prompts import EDGES, LONG, MEDIUM, QUESTIONS, prose

from diptych import AsyncEngine, EngineConfig, SamplingParams
from diptych.hub.pull import pull

MODEL = "smollm2-135m"
TOKENS = 64
MARGIN = 1e-4
RESULTS = Path(__file__).parent / "results" / "parity.md"
# One block of 16 tokens in float32: 2 × 30 layers × 3 heads × 64 × 4 bytes × 16.
BLOCK_BYTES = 737_280


@dataclass(frozen=True)
class Run:
    """One way of running the prompts."""

    name: str
    prompts: str  # "standard" or "long"
    concurrent: bool
    chunk: int | None
    rounds: int = 1
    settings: dict[str, Any] = field(default_factory=dict)


SMALL = {"max_model_len": 2304, "kv_cache_bytes": 160 * BLOCK_BYTES, "admission": "whole_prompt"}
RUNS = [
    Run("alone", "standard", False, None),
    Run("together", "standard", True, None),
    Run("together, chunks of 64", "standard", True, 64),
    Run("together, chunks of 16", "standard", True, 16),
    Run("together, prefix cache, twice", "standard", True, None, 2, {"prefix_cache": True}),
    Run("together, prefix cache, chunks of 64, twice", "standard", True, 64, 2, {"prefix_cache": True}),
    Run("together, forced preemption", "standard", True, None, 1, SMALL),
    Run("long, alone", "long", False, None),
    Run("long, alone, chunks of 256", "long", False, 256),
]


@dataclass
class Outcome:
    """What a run gave."""

    run: Run
    outputs: list[tuple[int, list[int]]]  # (prompt index, ids)
    preemptions: int
    cached_tokens: int
    seconds: float
    differences: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def build_prompts(folder: Path) -> dict[str, list[list[int]]]:
    """Prompts as ids."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    questions = [tokenizer.encode(text) for text in QUESTIONS]

    def exactly(length: int) -> list[int]:
        ids: list[int] = tokenizer.encode(prose(length, 20 + length // 10))[:length]
        if len(ids) != length:
            raise SystemExit(f"parity: the prose for {length} tokens has {len(ids)}")
        return ids

    return {
        "standard": questions + [exactly(length) for length in (*EDGES, *MEDIUM)],
        "long": [exactly(length) for length in LONG],
    }


async def run_engine(run: Run, prompts: list[list[int]]) -> Outcome:
    """Runs every prompt through an engine made for this run."""
    settings: dict[str, Any] = {
        **{"model": MODEL, "dtype": "float32", "prefix_cache": False, "max_prefill_tokens": run.chunk},
        # Unbounded: a whole prompt is one chunk.
        **{"max_batched_tokens": 8192, "max_model_len": 8192, "kv_cache_bytes": 1200 * BLOCK_BYTES},
        **run.settings,
    }
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    outcome = Outcome(run, [], 0, 0, 0.0)
    async with AsyncEngine(EngineConfig(**settings)) as engine:

        async def one(index: int) -> None:
            ids: list[int] = []
            async for output in engine.generate(prompts[index], params):
                ids += output.token_ids
                if output.usage is not None:
                    outcome.cached_tokens += output.usage.cached_tokens
                    outcome.preemptions += output.preemptions
            outcome.outputs.append((index, ids))

        started = time.monotonic()
        for _ in range(run.rounds):
            if run.concurrent:
                await asyncio.gather(*(one(index) for index in range(len(prompts))))
            else:
                for index in range(len(prompts)):
                    await one(index)
        outcome.seconds = time.monotonic() - started
    return outcome


class Oracle:
    """transformers in float32, and in float64 where two logits are close; each distinct output is checked once."""

    def __init__(self, folder: Path) -> None:
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.exact: Any = None
        self.folder = folder
        self.checked: dict[tuple[int, ...], list[tuple[int, int, int]]] = {}

    def mismatches(self, prompt: list[int], output: list[int]) -> list[tuple[int, int, int]]:
        """(position in the output, our id, transformers' id) wherever they differ, given our prefix."""
        key = (*prompt, -1, *output)
        if key not in self.checked:
            logits = self._logits(self.model, prompt, output)
            theirs = logits.argmax(dim=-1).tolist()
            pairs = enumerate(zip(output, theirs, strict=True))
            self.checked[key] = [(at, ours, other) for at, (ours, other) in pairs if ours != other]
        return self.checked[key]

    def margin(self, prompt: list[int], output: list[int], at: int, ours: int) -> tuple[float, bool]:
        """In float64: the difference of the two best logits at a position, and whether ours is one of the two."""
        if self.exact is None:
            self.exact = transformers.AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float64).eval()
        best = self._logits(self.exact, prompt, output[: at + 1])[-1].topk(2)
        return float(best.values[0] - best.values[1]), ours in best.indices.tolist()

    @staticmethod
    def _logits(model: Any, prompt: list[int], output: list[int]) -> torch.Tensor:
        """Logits that predict each output id: [len(output), vocabulary]."""
        with torch.inference_mode():
            ids = torch.tensor([prompt + output[:-1]])
            logits: torch.Tensor = model(ids, use_cache=False, logits_to_keep=len(output)).logits[0]
        return logits


def judge(outcome: Outcome, prompts: list[list[int]], oracle: Oracle) -> None:
    """Fills in what differs: allowed differences, and failures."""
    for index, ids in outcome.outputs:
        label = f"prompt {index} ({len(prompts[index])} tokens)"
        if len(ids) != TOKENS:
            outcome.failures.append(f"{label}: {len(ids)} ids instead of {TOKENS}")
            continue
        for at, ours, theirs in oracle.mismatches(prompts[index], ids):
            margin, candidate = oracle.margin(prompts[index], ids, at, ours)
            text = f"{label}, output {at}: ours {ours}, transformers {theirs}, float64 margin {margin:.2e}"
            (outcome.differences if candidate and margin < MARGIN else outcome.failures).append(text)
    if "preemption" in outcome.run.name and not outcome.preemptions:
        outcome.failures.append("nothing was preempted: the pool is not small enough for this run to show anything")
    if outcome.run.rounds > 1 and not outcome.cached_tokens:
        outcome.failures.append("nothing came from the prefix cache in the second round")


def report(outcomes: list[Outcome], prompts: dict[str, list[list[int]]]) -> str:
    """The page of results."""
    lines = [
        "# Parity with transformers",
        "",
        f"`make parity` on {time.strftime('%Y-%m-%d')}: {MODEL} in float32, {TOKENS} greedy tokens a prompt, "
        f"{len(prompts['standard'])} prompts of {min(map(len, prompts['standard']))} to "
        f"{max(map(len, prompts['standard']))} tokens and {len(prompts['long'])} of {' and '.join(map(str, LONG))}. "
        f"torch {torch.__version__}, transformers {transformers.__version__}, {platform.machine()}.",
        "",
        "At every position the argmax of transformers' logits, given our own prefix, must be our id, which is "
        "equality with `generate`. Allowed: positions whose two best logits differ by less than "
        f"{MARGIN:g} in a float64 recomputation.",
        "",
        "| run | outputs | tokens | differences allowed | failures | preemptions | cached tokens | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for outcome in outcomes:
        tokens = sum(len(ids) for _, ids in outcome.outputs)
        lines.append(
            f"| {outcome.run.name} | {len(outcome.outputs)} | {tokens} | {len(outcome.differences)} | "
            f"{len(outcome.failures)} | {outcome.preemptions} | {outcome.cached_tokens} | {outcome.seconds:.0f} |"
        )
    lines.append("")
    for title, name in (("Allowed differences", "differences"), ("Failures", "failures")):
        found = [f"- {outcome.run.name}: {text}" for outcome in outcomes for text in getattr(outcome, name)]
        lines += [f"## {title}", "", *(found or ["None."]), ""]
    return "\n".join(lines)


def main() -> int:
    """Runs all, prints the table, writes it, and gives 1 on any failure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="RUN", help="names of runs, or beginnings of names")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    runs = [run for run in RUNS if not arguments.only or run.name.startswith(tuple(arguments.only))]
    folder = pull(MODEL)
    prompts = build_prompts(folder)
    oracle = Oracle(folder)
    outcomes: list[Outcome] = []
    for run in runs:
        outcome = asyncio.run(run_engine(run, prompts[run.prompts]))
        judge(outcome, prompts[run.prompts], oracle)
        outcomes.append(outcome)
        print(
            f"{run.name}: {len(outcome.outputs)} outputs in {outcome.seconds:.0f} s, {len(outcome.differences)} "
            f"allowed differences, {len(outcome.failures)} failures, {outcome.preemptions} preemptions, "
            f"{outcome.cached_tokens} cached tokens",
            flush=True,
        )
        arguments.output.write_text(report(outcomes, prompts))
    print(arguments.output.read_text())
    return 1 if any(outcome.failures for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
