"""One engine's turn: a quiet machine awaited, the engine started, warmed, loaded and stopped."""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import dataclass

import aiohttp

from .client import Client
from .engines import Engine, Launch, Place
from .environments import PeerError, cache
from .loads import LOADS, Figures, LoadError, Prompts, Setting
from .machine import Usage, wait_until_quiet
from .process import EngineProcess
from .report import Visit

#: How often a load is tried that others disturb.
ATTEMPTS = 3


@dataclass(frozen=True)
class Measured:
    """A load's figures, and the CPUs that others used meanwhile."""

    figures: Figures
    others: float


@dataclass(frozen=True)
class Conditions:
    """The same for every engine and round."""

    place: Place
    loads: list[str]
    word_ids: dict[str, int]
    quick: bool
    quiet_limit: float
    patience: float


async def visit(engine: Engine, conditions: Conditions, round_index: int) -> Visit:
    """All loads; what fails is noted, and the rest goes on."""
    result = Visit(waited=wait_until_quiet(conditions.quiet_limit, conditions.patience))
    port = _free_port()
    launch: Launch = engine.launch(conditions.place, port)
    logs = cache() / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    timeout = aiohttp.ClientTimeout(total=None, sock_read=300)
    # A connection per request: llama.cpp's server closes idle ones just when they might be used again.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        client = Client(f"http://127.0.0.1:{port}", session, engine.dialect(conditions.place))
        process = EngineProcess(launch.command, launch.variables, logs / f"{engine.name}.log")
        try:
            warming = _setting(client, conditions, f"{round_index} warming")
            result.start_seconds = await process.ready(client, warming.prompts.make(16))
            await _warm(warming, engine)
            for name in conditions.loads:
                if name in engine.spared or (round_index and name in engine.once):
                    continue
                try:
                    measured = await _load(name, client, conditions, str(round_index), process)
                except LoadError as error:
                    result.errors[name] = str(error)
                    print(f"  {name}: {error}", flush=True)
                    continue
                result.figures[name] = measured.figures
                result.others = max(result.others, measured.others)
        except (PeerError, LoadError) as error:
            result.errors["start"] = str(error)
            print(f"  {error}", flush=True)
        finally:
            process.stop()
    return result


def _setting(client: Client, conditions: Conditions, seed: str) -> Setting:
    """Every engine gets the same prompts for a load, in every round other ones."""
    return Setting(client, Prompts(conditions.word_ids, seed), conditions.quick)


async def _load(name: str, client: Client, conditions: Conditions, seed: str, process: EngineProcess) -> Measured:
    """One load, with new prompts once more where others disturbed it; the least disturbed counts."""
    best: Measured | None = None
    for attempt in range(ATTEMPTS):
        measured = await _measure(name, _setting(client, conditions, f"{seed} {name} {attempt}"), process)
        best = measured if best is None or measured.others < best.others else best
        if best.others <= conditions.quiet_limit:
            break
        wait_until_quiet(conditions.quiet_limit, conditions.patience)
    assert best is not None
    return best


async def _measure(name: str, setting: Setting, process: EngineProcess) -> Measured:
    before, own = Usage.now(), time.process_time() + process.cpu_seconds()
    figures = await LOADS[name].run(setting)
    after = Usage.now()
    own = time.process_time() + process.cpu_seconds() - own
    seconds = after.clock - before.clock
    others = max(0.0, (after.busy + after.stolen - before.busy - before.stolen - own) / seconds)
    told = ", ".join(f"{figure.name} {value:.1f} {figure.unit}" for figure, value in figures.items())
    print(f"  {name}: {told} ({seconds:.0f} s, others {others:.2f} CPUs)", flush=True)
    return Measured(figures, others)


async def _warm(setting: Setting, engine: Engine) -> None:
    """A prompt of some length, and some streams at once where the engine has them."""
    streams = 1 if "W2" in engine.spared else 8
    prompts = [setting.prompts.make(300), *(setting.prompts.make(64) for _ in range(streams))]
    first = await setting.client.complete(prompts[0], 8)
    rest = await asyncio.gather(*[setting.client.complete(prompt, 16) for prompt in prompts[1:]])
    error = next((sample.error for sample in (first, *rest) if sample.error), None)
    if error:
        raise LoadError(f"while warming: {error}")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
