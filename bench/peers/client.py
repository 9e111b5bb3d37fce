"""The client of all engines: streamed completions, with the time of every chunk."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec
from stream_events import decode_chunk


@dataclass(frozen=True)
class Prompt:
    """The same prompt twice: `text` tokenizes to `ids`."""

    ids: list[int]
    text: str


@dataclass(frozen=True)
class Dialect:
    """What an engine's `/v1/completions` needs besides the common fields."""

    model: str
    #: Whether the prompt is sent as text, where token ids are refused.
    text: bool = False
    extra: dict[str, Any] = field(default_factory=dict)
    #: What a stream says besides that other requests must not hold up for long.
    steady: dict[str, Any] = field(default_factory=dict)


@dataclass
class Sample:
    """One request. Times in seconds since it was sent; `arrivals` has one entry per chunk with text."""

    sent: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    e2e: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    text: str = ""
    error: str = ""

    @property
    def ttft(self) -> float:
        """Request sent to first text."""
        return self.arrivals[0] if self.arrivals else self.e2e

    @property
    def tpot(self) -> float:
        """Time per output token after the first."""
        return (self.e2e - self.ttft) / max(1, self.completion_tokens - 1)

    def worst_gap(self, begin: float, end: float) -> float:
        """The longest wait for a chunk of which some part lies between two moments of the clock."""
        stamps = [self.sent + arrival for arrival in self.arrivals]
        gaps = [after - before for before, after in itertools.pairwise(stamps) if before < end and after > begin]
        # A stream left open, its last chunk before the end of the window, has waited at least so long.
        if stamps and stamps[-1] < end and not self.completion_tokens:
            gaps.append(end - stamps[-1])
        return max(gaps, default=0.0)


class Client:
    """Requests to one engine. Every answer has exactly as many tokens as were asked for, or counts as an error."""

    def __init__(self, url: str, session: aiohttp.ClientSession, dialect: Dialect) -> None:
        self._url = f"{url}/v1/completions"
        self._session = session
        self._dialect = dialect

    @property
    def bounds_gaps(self) -> bool:
        """Whether a stream can say how long its gaps may be."""
        return bool(self._dialect.steady)

    def body(self, prompt: Prompt, output_tokens: int, steady: bool = False) -> bytes:
        return msgspec.json.encode(
            {
                "model": self._dialect.model,
                "prompt": prompt.text if self._dialect.text else prompt.ids,
                "max_tokens": output_tokens,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
                **self._dialect.extra,
                **(self._dialect.steady if steady else {}),
            }
        )

    async def complete(
        self, prompt: Prompt, output_tokens: int, seen: Callable[[], None] | None = None, *, steady: bool = False
    ) -> Sample:
        """One request; `seen` is called at every chunk with text. `steady`: it asks for gaps of bounded length."""
        sample = Sample()
        body = self.body(prompt, output_tokens, steady)
        sample.sent = time.perf_counter()
        try:
            headers = {"Content-Type": "application/json"}
            async with self._session.post(self._url, data=body, headers=headers) as response:
                if response.status != 200:
                    sample.error = f"{response.status}: {(await response.text())[:300]}"
                else:
                    await self._read(response, sample, seen)
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
            sample.error = f"{type(error).__name__}: {error}"
        except asyncio.CancelledError:
            # Told by whoever wants no more of this stream: what has come so far is the sample.
            return sample
        sample.error = sample.error or _miscount(sample, len(prompt.ids), output_tokens)
        return sample

    async def _read(self, response: aiohttp.ClientResponse, sample: Sample, seen: Callable[[], None] | None) -> None:
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            chunk = decode_chunk(line[6:])
            now = time.perf_counter() - sample.sent
            if chunk.error is not None:
                sample.error = f"in the stream: {str(chunk.error)[:300]}"
            if chunk.usage is not None:
                sample.prompt_tokens = chunk.usage.prompt_tokens
                sample.completion_tokens = chunk.usage.completion_tokens
            text = "".join(choice.text or "" for choice in chunk.choices)
            if text:
                sample.arrivals.append(now)
                sample.text += text
                if seen is not None:
                    seen()
        sample.e2e = time.perf_counter() - sample.sent


def _miscount(sample: Sample, prompt_tokens: int, output_tokens: int) -> str:
    """Engines that count otherwise than they were told cannot be compared."""
    if sample.completion_tokens != output_tokens:
        return f"{sample.completion_tokens} output tokens, {output_tokens} were asked for"
    if sample.prompt_tokens != prompt_tokens:
        return f"{sample.prompt_tokens} prompt tokens, {prompt_tokens} were sent"
    return "" if sample.arrivals else "no text"
