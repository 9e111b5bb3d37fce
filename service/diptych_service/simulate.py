"""`diptych simulate`: its flags, and what it prints and writes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from diptych import simulation
from diptych.hub.progress import make_progress
from diptych.simulation import SimulationError

POLICIES = ("diptych", "static", "prefill-first", "fixed-budget", "reserve-max", "first-chunk")
_WORKLOADS = """\
workloads (rates a second, times in seconds):
  poisson,rate=1                                gamma,rate=1,cv=4
  diurnal,rate=1,period=3600,depth=0.8          flash-crowd,rate=1,at=60,lasting=30,factor=10
  tenant-flood,rate=0.1,factor=20               long-prompt-attack,rate=1,every=60,tokens=100000
  same-prefix-herd,rate=1,every=30,size=32,tokens=2048
  abort-storm,rate=1,at=60,lasting=30,share=0.5
traces: --trace FILE.csv (TIMESTAMP, ContextTokens, GeneratedTokens) or FILE.jsonl (Mooncake's, with hash_ids)
"""
# Flags that set one option: the path in the options, and the type.
_FLAGS: dict[str, tuple[str, type, str]] = {
    "--device": ("device", str, "cpu-2core (default) or h200"),
    "--seed": ("seed", int, "of everything that is drawn"),
    "--replicas": ("replicas", int, "engines, 1 to 1,000"),
    "--router": ("router", str, "random, least-loaded (default) or prefix-aware"),
    "--requests": ("workload.requests", int, "how many arrive"),
    "--tenants": ("workload.tenants", int, "among whom ordinary requests are spread"),
    "--priorities": ("workload.priorities", int, "classes of urgency, of diptych alone"),
    "--timeout": ("workload.timeout_s", float, "seconds for all output, of diptych alone"),
    "--ttft-timeout": ("workload.ttft_timeout_s", float, "seconds for the first token, of diptych alone"),
    "--abort-share": ("workload.abort_share", float, "of requests whose clients leave"),
    "--max-tokens": ("workload.max_tokens", int, "what clients ask for"),
    "--prompt-tokens": ("workload.lengths.prompt", int, "mean"),
    "--output-tokens": ("workload.lengths.output", int, "mean"),
    "--spread": ("workload.lengths.spread", float, "of the logarithm of both lengths"),
    "--turns": ("workload.sharing.turns", float, "mean turns of a conversation"),
    "--block-size": ("engine.block_size", int, "tokens"),
    "--blocks": ("engine.blocks", int, "of KV of each replica"),
    "--max-running": ("engine.max_running", int, "requests that run at once"),
    "--max-batched-tokens": ("engine.max_batched_tokens", int, "of a step"),
    "--max-queued-requests": ("engine.max_queued_requests", int, "that may wait"),
    "--target-itl-ms": ("engine.target_itl_ms", float, "what diptych keeps the time between two tokens to"),
    "--prefill-order": ("engine.prefill_order", str, "of diptych: fcfs, shortest-uncached or longest-cached-prefix"),
    "--max-ttft-ms": ("engine.max_ttft_ms", float, "predicted by diptych, beyond which it refuses"),
    "--overlap-depth": ("engine.overlap_depth", int, "steps planned ahead: 0, 1 or 2"),
    "--slo-ttft-ms": ("slo.ttft_ms", float, "what goodput keeps"),
    "--slo-tpot-ms": ("slo.tpot_ms", float, "what goodput keeps"),
    "--noise": ("noise.sigma", float, "of the logarithm of step times; 0 is none"),
    "--horizon": ("horizon_s", float, "virtual seconds after which it ends"),
    "--check-every": ("check_every", int, "steps between two checks of every invariant"),
}


def add_parser(commands: Any) -> None:
    """Add the command to those of `diptych`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "simulate",
        help="run the scheduler, and others beside it, under virtual time",
        epilog=_WORKLOADS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--demo", choices=["batching"], help="draw four requests under static and continuous batching")
    what.add_argument("--suite", action="store_true", help="run what must hold; exit code 1 if something does not")
    what.add_argument("--workload", metavar="KIND,NAME=VALUE,…", help="what arrives; see below")
    what.add_argument("--trace", type=Path, metavar="FILE", help="what arrives, from a file")
    parser.add_argument("--speed", type=float, default=1.0, help="divides the times of a trace")
    parser.add_argument("--policy", default="diptych", metavar="NAME,…", help=f"all, or some of {', '.join(POLICIES)}")
    parser.add_argument("--eviction", metavar="NAME", help="of the peers: lru, lru-ttl=SECONDS or frequency-guarded")
    parser.add_argument("--options", type=Path, metavar="FILE", help="JSON with any option; flags win over it")
    parser.add_argument("--fuzz-requests", type=int, default=1_000_000, help="random requests of the suite")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the suite's page there too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write one HTML page with drawings there")
    for flag, (_path, kind, meaning) in _FLAGS.items():
        parser.add_argument(flag, type=kind, help=meaning)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    if options.demo:
        print(simulation.demo_batching(), end="")
        return 0
    if options.suite:
        return _run_suite(options)
    asked = asked_for(options)
    with make_progress(True) as progress:
        report = simulation.simulate(asked, progress=progress)
    print(report.text(), end="")
    for path, content in ((options.json, report.json), (options.plot, report.html)):
        if path:
            path.write_text(content(), encoding="utf-8")
    return 0


def _run_suite(options: argparse.Namespace) -> int:
    with make_progress(True) as progress:
        page, holds = simulation.run_suite(options.fuzz_requests, progress=progress)
    print(page, end="")
    if options.page:
        options.page.write_text(page, encoding="utf-8")
    return 0 if holds else 1


def asked_for(options: argparse.Namespace) -> dict[str, Any]:
    """The simulation's options: those of the file, and the flags over them."""
    asked = _from_file(options.options) if options.options else {}
    for flag, (path, _kind, _meaning) in _FLAGS.items():
        value = getattr(options, flag.removeprefix("--").replace("-", "_"))
        if value is not None:
            _put(asked, path, value)
    if options.workload:
        _put(asked, "workload.arrivals", _arrivals(options.workload))
    elif options.trace:
        kind = "mooncake" if options.trace.suffix == ".jsonl" else "azure"
        _put(asked, "workload.arrivals", {"kind": kind, "path": str(options.trace), "speed": options.speed})
    if "policies" not in asked or options.policy != "diptych":
        asked["policies"] = list(POLICIES) if options.policy == "all" else options.policy.split(",")
    if options.eviction:
        name, separator, seconds = options.eviction.partition("=")
        asked["eviction"] = {name: _number("--eviction", seconds)} if separator else name
    return asked


def _from_file(path: Path) -> dict[str, Any]:
    try:
        asked = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SimulationError(f"--options {path} cannot be read: {error}", kind="config") from None
    if not isinstance(asked, dict):
        raise SimulationError(f"--options {path} holds no JSON object", kind="config")
    return asked


def _arrivals(text: str) -> dict[str, Any]:
    kind, *parameters = text.split(",")
    arrivals: dict[str, Any] = {"kind": kind}
    for parameter in parameters:
        name, separator, value = parameter.partition("=")
        if not separator:
            raise SimulationError(f"--workload {text}: {parameter!r} is no NAME=VALUE", kind="config")
        arrivals[name] = _number("--workload", value)
    return arrivals


def _number(flag: str, text: str) -> int | float:
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise SimulationError(f"{flag}: {text!r} is no number", kind="config") from None


def _put(asked: dict[str, Any], path: str, value: Any) -> None:
    *outer, name = path.split(".")
    for key in outer:
        asked = asked.setdefault(key, {})
    asked[name] = value
