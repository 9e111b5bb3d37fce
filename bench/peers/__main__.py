"""Measures Diptych and its peers on this machine's CPU, in turns, and holds the figures against the targets.

    make bench-peers                                             # all of it: about half an hour
    make bench-peers ARGS='--quick --rounds 1 --loads W1,W2 --engines diptych,llama.cpp'
    make bench-peers ARGS='--prepare'                            # install and convert only

One engine is alive at a time: started, warmed, loaded, stopped; round by round, every second round in reverse.
Ratios are of the same round: above 1 ours is better.
TTFT: request sent to first text. TPOT: (end of stream - TTFT) / (tokens - 1).
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import signal
import sys
import time
from pathlib import Path

from . import report
from .engines import ENGINES, Launch, Place, prepare
from .environments import PeerError, cache
from .loads import LOADS, WORDS
from .machine import Bandwidth
from .report import Run
from .visits import Conditions, visit

RESULTS = Path(__file__).parent.parent / "results" / "peers.md"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--loads", default="", help=f"of {','.join(LOADS)} (default: all)")
    parser.add_argument("--engines", default="", help="names or their beginnings, with commas (default: all)")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter requests: to try it out")
    parser.add_argument("--prepare", action="store_true", help="install and convert only")
    parser.add_argument("--threads", type=int, default=2, help="of each engine (default: %(default)s)")
    parser.add_argument("--model", default="smollm2-135m", help="a model of the cache (default: %(default)s)")
    parser.add_argument("--diptych", type=Path, default=Path(sys.executable).parent / "diptych", help="(default: ours)")
    parser.add_argument(
        "--quiet-limit", type=float, default=0.1, help="CPUs that others may use (default: %(default)s)"
    )
    parser.add_argument("--patience", type=float, default=300.0, help="seconds to wait for that (default: %(default)s)")
    parser.add_argument(
        "--output", type=Path, help=f"default: {RESULTS.name} in results, for a whole run; else nothing"
    )
    options = parser.parse_args(arguments)
    options.loads = _chosen(parser, options.loads, list(LOADS))
    options.engines = _chosen(parser, options.engines, list(ENGINES))
    whole = not options.quick and len(options.loads) == len(LOADS) and len(options.engines) == len(ENGINES)
    if options.output is None and whole and options.rounds >= 3:
        options.output = RESULTS
    return options


def _chosen(parser: argparse.ArgumentParser, asked: str, names: list[str]) -> list[str]:
    """Of `names`, those that begin with one of the words asked for."""
    words = [word for word in asked.split(",") if word]
    for word in words:
        if not any(name.startswith(word) for name in names):
            parser.error(f"{word!r} is the beginning of none of: {', '.join(names)}")
    return [name for name in names if not words or any(name.startswith(word) for word in words)]


def word_ids(source: Path) -> dict[str, int]:
    """The words of all prompts, each a token."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    ids = {word: tokenizer.encode(word, add_special_tokens=False).ids for word in WORDS}
    return {word: of[0] for word, of in ids.items() if len(of) == 1}


def prepared(names: list[str], place: Place) -> tuple[dict[str, Launch], dict[str, str]]:
    """How to start each engine, and why some cannot be."""
    launches, absent = {}, {}
    for name in names:
        try:
            launches[name] = prepare(ENGINES[name], place)
        except PeerError as error:
            absent[name] = str(error)
            print(f"{name}: cannot be had: {error}", flush=True)
    return launches, absent


async def measure(options: argparse.Namespace, place: Place, names: list[str], run: Run) -> None:
    conditions = Conditions(
        place=place,
        loads=options.loads,
        word_ids=word_ids(place.source),
        quick=options.quick,
        quiet_limit=options.quiet_limit,
        patience=options.patience,
    )
    bandwidth = Bandwidth(options.threads)
    for index in range(options.rounds):
        for name in names if index % 2 == 0 else list(reversed(names)):
            print(f"round {index + 1}, {name}", flush=True)
            before = bandwidth.measure()
            visited = await visit(ENGINES[name], conditions, index)
            after = bandwidth.measure()
            # What a virtual machine can read depends on its neighbours: the limit is that of the visit's own time.
            visited.bandwidth = max(before, after)
            run.visits[name].append(visited)
            run.bandwidths += [before, after]
    if not bandwidth.huge:
        print("the system gives no huge pages: the bandwidth limit is too low")


def written(run: Run, options: argparse.Namespace, place: Place, launches: dict[str, Launch], begun: float) -> str:
    """The whole report."""
    commands = {name: launch.shown(place) for name, launch in launches.items()}
    minutes = (time.time() - begun) / 60
    parts = [
        "# Diptych and its peers on a CPU",
        f"`make bench-peers`, {time.strftime('%Y-%m-%d', time.gmtime(begun))}: {options.rounds} rounds, "
        f"{options.threads} threads each, {minutes:.0f} minutes. {_machine()}. {report.use_by_others(run)} "
        "Median (lowest..highest) of the rounds; ratios within one round, above 1 ours is better.",
    ]
    if run.bandwidths:
        parts.append(
            f"Read bandwidth, before and after each engine's turn: {report.spread(run.bandwidths)} GB/s; "
            f"16-bit weights have {run.weight_bytes / 1e6:.0f} MB."
        )
    parts += [
        "## Targets",
        report.table(["target, lower end of the spread", "outcome"], [list(one) for one in report.outcomes(run)]),
    ]
    parts += ["## Loads", *(report.load_table(run, name) for name in options.loads)]
    parts += ["## Engines", report.engine_table(run, commands)]
    return "\n\n".join(parts) + "\n"


def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    known = set(facts.get("flags", "").split())
    found = [flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile") if flag in known]
    count = sum(line.startswith("processor") for line in lines)
    return f"{count} × {facts.get('model name', platform.machine())} ({', '.join(found)})"


def failed_of_ours(run: Run) -> list[str]:
    ours = [engine.name for engine in ENGINES.values() if engine.ours]
    return [
        f"{name}: {load}: {error}"
        for name in ours
        for visited in run.visits.get(name, [])
        for load, error in visited.errors.items()
    ]


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    source = cache().parent / "models" / options.model
    place = Place(source=source, model=options.model, diptych=options.diptych.absolute(), threads=options.threads)
    begun = time.time()
    launches, absent = prepared(options.engines, place)
    if options.prepare:
        return 1 if absent else 0
    names = list(launches)
    weights = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    run = Run(visits={name: [] for name in names}, absent=absent, weight_bytes=weights)
    # Whoever ends this run ends the engine with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        asyncio.run(measure(options, place, names, run))
    except KeyboardInterrupt:
        print("ended before the last round: nothing is written", file=sys.stderr)
        return 130
    text = written(run, options, place, launches, begun)
    print(text)
    if options.output is not None:
        options.output.write_text(text)
        print(f"written to {options.output}")
    failures = failed_of_ours(run)
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
