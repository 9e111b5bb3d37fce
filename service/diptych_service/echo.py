"""`echo`: the prompt stands before each of its answers, with its own log probabilities where they are wanted."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec.structs import replace

from diptych import Output


async def echoed(source: AsyncGenerator[Output, None], most: int) -> AsyncGenerator[Output, None]:
    """The outputs of a prompt's stream, each choice's text and log probabilities beginning with those of the prompt.

    `most`: how many of the likeliest tokens stand beside each of the prompt.
    """
    prompt, begun = "", set[int]()
    async with aclosing(source) as outputs:
        async for output in outputs:
            if output.accepted:
                prompt = output.prompt_text or ""
                yield output
                continue
            after = [replace(entry, offset=entry.offset + len(prompt)) for entry in output.logprobs]
            if output.choice in begun:
                yield replace(output, logprobs=after)
                continue
            begun.add(output.choice)
            before = [replace(entry, likeliest=entry.likeliest[:most]) for entry in output.prompt_logprobs]
            yield replace(output, text=prompt + output.text, logprobs=before + after)
