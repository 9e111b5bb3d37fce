"""What a request gives: deltas while it runs, then one output with its end."""

from __future__ import annotations

from typing import Literal

import msgspec

from diptych.explanation import Explanation

# "tool_calls": as "stop", with tool calls that are complete; where the caller named the function it is "stop" itself.
FinishReason = Literal["stop", "tool_calls", "length", "timeout"]


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one choice. `cached_tokens` of the prompt were found in the prefix cache at first admission;
    `reasoning_tokens` of the completion were reasoning, tags included, None where that is not told apart."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    # Of the outputs that were drawn from the same prompt and not given (`best_of`); on the best one alone.
    discarded_tokens: int = 0
    reasoning_tokens: int | None = None


class Timings(msgspec.Struct, frozen=True):
    """Moments of one request in nanoseconds of CLOCK_MONOTONIC; 0 where it never got there.

    Between `arrived` and `tokenised` a thread took the prompt (`prompt_taken`) and, of a chat, `rendered` the template.
    """

    arrived: int
    tokenised: int
    admitted: int
    first_token: int
    finished: int
    prompt_taken: int = 0
    rendered: int = 0


class ToolCallDelta(msgspec.Struct, frozen=True):
    """What is new of one tool call. `id` and `name` come once, with its first delta; `arguments` is more of its JSON.

    The JSON is what the model wrote. Where the output was cut off, or the model erred, it may not be valid.
    """

    index: int
    id: str | None
    name: str | None
    arguments: str


class ToolCall(msgspec.Struct, frozen=True):
    """A whole tool call; `arguments` is JSON as the model wrote it."""

    id: str
    name: str
    arguments: str


class TokenLogprob(msgspec.Struct, frozen=True):
    """A token and the natural logarithm of its probability: the model's own, before penalties, bias and temperature.

    `raw` is what it is where others precede it, possibly a part of a character; empty for an id that names no token.
    """

    token_id: int
    logprob: float
    raw: bytes


class TokenLogprobs(msgspec.Struct, frozen=True):
    """An output token, how many characters of the output's text precede it, and the likeliest tokens in its place, best
    first, as many as asked for. Where a stop string cut the text, the last ones may begin behind its end."""

    token: TokenLogprob
    offset: int
    likeliest: list[TokenLogprob]
    # The first token of a prompt: nothing precedes it, and 0 stands where it has no log probability.
    is_first: bool = False


class Output(msgspec.Struct, frozen=True):
    """One step of a stream. `text`, `reasoning`, `tool_calls` and `token_ids` are what is new since the last one;
    `logprobs` has one for each of the ids, if asked for. `prompt_logprobs`, if asked for, comes once, with the first of
    a choice that is not `accepted`.

    The first output of a request has `accepted` set, no text, its number `request` (see `AsyncEngine.explain`) and
    `prompt_tokens` (`prompt_ids`, `prompt_text` if asked for). With `n` above 1 each of the others belongs to one
    `choice`; between choices any order is possible. The last one of a choice has `finish_reason`, `usage`, `timings`
    and, if asked for, `explanation`; `stop_reason` is the stop string or stop token id that ended it.
    With `best_of` above `n` each choice is one output, when all have ended; the others have no `mean_logprob`.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallDelta] = []  # msgspec copies empty defaults
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs] = []
    accepted: bool = False
    request: int | None = None
    prompt_tokens: int | None = None
    prompt_ids: list[int] | None = None
    prompt_text: str | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    preemptions: int = 0
    choice: int = 0
    mean_logprob: float | None = None
    explanation: Explanation | None = None


class Completion(msgspec.Struct, frozen=True):
    """One whole output of one prompt of a batch; `choice` counts those of a prompt, with `n` above 1. `logprobs` has
    one for each of `token_ids`, if asked for."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stop_reason: str | int | None
    usage: Usage
    timings: Timings
    prompt_ids: list[int] | None = None
    preemptions: int = 0
    choice: int = 0
    mean_logprob: float | None = None
    reasoning: str = ""
    tool_calls: list[ToolCall] = []
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs] = []
    prompt_text: str | None = None
