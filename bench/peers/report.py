"""What was measured, as tables: medians with their spread, ratios of equal bits, and the targets."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

from .engines import ENGINES, Engine
from .loads import GAP, LOADS, LONG_TTFT, STEADY_GAP, THROUGHPUT, TPOT, TTFT, WALL, Figure, Figures


@dataclass
class Visit:
    """One engine in one round."""

    start_seconds: float = 0.0
    figures: dict[str, Figures] = field(default_factory=dict)
    #: By load, or "start".
    errors: dict[str, str] = field(default_factory=dict)
    #: CPUs that others used in the worst load.
    others: float = 0.0
    waited: float = 0.0
    #: GB/s that could be read right before or after it, whichever was more.
    bandwidth: float = 0.0


@dataclass
class Run:
    """Visits by engine, one per round; an engine that cannot be had has none."""

    visits: dict[str, list[Visit]]
    #: Why an engine cannot be had.
    absent: dict[str, str] = field(default_factory=dict)
    #: GB/s, at several moments of the run.
    bandwidths: list[float] = field(default_factory=list)
    weight_bytes: int = 0

    def values(self, engine: str, load: str, figure: Figure) -> list[float | None]:
        return [visit.figures.get(load, {}).get(figure) for visit in self.visits.get(engine, [])]

    def ratios(self, ours: str, peer: str, load: str, figure: Figure, theirs: Figure | None = None) -> list[float]:
        """By round; above 1 ours is better, in rates as in times. `theirs`: of the peer, if it is another."""
        pairs = zip(self.values(ours, load, figure), self.values(peer, load, theirs or figure), strict=False)
        both = [(own, other) for own, other in pairs if own and other]
        return [own / other if figure.rate else other / own for own, other in both]

    def limit_factors(self, engine: str, load: str) -> list[tuple[float, float]]:
        """By round: TPOT ÷ the time to read all 16-bit weights once, and that time in ms."""
        pairs = zip(self.values(engine, load, TPOT), self.visits.get(engine, []), strict=True)
        limits = [(value, 1e-6 * self.weight_bytes / visit.bandwidth) for value, visit in pairs if value]
        return [(value / limit, limit) for value, limit in limits]


def ours_for(bits: int) -> str:
    return next(engine.name for engine in ENGINES.values() if engine.ours and engine.bits == bits)


def peers_for(bits: int, family: str = "") -> list[str]:
    return [
        engine.name
        for engine in ENGINES.values()
        if not engine.ours and engine.bits == bits and engine.name.startswith(family)
    ]


@dataclass(frozen=True)
class Target:
    """At least `factor` times as good as the best of the peers, in the worst round."""

    load: str
    figure: Figure
    bits: int
    factor: float
    family: str = ""
    #: What the peers are held to, if it is not the same figure.
    theirs: Figure | None = None

    def outcome(self, run: Run) -> tuple[str, str]:
        """What is asked, and what came of it."""
        whom = f"the faster {self.family}" if self.family else "every peer"
        asked = f"{self.load} {self.figure.name}, {self.bits} bits: {self.factor:.3g} × {whom}"
        ours = ours_for(self.bits)
        worst = {
            peer: min(ratios)
            for peer in peers_for(self.bits, self.family)
            if (ratios := run.ratios(ours, peer, self.load, self.figure, self.theirs))
        }
        if not worst:
            return asked, "not measured"
        peer = min(worst, key=lambda name: worst[name])
        return asked, f"{verdict(worst[peer] >= self.factor)}: {worst[peer]:.2f} × {peer}"


#: "Ahead" and "at most" are a factor of 1.
TARGETS = (
    Target("W1", TPOT, 16, 1.0),
    *(Target(load, THROUGHPUT, 16, 1.8, "llama.cpp") for load in ("W2", "W3")),
    *(Target(load, THROUGHPUT, 8, 2.2, "llama.cpp") for load in ("W2", "W3")),
    *(Target(load, THROUGHPUT, bits, 1.3) for bits in (16, 8) for load in ("W2", "W3")),
    Target("prefill", TTFT, 16, 1.15),
    Target("prefill", TTFT, 8, 1.5),
    *(Target("W4", WALL, bits, 1 / 0.7) for bits in (16, 8)),
    *(Target("W5", LONG_TTFT, bits, 1.0) for bits in (16, 8)),
    *(Target("W5", STEADY_GAP, bits, 10.0, theirs=GAP) for bits in (16, 8)),
)
LIMIT_FACTOR = 1.35


def verdict(holds: bool) -> str:
    return "pass" if holds else "MISS"


def limit_outcome(run: Run) -> tuple[str, str]:
    asked = f"W1 TPOT, 16 bits: within {LIMIT_FACTOR} × of the bandwidth limit"
    factors = run.limit_factors(ours_for(16), "W1")
    if not factors:
        return asked, "not measured"
    factor, limit = max(factors)
    best = 1e-6 * run.weight_bytes / max(run.bandwidths)
    told = (
        f"{factor:.2f} × {limit:.2f} ms of its round ({factor * limit / best:.2f} × the run's shortest, {best:.2f} ms)"
    )
    return asked, f"{verdict(factor <= LIMIT_FACTOR)}: {told}"


def outcomes(run: Run) -> list[tuple[str, str]]:
    return [limit_outcome(run), *(target.outcome(run) for target in TARGETS)]


def spread(values: Iterable[float | None], digits: int | None = None) -> str:
    """Median and range, with digits after their size."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    places = digits if digits is not None else 0 if statistics.median(known) >= 100 else 1
    median, low, high = (f"{value:.{places}f}" for value in (statistics.median(known), min(known), max(known)))
    return f"{median} ({low}..{high})"


