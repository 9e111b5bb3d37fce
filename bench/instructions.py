"""What a step of the core costs in instructions, and what blocks and requests cost in bytes: no noise of the machine.

    python bench/instructions.py [--page bench/results/instructions.md]

Builds the core's example `figures` and runs it under valgrind: callgrind counts the instructions of `plan` and of
`complete`, dhat the bytes that are allocated at the end. Each figure is the difference of two runs that differ in one
number only, so that what is set up once is in neither.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUNNING = (1, 64, 256, 1024)
CALLS = ("plan", "complete")
# Steps of the two runs: after the first, all requests decode, and between them each fills ten blocks of 16 tokens.
STEPS = (40, 200)
# Instructions of `plan` for each further row.
MOST_PER_ROW = 120
BLOCKS = (4096, 8192)
# 32 bytes of a block's own, 112 of its node in the index, 4 a token and 16 of the table, at 16 tokens.
MOST_PER_BLOCK = 224
REQUESTS = (512, 1024)
TOKENS = (128, 1024)
# Of each request, for whose tokens memory is taken at admission: it never grows.
OUTPUTS = 64
# 128 bytes that a step touches, about 1,024 others, and 5 a token.
MOST_PER_REQUEST, MOST_PER_TOKEN = 1152, 5


def build() -> Path:
    command = ["cargo", "build", "--release", "--locked", "-p", "diptych-core", "--example", "figures"]
    subprocess.run(command, cwd=ROOT, check=True)
    metadata = json.loads(subprocess.check_output(["cargo", "metadata", "--no-deps", "--format-version=1"], cwd=ROOT))
    return Path(metadata["target_directory"]) / "release/examples/figures"


def under_valgrind(tool: list[str], figures: Path, words: tuple[object, ...]) -> str:
    """What valgrind says of one run, on standard error."""
    with tempfile.TemporaryDirectory() as folder:
        files = [f"--{tool[0]}-out-file={folder}/out"]
        command = ["valgrind", f"--tool={tool[0]}", *files, *tool[1:], str(figures), *map(str, words)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(f"bench/instructions.py: {' '.join(command)} failed:\n{run.stderr}")
    return run.stderr


def number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        sys.exit(f"bench/instructions.py: no {pattern!r} in what valgrind said:\n{text}")
    return int(found[1].replace(",", ""))


def instructions(figures: Path, call: str, running: int) -> float:
    """Instructions of one call in a step that decodes `running` requests."""
    tool = ["callgrind", f"--toggle-collect=diptych_core::core::Core::{call}*"]
    short, long = (
        number(r"Collected : ([\d,]+)", under_valgrind(tool, figures, ("steps", running, steps))) for steps in STEPS
    )
    if short == 0:
        sys.exit(f"bench/instructions.py: callgrind saw no call of Core::{call}: was it inlined?")
    return (long - short) / (STEPS[1] - STEPS[0])


def allocated(figures: Path, *words: object) -> int:
    """Bytes on the heap at the end."""
    return number(r"At t-end:\s+([\d,]+) bytes", under_valgrind(["dhat"], figures, words))


def instruction_lines(figures: Path) -> list[str]:
    lines = [
        "| running | plan | per row | of the row at 64 | complete | per row | of the row at 64 |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    table = {running: [instructions(figures, call, running) for call in CALLS] for running in RUNNING}
    for running, calls in table.items():
        cells = [str(running)]
        for call, counted in enumerate(calls):
            each, base = counted / running, table[64][call] / 64
            cells += [f"{counted:,.0f}", f"{each:,.1f}", f"{each / base:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    further = (table[1024][0] - table[64][0]) / (1024 - 64)
    verdict = "pass" if further <= MOST_PER_ROW else "MISS"
    lines += ["", f"Each further row of `plan`: {further:.1f} instructions, at most {MOST_PER_ROW}. **{verdict}**"]
    return lines


def memory_lines(figures: Path) -> list[str]:
    few, many = (allocated(figures, "blocks", blocks) for blocks in BLOCKS)
    block = (many - few) / (BLOCKS[1] - BLOCKS[0])
    each = []
    for tokens in TOKENS:
        few, many = (allocated(figures, "requests", requests, tokens) for requests in REQUESTS)
        each.append((many - few) / (REQUESTS[1] - REQUESTS[0]))
    token = (each[1] - each[0]) / (TOKENS[1] - TOKENS[0])
    request = each[0] - token * (TOKENS[0] + OUTPUTS)
    figures_of = [
        ("a block of 16 tokens, cached", block, MOST_PER_BLOCK),
        (f"a running request, without the room for its tokens and {OUTPUTS} outputs", request, MOST_PER_REQUEST),
        ("each token of a running request", token, MOST_PER_TOKEN),
    ]
    lines = ["| bytes of | counted | at most | |", "| --- | --- | --- | --- |"]
    for name, counted, most in figures_of:
        lines.append(f"| {name} | {counted:,.1f} | {most:,} | {'pass' if counted <= most else 'MISS'} |")
    return lines


def page(figures: Path) -> str:
    lines = [
        "# Instructions of a step, bytes of blocks and requests",
        "",
        "`make bench-instructions`. Counted by valgrind in a release build: the machine makes no difference.",
        "",
        "## Instructions of one call when all requests decode",
        "",
        *instruction_lines(figures),
        "",
        "## Memory",
        "",
        *memory_lines(figures),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, help="also write the tables to this file")
    arguments = parser.parse_args()
    if shutil.which("valgrind") is None:
        sys.exit("bench/instructions.py: no valgrind on PATH: install it (Debian and Ubuntu: apt install valgrind)")
    text = page(build())
    print(text)
    if arguments.page is not None:
        arguments.page.write_text(text)


if __name__ == "__main__":
    main()
