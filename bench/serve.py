"""Latency and throughput of any OpenAI-compatible server, as its clients see them.

    python bench/serve.py --url http://127.0.0.1:8000 --concurrency 16 --requests 128
    python bench/serve.py --url http://127.0.0.1:8000 --peer-url http://127.0.0.1:9000    # interleaved, with ratios
    python bench/serve.py --scripted                                                       # everything but a model

TTFT: request sent to first text received. ITL: each gap between two chunks with text. E2E: request sent to end of
stream. TPOT: (E2E - TTFT) / (tokens - 1). Throughput: output tokens of all requests over the time of the whole run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from stream_events import decode_chunk

WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state")
PERCENTILES = (50, 90, 99)


@dataclass
class Sample:
    """One request. Times in seconds; `gaps` between chunks with text."""

    ttft: float = 0.0
    e2e: float = 0.0
    gaps: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    error: str = ""

    @property
    def tpot(self) -> float:
        return (self.e2e - self.ttft) / max(1, self.completion_tokens - 1)


@dataclass(frozen=True)
class Load:
    """What is asked of a server. `rate` in requests a second; without it, `concurrency` requests are kept open."""

    endpoint: str
    requests: int
    concurrency: int
    rate: float | None
    prompt_words: int
    output_tokens: int
    seed: int


class Server:
    """One server under load."""

    def __init__(self, url: str, session: aiohttp.ClientSession, model: str) -> None:
        self.url = url
        self._session = session
        self.model = model

    @classmethod
    async def connect(cls, url: str, session: aiohttp.ClientSession, model: str | None) -> Server:
        """Asks the server for its model unless one is named."""
        if model is None:
            async with session.get(f"{url}/v1/models") as response:
                response.raise_for_status()
                model = (await response.json())["data"][0]["id"]
        return cls(url, session, model)

    async def run(self, load: Load) -> tuple[list[Sample], float]:
        """All samples, and the seconds that the whole took."""
        source = random.Random(load.seed)
        bodies = [self._body(load, source) for _ in range(load.requests)]
        path = "/v1/chat/completions" if load.endpoint == "chat" else "/v1/completions"
        begun = time.perf_counter()
        if load.rate is not None:
            tasks = []
            for body in bodies:
                tasks.append(asyncio.create_task(self._request(path, body)))
                await asyncio.sleep(source.expovariate(load.rate))
            samples = await asyncio.gather(*tasks)
        else:
            queue = iter(bodies)
            lanes = [asyncio.create_task(self._lane(path, queue)) for _ in range(load.concurrency)]
            samples = [sample for lane in await asyncio.gather(*lanes) for sample in lane]
        return list(samples), time.perf_counter() - begun

    async def _lane(self, path: str, bodies: Iterable[bytes]) -> list[Sample]:
        return [await self._request(path, body) for body in bodies]

    def _body(self, load: Load, source: random.Random) -> bytes:
        text = " ".join(source.choices(WORDS, k=load.prompt_words))
        asked = {"messages": [{"role": "user", "content": text}]} if load.endpoint == "chat" else {"prompt": text}
        common = {
            "model": self.model,
            "max_tokens": load.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return msgspec.json.encode({**asked, **common})

    async def _request(self, path: str, body: bytes) -> Sample:
        sample = Sample()
        begun = time.perf_counter()
        try:
            headers = {"Content-Type": "application/json"}
            async with self._session.post(self.url + path, data=body, headers=headers) as response:
                if response.status != 200:
                    sample.error = f"{response.status}: {(await response.text())[:200]}"
                    return sample
                await self._read(response, sample, begun)
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
            sample.error = f"{type(error).__name__}: {error}"
        return sample

    async def _read(self, response: aiohttp.ClientResponse, sample: Sample, begun: float) -> None:
        last = 0.0
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            chunk = decode_chunk(line[6:])
            if chunk.error is not None:
                sample.error = f"in the stream: {str(chunk.error)[:200]}"
            if chunk.usage is not None:
                sample.prompt_tokens = chunk.usage.prompt_tokens
                sample.completion_tokens = chunk.usage.completion_tokens
            if any(choice.text or (choice.delta and choice.delta.get("content")) for choice in chunk.choices):
                now = time.perf_counter()
                if last:
                    sample.gaps.append(now - last)
                else:
                    sample.ttft = now - begun
                last = now
        sample.e2e = time.perf_counter() - begun


def summary(samples: list[Sample], seconds: float) -> dict[str, Any]:
    """Figures of a run; times in milliseconds."""
    good = [sample for sample in samples if not sample.error]
    times = {
        "ttft_ms": [sample.ttft for sample in good],
        "itl_ms": [gap for sample in good for gap in sample.gaps],
        "tpot_ms": [sample.tpot for sample in good if sample.completion_tokens > 1],
        "e2e_ms": [sample.e2e for sample in good],
    }
    tokens = sum(sample.completion_tokens for sample in good)
    return {
        "requests": len(samples),
        "errors": len(samples) - len(good),
        "first_error": next((sample.error for sample in samples if sample.error), None),
        "seconds": seconds,
        "prompt_tokens": sum(sample.prompt_tokens for sample in good),
        "output_tokens": tokens,
        "output_tokens_per_s": tokens / seconds,
        "requests_per_s": len(good) / seconds,
        **{name: percentiles(values) for name, values in times.items()},
    }


def percentiles(seconds: list[float]) -> dict[str, float]:
    """In milliseconds; nothing without at least two values."""
    if len(seconds) < 2:
        return {f"p{rank}": 1e3 * value for rank in PERCENTILES for value in seconds}
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {f"p{rank}": 1e3 * cuts[rank - 1] for rank in PERCENTILES}


def merged(parts: list[tuple[list[Sample], float]]) -> dict[str, Any]:
    return summary([sample for samples, _ in parts for sample in samples], sum(seconds for _, seconds in parts))


def show(name: str, figures: dict[str, Any]) -> None:
    print(
        f"{name}: {figures['requests']} requests, {figures['errors']} errors, {figures['seconds']:.2f} s, "
        f"{figures['output_tokens_per_s']:.1f} output tokens/s, {figures['requests_per_s']:.2f} requests/s"
    )
    if figures["first_error"]:
        print(f"  first error: {figures['first_error']}")
    for metric in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"):
        values = "  ".join(f"{rank} {value:9.2f}" for rank, value in figures[metric].items())
        print(f"  {metric[:-3]:5} {values}  ms")


def show_ratios(ours: dict[str, Any], peer: dict[str, Any]) -> None:
    """Above 1: ours is better, in throughput as in times."""
    print(f"ratio of throughput: {ours['output_tokens_per_s'] / peer['output_tokens_per_s']:.2f}")
    for metric in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"):
        both = [(rank, ours[metric][rank], value) for rank, value in peer[metric].items() if ours[metric].get(rank)]
        print(f"ratio of {metric[:-3]:5}", "  ".join(f"{rank} {theirs / own:6.2f}" for rank, own, theirs in both))


async def measure(options: argparse.Namespace, urls: list[str]) -> list[dict[str, Any]]:
    """Rounds over all servers in turn, after a warm-up of each."""
    headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
    timeout = aiohttp.ClientTimeout(total=None, sock_read=options.timeout)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:
        models = [options.model, options.peer_model]
        servers = [await Server.connect(url, session, models[index]) for index, url in enumerate(urls)]
        parts: list[list[tuple[list[Sample], float]]] = [[] for _ in servers]
        for index in range(options.rounds + 1):
            requests = max(1, options.requests // options.rounds) if index else min(4, options.requests)
            load = Load(
                endpoint=options.endpoint,
                requests=requests,
                concurrency=options.concurrency,
                rate=options.rate,
                prompt_words=options.prompt_words,
                output_tokens=options.output_tokens,
                seed=options.seed + index,
            )
            for server, runs in zip(servers, parts, strict=True):
                result = await server.run(load)
                if index:
                    runs.append(result)
        return [merged(runs) for runs in parts]


@contextmanager
def scripted(step_ms: float) -> Iterator[Any]:
    """A service of our own with the scripted worker, for as long as the context is open."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
    from service_rig import ServiceProcess
    from tiny_folder import write_folder

    with tempfile.TemporaryDirectory(prefix="diptych-bench-") as folder:
        model = write_folder(Path(folder) / "tiny")
        with ServiceProcess(model, "--script-step-ms", str(step_ms)) as service:
            yield service


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="server, without /v1 (default: %(default)s)")
    parser.add_argument("--peer-url", help="a second server, measured in turns with the first")
    parser.add_argument("--scripted", action="store_true", help="start and measure a service with the scripted worker")
    parser.add_argument("--step-ms", type=float, default=0.0, help="time of a scripted step (default: %(default)s)")
    parser.add_argument("--model", help="default: the first that the server names")
    parser.add_argument("--peer-model")
    parser.add_argument("--api-key")
    parser.add_argument("--endpoint", choices=("completions", "chat"), default="completions")
    parser.add_argument("--requests", type=int, default=64, help="over all rounds (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each server (default: %(default)s)")
    parser.add_argument("--concurrency", type=int, default=8, help="requests kept open (default: %(default)s)")
    parser.add_argument("--rate", type=float, help="requests a second, Poisson, instead of --concurrency")
    parser.add_argument("--prompt-words", type=int, default=64, help="about as many tokens (default: %(default)s)")
    parser.add_argument("--output-tokens", type=int, default=128, help="(default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds without a byte (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    with scripted(options.step_ms) if options.scripted else nullcontext() as service:
        urls = [service.url if service is not None else options.url.rstrip("/")]
        if options.peer_url:
            urls.append(options.peer_url.rstrip("/"))
        figures = asyncio.run(measure(options, urls))
    for url, result in zip(urls, figures, strict=True):
        show(url, result)
    if len(figures) == 2:
        show_ratios(*figures)
    if options.json:
        settings = {name: str(value) for name, value in vars(options).items() if name != "api_key"}
        options.json.write_text(
            json.dumps({"options": settings, "servers": dict(zip(urls, figures, strict=True))}, indent=2)
        )
    return 1 if any(result["errors"] for result in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
