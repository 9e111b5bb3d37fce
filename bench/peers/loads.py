"""The loads: what is asked of every engine, and the figures taken of it."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from .client import Client, Prompt, Sample

#: Each is one token with its leading space, in the sample model's tokenizer, and stays one beside any other of them.
WORDS = (
    " time", " year", " people", " way", " day", " man", " thing", " woman", " life", " child", " world", " school",
    " state", " family", " student", " group", " country", " problem", " hand", " part", " place", " case", " week",
    " company", " system", " program", " question", " work", " government", " number", " night", " point", " home",
    " water", " room", " mother", " area", " money", " story", " fact", " month", " lot", " right", " study", " book",
)  # fmt: skip


class LoadError(Exception):
    """A load of which a request failed; its figures would mean nothing."""


@dataclass(frozen=True)
class Figure:
    """One measured kind of value."""

    name: str
    unit: str
    #: Whether more is better.
    rate: bool = False


TPOT = Figure("TPOT", "ms")
TTFT = Figure("TTFT", "ms")
THROUGHPUT = Figure("throughput", "tok/s", rate=True)
WALL = Figure("wall", "s")
GAP = Figure("worst gap", "ms")
LONG_TTFT = Figure("TTFT of the long prompt", "ms")
STEADY_GAP = Figure("worst gap with a target of 50 ms", "ms")
STEADY_TTFT = Figure("TTFT of the long prompt with it", "ms")

Figures = dict[Figure, float]


class Prompts:
    """Prompts of exact lengths, none of which begins as another of the run does, so that no cache helps."""

    def __init__(self, word_ids: dict[str, int], seed: int | str) -> None:
        self._words = word_ids
        self._source = random.Random(seed)
        self._openings: set[tuple[str, ...]] = set()

    def make(self, tokens: int) -> Prompt:
        return self._prompt(self._opening(min(8, tokens)), tokens)

    def sharing(self, count: int, shared: int, own: int) -> list[Prompt]:
        """`count` prompts with their first `shared` tokens in common."""
        head = self._prompt(self._opening(8), shared)
        tails = [self._prompt(self._opening(8), own) for _ in range(count)]
        return [Prompt(head.ids + tail.ids, head.text + tail.text) for tail in tails]

    def _opening(self, length: int) -> list[str]:
        while True:
            words = self._source.choices(list(self._words), k=length)
            if tuple(words) not in self._openings:
                self._openings.add(tuple(words))
                return words

    def _prompt(self, words: list[str], tokens: int) -> Prompt:
        words = words + self._source.choices(list(self._words), k=tokens - len(words))
        return Prompt([self._words[word] for word in words], "".join(words))


@dataclass(frozen=True)
class Setting:
    """Where a load runs."""

    client: Client
    prompts: Prompts
    #: Fewer requests where the figure stays of the same kind: for trying out.
    quick: bool = False


@dataclass(frozen=True)
class Load:
    name: str
    what: str
    figures: tuple[Figure, ...]
    run: Callable[[Setting], Awaitable[Figures]]


async def single(setting: Setting) -> Figures:
    """One stream at a time: the median of its requests."""
    samples = [await setting.client.complete(setting.prompts.make(128), 128) for _ in range(1 if setting.quick else 2)]
    _check(samples)
    return {
        TPOT: 1e3 * statistics.median(sample.tpot for sample in samples),
        TTFT: 1e3 * statistics.median(sample.ttft for sample in samples),
    }


async def prefill(setting: Setting) -> Figures:
    """Prompts of 512 tokens one after the other, each for one token of output."""
    samples = [await setting.client.complete(setting.prompts.make(512), 1) for _ in range(2 if setting.quick else 4)]
    _check(samples)
    return {TTFT: 1e3 * statistics.median(sample.ttft for sample in samples)}


async def eight(setting: Setting) -> Figures:
    """One wave of 8 streams."""
    return {THROUGHPUT: await _wave(setting.client, [setting.prompts.make(256) for _ in range(8)], 128)}


async def thirty_two(setting: Setting) -> Figures:
    """One wave of 32 streams with prompts of 128 to 512 tokens, evenly spread."""
    lengths = [128 + round(384 * index / 31) for index in range(32)]
    random.Random(32).shuffle(lengths)
    prompts = [setting.prompts.make(length) for length in lengths]
    return {THROUGHPUT: await _wave(setting.client, prompts, 32 if setting.quick else 128)}


async def shared(setting: Setting) -> Figures:
    """16 requests at once that share 1,024 tokens which no cache holds yet."""
    prompts = setting.prompts.sharing(16, 1024, 32)
    begun = time.perf_counter()
    _check(await asyncio.gather(*[setting.client.complete(prompt, 16) for prompt in prompts]))
    return {WALL: time.perf_counter() - begun}


async def intrusion(setting: Setting) -> Figures:
    """A long prompt comes while 4 streams decode; they are left as soon as it has answered.

    Once as every engine is, and once more where a stream can say how long its gaps may be.
    """
    ttft, gap = await _intrude(setting, steady=False)
    figures = {LONG_TTFT: ttft, GAP: gap}
    if setting.client.bounds_gaps:
        figures[STEADY_TTFT], figures[STEADY_GAP] = await _intrude(setting, steady=True)
    return figures


async def _intrude(setting: Setting, *, steady: bool) -> tuple[float, float]:
    """TTFT of the long prompt and the worst gap of the streams meanwhile, in ms."""
    decoding = _Decoding(streams=4, chunks=8)
    streams = [
        asyncio.create_task(setting.client.complete(setting.prompts.make(128), 1500, seen, steady=steady))
        for seen in decoding.watchers()
    ]
    try:
        await decoding.wait(streams)
        begun = time.perf_counter()
        length = 1024 if setting.quick else 4096
        long = await setting.client.complete(setting.prompts.make(length), 4)
    finally:
        for stream in streams:
            stream.cancel()
        samples = await asyncio.gather(*streams)
    _check([long])
    if broken := next((sample.error for sample in samples if sample.error), None):
        raise LoadError(broken)
    answered = begun + long.ttft
    # The engine may need a moment to see that the streams are gone.
    await asyncio.sleep(0.5)
    return 1e3 * long.ttft, 1e3 * max(sample.worst_gap(begun, answered) for sample in samples)


class _Decoding:
    """Tells when every stream has had some chunks."""

    def __init__(self, streams: int, chunks: int) -> None:
        self._left = [chunks] * streams
        self._all = asyncio.Event()

    def watchers(self) -> Iterator[Callable[[], None]]:
        return ((lambda index=index: self._seen(index)) for index in range(len(self._left)))

    def _seen(self, index: int) -> None:
        self._left[index] -= 1
        if max(self._left) <= 0:
            self._all.set()

    async def wait(self, streams: list[asyncio.Task[Sample]]) -> None:
        """Until all have; a stream that ends before is an error."""
        event = asyncio.create_task(self._all.wait())
        await asyncio.wait([event, *streams], return_when=asyncio.FIRST_COMPLETED)
        if not event.done():
            event.cancel()
            ended = next(stream for stream in streams if stream.done())
            raise LoadError(f"a stream of 1,500 tokens ended early: {ended.result().error or 'no error told'}")


async def _wave(client: Client, prompts: list[Prompt], output_tokens: int) -> float:
    """Output tokens per second of requests sent at once, over the time until the last has ended."""
    begun = time.perf_counter()
    samples = await asyncio.gather(*[client.complete(prompt, output_tokens) for prompt in prompts])
    seconds = time.perf_counter() - begun
    _check(samples)
    return sum(sample.completion_tokens for sample in samples) / seconds


def _check(samples: list[Sample]) -> None:
    errors = [sample.error for sample in samples if sample.error]
    if errors:
        raise LoadError(f"{len(errors)} of {len(samples)} requests failed, the first with: {errors[0]}")


LOADS = {
    load.name: load
    for load in (
        Load("W1", "one stream, 128 prompt + 128 output tokens; 2 requests", (TPOT, TTFT), single),
        Load("prefill", "one prompt of 512 tokens, 1 output token; 4 requests", (TTFT,), prefill),
        Load("W2", "8 streams, 256 + 128; 1 wave", (THROUGHPUT,), eight),
        Load("W3", "32 streams, 128 to 512 + 128; 1 wave", (THROUGHPUT,), thirty_two),
        Load("W4", "16 requests at once, 1,024 shared and 32 own tokens + 16, nothing cached", (WALL,), shared),
        Load(
            "W5",
            "a prompt of 4,096 tokens comes while 4 streams decode",
            (LONG_TTFT, GAP, STEADY_TTFT, STEADY_GAP),
            intrusion,
        ),
    )
}
