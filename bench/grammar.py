"""What constrained streams cost the free ones beside them: nothing that they could notice.

    bench/grammar.py [--streams 64] [--pairs 20] [--tokens 120] [--step-ms 10] [--overlap 0] [--page FILE] [--json FILE]

Each pair of runs has the same free streams on a scripted worker whose step lasts `--step-ms`, once alone and once
beside as many streams that follow a JSON schema and are longer; which comes first alternates. Printed are the medians
of the gaps between tokens of the free streams and their ratio, pair by pair and in all, how often a step left a free
stream out because of a mask (by the scheduler's own books: `Explanation.waits`), and for the constrained streams how
often they had to wait for one, and whether every answer parses. With `--control` the others follow nothing: what so
many streams more cost by themselves. `--page` measures both and writes them to a file; the exit code is 1 where a limit
is missed.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import diptych_core
from diptych import AsyncEngine, EngineConfig, SamplingParams, StructuredOutputs

MOST_RATIO = 1.03
PROMPT = [(7 * index) % 900 + 100 for index in range(24)]
ENTRY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 12, "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["person", "company", "other"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 2, "maxItems": 5},
    },
    "required": ["name", "age", "kind", "tags"],
    "additionalProperties": False,
}
# So many entries that every answer is longer than the free ones: all streams run as long as is measured.
SCHEMA = {
    "type": "array",
    "items": ENTRY,
    "minItems": 3,
    "maxItems": 4,
    # A hash would write white space wherever it may.
    "x-guidance": {"whitespace_flexible": False},
}
MOST_CONSTRAINED_TOKENS = 1000


@dataclass
class Run:
    """What was seen of the streams of one run. Gaps in seconds."""

    gaps: list[float] = field(default_factory=list)
    waited: int = 0
    # Of each constrained stream.
    constrained_tokens: list[int] = field(default_factory=list)
    constrained_waits: int = 0
    parsed: int = 0

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


async def constrained_stream(engine: AsyncEngine, number: int, run: Run) -> None:
    asked = StructuredOutputs(json=SCHEMA)
    most = MOST_CONSTRAINED_TOKENS
    params = SamplingParams(max_tokens=most, temperature=0.0, structured_outputs=asked, explain=True)
    text, tokens, reason = "", 0, None
    async for output in engine.generate([*PROMPT, 3000 + number], params):
        text += output.text
        tokens += len(output.token_ids)
        reason = output.finish_reason or reason
        if output.explanation is not None:
            run.constrained_waits += sum(wait.steps for wait in output.explanation.waits if wait.reason == "mask")
    run.constrained_tokens.append(tokens)
    if reason == "stop":
        json.loads(text)
        run.parsed += 1


@dataclass(frozen=True)
class Found:
    """What the pairs of one measurement gave; the names say what is printed."""

    pairs: int
    median_gap_alone_ms: float
    median_gap_beside_ms: float
    median_ratio: float
    worst_ratio: float
    steps_in_which_a_free_stream_waited_for_a_mask: int
    constrained_tokens: int
    shortest_constrained_answer_in_tokens: int
    steps_in_which_a_constrained_stream_waited_for_a_mask: int
    answers: int
    answers_that_ended_and_parse: int

    @property
    def holds(self) -> bool:
        """Whether the free streams noticed nothing."""
        return self.median_ratio < MOST_RATIO and self.steps_in_which_a_free_stream_waited_for_a_mask == 0


async def run_once(engine: AsyncEngine, arguments: argparse.Namespace, *, beside: bool, control: bool) -> Run:
    run, streams, tokens = Run(), arguments.streams, arguments.tokens
    free = [free_stream(engine, number, tokens, run) for number in range(streams)]
    numbers = range(streams if beside else 0)
    if control:
        others = [free_stream(engine, 5000 + number, tokens, Run()) for number in numbers]
    else:
        others = [constrained_stream(engine, number, run) for number in numbers]
    await asyncio.gather(*free, *others)
    return run


async def measure(arguments: argparse.Namespace, *, control: bool) -> Found:
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
        await run_once(engine, arguments, beside=True, control=control)
        for number in range(arguments.pairs):
            found = {}
            for with_others in (False, True) if number % 2 else (True, False):
                found[with_others] = await run_once(engine, arguments, beside=with_others, control=control)
            alone, beside = found[False], found[True]
            pairs.append((alone, beside))
            print(
                f"pair {number + 1:2}: median gap alone {alone.median * 1e3:7.3f} ms, beside the others "
                f"{beside.median * 1e3:7.3f} ms, ratio {beside.median / alone.median:.4f}"
            )
    return summary(pairs)


def summary(pairs: list[tuple[Run, Run]]) -> Found:
    ratios = [beside.median / alone.median for alone, beside in pairs]
    besides = [beside for _, beside in pairs]
    constrained = [tokens for beside in besides for tokens in beside.constrained_tokens]
    return Found(
        pairs=len(pairs),
        median_gap_alone_ms=1e3 * statistics.median(gap for alone, _ in pairs for gap in alone.gaps),
        median_gap_beside_ms=1e3 * statistics.median(gap for beside in besides for gap in beside.gaps),
        median_ratio=statistics.median(ratios),
        worst_ratio=max(ratios),
        steps_in_which_a_free_stream_waited_for_a_mask=sum(run.waited for pair in pairs for run in pair),
        constrained_tokens=sum(constrained),
        shortest_constrained_answer_in_tokens=min(constrained, default=0),
        steps_in_which_a_constrained_stream_waited_for_a_mask=sum(run.constrained_waits for run in besides),
        answers=len(constrained),
        answers_that_ended_and_parse=sum(run.parsed for run in besides),
    )


def page(arguments: argparse.Namespace, constrained: Found, control: Found) -> str:
    def row(others: str, found: Found) -> str:
        return (
            f"| {others} | {found.median_gap_alone_ms:.3f} | {found.median_gap_beside_ms:.3f} | "
            f"{found.median_ratio:.4f} | {found.worst_ratio:.4f} |"
        )

    streams = arguments.streams
    lines = [
        "# Constrained streams beside free ones",
        "",
        f"`python bench/grammar.py --page FILE` on {time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores: {streams} free "
        f"streams on a scripted worker whose steps last {arguments.step_ms:g} ms, alone and beside {streams} others; "
        f"{constrained.pairs} pairs of runs with {arguments.tokens} tokens a stream, which comes first alternates; "
        f"`overlap` {arguments.overlap}.",
        "",
        "| the others | median gap alone, ms | median gap beside them, ms | ratio, median of pairs | worst pair |",
        "| --- | --- | --- | --- | --- |",
        row("follow a JSON schema", constrained),
        row("are free too", control),
        "",
        "| | measured | limit |",
        "| --- | --- | --- |",
        f"| median gap beside constrained streams ÷ alone | {constrained.median_ratio:.4f} | under {MOST_RATIO} |",
        "| steps in which a free stream waited for a mask | "
        f"{constrained.steps_in_which_a_free_stream_waited_for_a_mask} | 0 |",
        "",
        f"{constrained.constrained_tokens:,} tokens were drawn under a mask; in "
        f"{constrained.steps_in_which_a_constrained_stream_waited_for_a_mask:,} steps a constrained stream sat out. "
        f"{constrained.answers_that_ended_and_parse:,} of {constrained.answers:,} answers ended and parse; "
        f"the shortest has {constrained.shortest_constrained_answer_in_tokens} tokens, so that all ran as long as "
        "the free ones.",
        "",
    ]
    return "\n".join(lines)


def show(found: Found) -> None:
    for name, value in asdict(found).items():
        print(f"{name.replace('_', ' ')}: {value if isinstance(value, int) else round(value, 4)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="whose tokenizer")
    parser.add_argument("--streams", type=int, default=64, help="free streams, and as many constrained ones")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=120, help="most tokens of a stream")
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--overlap", type=int, default=0)
    parser.add_argument("--control", action="store_true", help="the others are free streams too")
    parser.add_argument("--page", type=Path, help="measure constrained and free others, and write both to this file")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if diptych_core.build_profile != "release":
        print("this is a debug build: its figures mean nothing", file=sys.stderr)
        return 2
    found = asyncio.run(measure(arguments, control=arguments.control))
    show(found)
    if arguments.json:
        arguments.json.write_text(json.dumps(vars(arguments) | asdict(found), default=str, indent=1) + "\n")
    if arguments.page:
        control = asyncio.run(measure(arguments, control=True))
        show(control)
        arguments.page.write_text(page(arguments, found, control))
    return 0 if found.holds else 1


if __name__ == "__main__":
    sys.exit(main())
