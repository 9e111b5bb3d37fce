"""What constrained streams cost the free ones beside them: nothing that they could notice.

    bench/grammar.py [--streams 64] [--pairs 20] [--tokens 120] [--step-ms 10] [--overlap 0] [--json FILE]

Each pair of runs has the same free streams on a scripted worker whose step lasts `--step-ms`, once alone and once
beside as many streams that follow a JSON schema; which comes first alternates. Printed are the medians of the gaps
between tokens of the free streams and their ratio, pair by pair and in all, how often a step left a free stream out
because of a mask (by the scheduler's own books: `Explanation.waits`), and for the constrained streams how many of their
tokens had to wait for a mask, and whether every answer parses. With `--control` the others follow nothing: what so many
streams more cost by themselves.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import diptych_core
from diptych import AsyncEngine, EngineConfig, SamplingParams, StructuredOutputs

PROMPT = [(7 * index) % 900 + 100 for index in range(24)]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 20, "maxLength": 60},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 3, "maxItems": 9},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
    # A hash would write white space wherever it may.
    "x-guidance": {"whitespace_flexible": False},
}


@dataclass
class Run:
    """What was seen of the streams of one run. Gaps in seconds."""

    gaps: list[float] = field(default_factory=list)
    waited: int = 0
    constrained_tokens: int = 0
    constrained_waits: int = 0
    parsed: int = 0
    cut_off: int = 0

    @property
    def median(self) -> float:
        """Median gap of the free streams."""
        return statistics.median(self.gaps)


async def free_stream(engine: AsyncEngine, number: int, tokens: int, run: Run) -> None:
    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True, explain=True)
    last = 0.0
    async for output in engine.generate([*PROMPT, 1000 + number], params):
        now = time.perf_counter()
        if output.token_ids:
            if last:
                run.gaps.append((now - last) / len(output.token_ids))
            last = now
        if output.explanation is not None:
            run.waited += sum(wait.steps for wait in output.explanation.waits if wait.reason == "mask")


async def constrained_stream(engine: AsyncEngine, number: int, tokens: int, run: Run) -> None:
    asked = StructuredOutputs(json=SCHEMA)
    params = SamplingParams(max_tokens=tokens, temperature=0.0, structured_outputs=asked, explain=True)
    text, reason = "", None
    async for output in engine.generate([*PROMPT, 3000 + number], params):
        text += output.text
        run.constrained_tokens += len(output.token_ids)
        reason = output.finish_reason or reason
        if output.explanation is not None:
            run.constrained_waits += sum(wait.steps for wait in output.explanation.waits if wait.reason == "mask")
    if reason == "stop":
        json.loads(text)
        run.parsed += 1
    else:
        run.cut_off += 1


async def run_once(engine: AsyncEngine, arguments: argparse.Namespace, *, beside: bool) -> Run:
    run, streams, tokens = Run(), arguments.streams, arguments.tokens
    free = [free_stream(engine, number, tokens, run) for number in range(streams)]
    numbers = range(streams if beside else 0)
    if arguments.control:
        others = [free_stream(engine, 5000 + number, tokens, Run()) for number in numbers]
    else:
        others = [constrained_stream(engine, number, tokens, run) for number in numbers]
    await asyncio.gather(*free, *others)
    return run


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    config = EngineConfig(
        model=arguments.model,
        worker="scripted",
        script_step_ms=arguments.step_ms,
        overlap=arguments.overlap,
        max_running=2 * arguments.streams,
        max_batched_tokens=4096,
    )
    pairs: list[tuple[Run, Run]] = []
    async with AsyncEngine(config) as engine:
        await run_once(engine, arguments, beside=True)
        for number in range(arguments.pairs):
            found = {}
            for with_others in (False, True) if number % 2 else (True, False):
                found[with_others] = await run_once(engine, arguments, beside=with_others)
            alone, beside = found[False], found[True]
            pairs.append((alone, beside))
            print(
                f"pair {number + 1:2}: median gap alone {alone.median * 1e3:7.3f} ms, beside the others "
                f"{beside.median * 1e3:7.3f} ms, ratio {beside.median / alone.median:.4f}"
            )
    return summary(pairs)


def summary(pairs: list[tuple[Run, Run]]) -> dict[str, Any]:
    ratios = [beside.median / alone.median for alone, beside in pairs]
    besides = [beside for _, beside in pairs]
    return {
        "pairs": len(pairs),
        "median_gap_alone_ms": 1e3 * statistics.median(gap for alone, _ in pairs for gap in alone.gaps),
        "median_gap_beside_ms": 1e3 * statistics.median(gap for beside in besides for gap in beside.gaps),
        "median_ratio": statistics.median(ratios),
        "worst_ratio": max(ratios),
        "steps_in_which_a_free_stream_waited_for_a_mask": sum(run.waited for pair in pairs for run in pair),
        "constrained_tokens": sum(run.constrained_tokens for run in besides),
        "steps_in_which_a_constrained_stream_waited_for_a_mask": sum(run.constrained_waits for run in besides),
        "answers_that_ended_and_parse": sum(run.parsed for run in besides),
        "answers_that_were_cut_off_by_max_tokens": sum(run.cut_off for run in besides),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="whose tokenizer")
    parser.add_argument("--streams", type=int, default=64, help="free streams, and as many constrained ones")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=120, help="most tokens of a stream")
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--overlap", type=int, default=0)
    parser.add_argument("--control", action="store_true", help="the others are free streams too")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if diptych_core.build_profile != "release":
        print("this is a debug build: its figures mean nothing", file=sys.stderr)
        return 2
    found = asyncio.run(measure(arguments))
    for name, value in found.items():
        print(f"{name.replace('_', ' ')}: {value if isinstance(value, int) else round(value, 4)}")
    if arguments.json:
        arguments.json.write_text(json.dumps(vars(arguments) | found, default=str, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