def table(head: list[str], rows: list[list[str]]) -> str:
    """GitHub's form."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)


def load_table(run: Run, name: str) -> str:
    """One load: each engine's figures, and how many times better ours of equal bits is."""
    load = LOADS[name]
    head = ["engine", *(f"{figure.name}, {figure.unit}" for figure in load.figures)]
    head += [f"ours ÷ it, {figure.name}" for figure in load.figures]
    rows = [_row(run, engine, name) for engine in ENGINES.values() if engine.name in run.visits]
    return f"### {name}: {load.what}\n\n{table(head, rows)}"


def _row(run: Run, engine: Engine, load: str) -> list[str]:
    figures = LOADS[load].figures
    error = next((visit.errors[load] for visit in run.visits[engine.name] if load in visit.errors), "")
    cells = [spread(run.values(engine.name, load, figure)) for figure in figures]
    if not any(cells):
        cells[0] = f"failed: {error}" if error else f"not run: {engine.spared[load]}" if load in engine.spared else ""
    elif error:
        cells[0] += f"; one round failed: {error}"
    ours = ours_for(engine.bits)
    ratios = [[] if engine.ours else run.ratios(ours, engine.name, load, figure) for figure in figures]
    return [engine.name, *cells, *(spread(values, 2) for values in ratios)]


def engine_table(run: Run, commands: dict[str, str]) -> str:
    """Versions and settings, how long a start took, and why an engine is missing."""
    rows = []
    for engine in ENGINES.values():
        if engine.name in run.absent:
            rows.append([engine.name, "", "", f"cannot be had: {run.absent[engine.name]}"])
        elif engine.name in run.visits:
            visits = run.visits[engine.name]
            starts = [visit.start_seconds for visit in visits if visit.start_seconds]
            failed = next((visit.errors["start"] for visit in visits if "start" in visit.errors), "")
            note = f"does not run: {failed}" if failed else f"`{commands[engine.name]}`"
            kind = " (in process, behind our smallest server)" if engine.in_process else ""
            rows.append([engine.name, engine.versions() + kind, spread(starts), note])
    return table(["engine", "versions", "first answer after, s", "command"], rows)


def use_by_others(run: Run) -> str:
    """How quiet the machine was while loads ran."""
    worst = {name: max((visit.others for visit in visits), default=0.0) for name, visits in run.visits.items()}
    waited = sum(visit.waited for visits in run.visits.values() for visit in visits)
    if not worst:
        return ""
    name = max(worst, key=lambda engine: worst[engine])
    return f"Waited {waited:.0f} s for a quiet machine. Others used {worst[name]:.2f} CPUs at worst (while {name} ran)."
