"""Memory of the service and its worker over many requests: what stays, stays after the first few hundred.

python bench/soak.py                          # the scripted worker: at most 2 MiB from request 200 to 1,000
python bench/soak.py --model FOLDER_OR_NAME   # a real model: at most 1 % in a thousand requests, once its cache is full
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import aiohttp
import psutil

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from service_rig import ServiceProcess
from tiny_folder import write_folder

MIB = 1 << 20
SCRIPTED_GROWTH_BYTES = 2 * MIB
MODEL_GROWTH_RATIO = 0.01
# Small enough for all of the cache's pages to be in use before the first look.
MODEL_SETTINGS = ("--worker", "process", "--kv-cache-bytes", str(256 * MIB), "--max-running", "32")


async def requests(url: str, first: int, last: int, options: argparse.Namespace) -> None:
    """Distinct prompts, half of them streamed, every tenth abandoned in mid-stream."""
    numbers = iter(range(first, last))

    async def lane(session: aiohttp.ClientSession) -> None:
        for number in numbers:
            body = {
                "prompt": f"request {number} " + "about this and that " * 8,
                "max_tokens": options.output_tokens,
                "ignore_eos": True,
                "stream": number % 2 == 0,
            }
            async with session.post(f"{url}/v1/completions", json=body) as response:
                response.raise_for_status()
                if number % 10 == 0:
                    await response.content.readline()
                else:
                    await response.read()

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session, asyncio.TaskGroup() as group:
        for _ in range(options.concurrency):
            group.create_task(lane(session))


def resident(service: ServiceProcess) -> dict[str, int]:
    (worker,) = service.workers()
    return {"host": psutil.Process(service.pid).memory_info().rss, "worker": worker.memory_info().rss}


def soak(service: ServiceProcess, options: argparse.Namespace) -> bool:
    """Whether memory stayed within the limit."""
    asyncio.run(requests(service.url, 0, options.settle, options))
    before = resident(service)
    asyncio.run(requests(service.url, options.settle, options.requests, options))
    after = resident(service)
    within = True
    for name, size in before.items():
        limit = size * MODEL_GROWTH_RATIO if options.model else SCRIPTED_GROWTH_BYTES
        growth = after[name] - size
        within &= growth <= limit
        print(
            f"{name:6} RSS {size / MIB:8.1f} MiB after {options.settle} requests, {after[name] / MIB:8.1f} MiB after "
            f"{options.requests}: {growth / MIB:+.2f} MiB, limit {limit / MIB:+.2f}"
        )
    return within


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="serve this model instead of the scripted worker")
    parser.add_argument("--settle", type=int, help="requests before the first look (200; 1,200 with a model)")
    parser.add_argument("--requests", type=int, help="requests at the last look (1,000; 2,200 with a model)")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--output-tokens", type=int, default=32)
    options = parser.parse_args()
    options.settle = options.settle or (1200 if options.model else 200)
    options.requests = options.requests or (2200 if options.model else 1000)
    with tempfile.TemporaryDirectory(prefix="diptych-soak-") as folder:
        model = Path(options.model) if options.model else write_folder(Path(folder) / "tiny")
        with ServiceProcess(model, *(MODEL_SETTINGS if options.model else ())) as service:
            return 0 if soak(service, options) else 1


if __name__ == "__main__":
    sys.exit(main())
