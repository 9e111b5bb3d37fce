"""`SamplingParams`: how one request picks its tokens, when it stops, and how it stands to others."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, Literal

import msgspec

from diptych.config import LONGEST_ITL_MS, MAX_TENANT_BYTES, MAX_TTL_S, SHORTEST_ITL_MS
from diptych.errors import InvalidParameterError
from diptych.requests import Prompt
from diptych.structured import StructuredOutputs
from diptych.validation import Problems, shown

MAX_STOP_STRINGS = 128
MAX_STOP_BYTES = 64 * 1024
MAX_PROBLEMS_SHOWN = 10
MAX_SALT_BYTES = 512
MAX_CHOICES = 128
MAX_LOGPROBS = 20

# What beam search leaves no room for: values that change nothing, and how to say so.
_BESIDE_BEAMS: dict[str, tuple[tuple[Any, ...], str]] = {
    "temperature": ((0.0, 1.0), "0 or 1"),
    "top_k": ((0, -1), "0 or -1"),
    "top_p": ((1.0,), "1"),
    "min_p": ((0.0,), "0"),
    "presence_penalty": ((0.0,), "0"),
    "frequency_penalty": ((0.0,), "0"),
    "repetition_penalty": ((1.0,), "1"),
    "seed": ((None,), "none"),
    "logit_bias": ((), "none"),
    "min_tokens": ((0,), "0"),
    "stop": ((), "none (stop_token_ids end a beam)"),
    "best_of": ((None,), "none (n is the width)"),
    "logprobs": ((None,), "none"),
    "prompt_logprobs": ((None,), "none"),
}
_WITHOUT_BEAMS = "beam search goes by the log probabilities as they are"
_STOPPING: dict[bool | str, str] = {True: "yes", False: "no", "never": "never"}


class SamplingParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sampling settings of one request; `validate` checks them, and every engine call does so first.

    - `max_tokens`: output tokens at most; None for as many as the context holds. `min_tokens`: before so many, no stop
      string, stop id or end of sequence ends the output; such ids cannot be sampled.
    - `temperature`: 0..100, below 1e-5 greedy. `top_k`: -1 or 0 off. `top_p`: (0, 1]. `min_p`: [0, 1].
    - `presence_penalty`, `frequency_penalty`: -2..2. `repetition_penalty`: above 0.
    - `seed`: int64; None draws one. `logit_bias`: token id to -100..100.
    - `stop`: at most 128 strings, 64 KiB together; the output ends before the first that appears, or with it if
      `include_stop_str_in_output`. `stop_token_ids`: ids that end the output. `ignore_eos`: the model's end does not.
    - `n`: outputs drawn from the one prompt, 1..128 and at most `max_running`; each has its own random numbers, stop
      search and end. With temperature 0 they are equal.
    - `best_of`: draw this many outputs and give the `n` whose tokens have the highest mean log probability, best first,
      once all have ended; 1..128, at least `n`.
    - `logprobs`: tell each output token's log probability, and those of so many of the likeliest ids in its place;
      0..20. Log probabilities are the model's own: before penalties, bias and temperature, whatever is drawn with them.
    - `prompt_logprobs`: tell those of the prompt's tokens in the same way, with the first output. The prompt is
      computed as a whole then, whatever is cached of it. `return_prompt_text`: the first output has the prompt's text.
      With either of them `max_tokens` may be 0: then nothing of an answer is given.
    - `use_beam_search`: search for the `n` likeliest outputs instead of drawing them, best first; all are given at the
      end. A beam's score is the sum of its tokens' log probabilities divided by its length to the power of
      `length_penalty`. `early_stopping`: True ends the search once `n` outputs are done; False when the best running
      beam, as long as it is, is no better than the worst of them; "never" when it cannot become better. Settings that
      change probabilities or draw, and stop strings, are refused beside it.
    - `skip_special_tokens`: leave special tokens out of the text. `spaces_between_special_tokens`: False drops the
      space that WordPiece tokenizers and those without a decoder put between two special tokens in a row; others put
      none. `return_prompt_ids`: the first output has them.
    - `target_itl_ms`: how long the gap between two tokens may be, instead of the engine's own setting; the strictest of
      the running requests decides how much of others' prompts is computed beside them.
    - `priority`: 0..255, lower goes first, and takes row and memory from higher ones. `tenant`: who asks; tenants of
      one priority share by weight.
    - `timeout`: seconds from arrival until the request ends, with finish reason "timeout" and what it has, or with
      `RequestTimeoutError` if that is nothing. `ttft_timeout`: seconds until its first token must be there; else the
      same error. Where either is expected to pass, `OverloadedError` tells so at once.
    - `cache_salt`: at most 512 bytes; cached prefixes are shared only between requests with the same salt.
      `cache_ttl`: seconds after its last use for which this request's prefix can be found; None until it is evicted.
      `cache_retention`: 0..3, a higher class is evicted later. What others use too is kept as the most of them ask.
    - `structured_outputs`: what the whole output must look like, in a chat behind the reasoning: see
      `StructuredOutputs`. Stop ids before `min_tokens` are avoided as long as the grammar allows anything else;
      `ignore_eos` cannot go with it.
    - `explain`: the last output says why the request went as it did.
    """

    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    logit_bias: dict[int, float] = {}  # msgspec copies empty defaults
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    return_prompt_ids: bool = False
    target_itl_ms: float | None = None
    n: int = 1
    best_of: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    return_prompt_text: bool = False
    use_beam_search: bool = False
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    priority: int = 0
    tenant: str | None = None
    timeout: float | None = None
    ttft_timeout: float | None = None
    cache_salt: str = ""
    cache_ttl: float | None = None
    cache_retention: int = 0
    structured_outputs: StructuredOutputs | None = None
    explain: bool = False

    @property
    def num_drawn(self) -> int:
        """Outputs that are drawn from the prompt."""
        return self.best_of or self.n

    @property
    def ranks(self) -> bool:
        """Whether more outputs are drawn than given."""
        return self.num_drawn > self.n

    def validate(self, vocabulary: int | None = None, max_running: int = MAX_CHOICES) -> None:
        """Raise one `InvalidParameterError` that lists every problem; with `vocabulary`, token ids must be below it.

        `max_running`: outputs that run at once, as those of one prompt do.
        """
        problems = params_problems(self, vocabulary) or _row_problems(self, max_running)
        if problems:
            rest = len(problems) - MAX_PROBLEMS_SHOWN
            more = [f"and {rest} more"] if rest > 0 else []
            message = "; ".join(problems[:MAX_PROBLEMS_SHOWN] + more)
            raise InvalidParameterError(message, problems=problems, details={"problems": problems[:MAX_PROBLEMS_SHOWN]})


def params_problems(params: SamplingParams, vocabulary: int | None = None) -> list[str]:
    found = Problems(params)
    _check_lengths(params, found)
    found.between(0.0, 100.0, "temperature")
    found.between(0.0, 1.0, "min_p")
    found.between(-2.0, 2.0, "presence_penalty", "frequency_penalty")
    found.at_least(-1, "top_k")
    for name, value in found.values("best_of"):
        found.require(name, "n" in found.skip or value >= params.n, f"at least n, which is {params.n}")
    for name, value in found.values("n", "best_of"):
        found.require(name, 1 <= value <= MAX_CHOICES, f"a number from 1 to {MAX_CHOICES}")
    for name, value in found.values("top_p"):
        found.require(name, 0.0 < value <= 1.0, "a number above 0, at most 1")
    for name, value in found.values("repetition_penalty"):
        found.require(name, 1.2e-38 < value < 3.4e38, "a number above 0 that 32 bits can hold")
    for name, value in found.values("seed"):
        found.require(name, -(2**63) <= value < 2**63, "a signed 64-bit integer")
    found.between(SHORTEST_ITL_MS, LONGEST_ITL_MS, "target_itl_ms")
    for name, value in found.values("max_tokens", "min_tokens", "top_k"):
        found.require(name, value < 2**31, "a number below 2147483648")
    found.between(0, 255, "priority")
    for name, value in found.values("timeout", "ttft_timeout"):
        found.require(name, 0.0 < value <= 1e9, "seconds above 0, at most 1e9")
    for name, value in found.values("tenant"):
        found.require(name, 0 < _size(value) <= MAX_TENANT_BYTES, f"text of 1 to {MAX_TENANT_BYTES} bytes")
    found.between(0.0, MAX_TTL_S, "cache_ttl")
    found.between(0, 3, "cache_retention")
    found.between(0, MAX_LOGPROBS, "logprobs", "prompt_logprobs")
    _check_beams(params, found)
    _check_structured(params, found)
    _check_salt(params, found)
    _check_stop(params, found)
    _check_ids(params, found, vocabulary)
    return found.lines


def _row_problems(params: SamplingParams, max_running: int) -> list[str]:
    if params.num_drawn <= max_running:
        return []
    name = "best_of" if params.best_of else "n"
    expected = f"at most max_running = {max_running}, as the outputs of one prompt run together"
    return [f"{name}={params.num_drawn}: expected {expected}"]


def _check_lengths(params: SamplingParams, found: Problems) -> None:
    shows_prompt = params.prompt_logprobs is not None or params.return_prompt_text
    found.at_least(0 if shows_prompt else 1, "max_tokens")
    found.at_least(0, "min_tokens")
    for (_, least), (_, most) in product(found.values("min_tokens"), found.values("max_tokens")):
        found.require("min_tokens", least <= max(most, 0), f"at most max_tokens, {most}")


def _check_beams(params: SamplingParams, found: Problems) -> None:
    """Beam search goes by the log probabilities as they are, and nothing of it applies without it."""
    for name, value in found.values("length_penalty"):
        found.require(name, -100.0 <= value <= 100.0, "a number from -100 to 100")
    if params.use_beam_search is not True:
        for name, neutral in (("length_penalty", 1.0), ("early_stopping", False)):
            found.require(name, getattr(params, name) == neutral, "nothing without use_beam_search")
        return
    for name, (neutrals, expected) in _BESIDE_BEAMS.items():
        value = getattr(params, name)
        fits = value in neutrals if not isinstance(value, (list, tuple, dict)) else not value
        found.require(name, fits, f"{expected}: {_WITHOUT_BEAMS}")
    for _, structured in found.values("structured_outputs"):
        found.add(f"{structured.asked_by}={shown(structured.given())}: expected none: {_WITHOUT_BEAMS}")


def _check_structured(params: SamplingParams, found: Problems) -> None:
    for _, structured in found.values("structured_outputs"):
        if problem := structured.problem():
            found.add(problem)
        if "ignore_eos" not in found.skip and params.ignore_eos:
            found.add(f"ignore_eos=True with {structured.asked_by}: where the grammar ends the output must end")


def _size(text: str) -> int:
    """Bytes of a text; 0 for what is none."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return 0


def _check_salt(params: SamplingParams, found: Problems) -> None:
    for _, salt in found.values("cache_salt"):
        try:
            size = len(salt.encode())
        except UnicodeEncodeError:
            found.add("cache_salt holds an unpaired surrogate: expected text that UTF-8 can hold")
            return
        if size > MAX_SALT_BYTES:
            found.add(f"cache_salt has {size} bytes: expected at most {MAX_SALT_BYTES}")


def _check_stop(params: SamplingParams, found: Problems) -> None:
    if "stop" in found.skip:
        return
    if isinstance(params.stop, str):
        found.add(f"stop={shown(params.stop)}: expected a list of strings")
        return
    if len(params.stop) > MAX_STOP_STRINGS:
        found.add(f"stop has {len(params.stop)} strings: expected at most {MAX_STOP_STRINGS}")
    if "" in params.stop:
        found.add("stop holds an empty string, which would stop every output at once")
    try:
        size = sum(len(text.encode()) for text in params.stop)
    except UnicodeEncodeError:
        found.add("stop holds an unpaired surrogate, which no output can contain")
        return
    if size > MAX_STOP_BYTES:
        found.add(f"stop strings have {size} bytes together: expected at most {MAX_STOP_BYTES}")


def _check_ids(params: SamplingParams, found: Problems, vocabulary: int | None) -> None:
    bound = 2**31 if vocabulary is None else vocabulary
    allowed = f"token ids from 0 to {bound - 1}"
    if "stop_token_ids" not in found.skip:
        wrong_ids = [token for token in params.stop_token_ids if not 0 <= token < bound]
        if wrong_ids:
            found.add(f"stop_token_ids holds {shown(wrong_ids)}: expected {allowed}")
    if "logit_bias" not in found.skip:
        wrong_keys = [token for token in params.logit_bias if not 0 <= token < bound]
        wrong_values = {
            token: value for token, value in params.logit_bias.items() if not -100.0 <= value <= 100.0
        }  # NaN fails both comparisons
        if wrong_keys:
            found.add(f"logit_bias holds {shown(wrong_keys)}: expected {allowed}")
        if wrong_values:
            found.add(f"logit_bias holds {shown(wrong_values)}: expected numbers from -100 to 100")


def _grammar(params: SamplingParams, calls: dict[str, Any] | None) -> dict[str, Any]:
    """The one grammar of the output, if it follows any; `calls` is that of its tool calls."""
    structured = params.structured_outputs
    if structured is not None:
        if calls is not None and calls["choice"] != "auto":
            message = f"tool_choice asks for a call and {structured.asked_by} for another output: send one of them"
            raise InvalidParameterError(message)
        # An output that follows it calls nothing, however it would be called.
        return {"grammar": structured.for_core()}
    if calls is None:
        return {}
    asked_by = "strict functions" if calls["choice"] == "auto" else "tool_choice"
    if params.ignore_eos:
        raise InvalidParameterError(f"ignore_eos=True with {asked_by}: where the grammar ends the output must end")
    if params.use_beam_search:
        raise InvalidParameterError(f"use_beam_search=True with {asked_by}: it goes by the log probabilities alone")
    return {"calls": calls}


def nanoseconds(milliseconds: float) -> int:
    """A whole number, as the core counts time."""
    return round(milliseconds * 1_000_000)


def params_json(params: SamplingParams, prompt: Prompt, *, explain: bool = False) -> bytes:
    """The request's settings as the core reads them, every key present but that of a target which is not set.

    `explain`: whatever `params` say of it.
    """
    content = msgspec.structs.asdict(params)
    content["logit_bias"] = sorted(params.logit_bias.items())
    content["stop"] = list(params.stop)
    content["stop_token_ids"] = list(params.stop_token_ids)
    content["n"] = params.num_drawn
    content["mean_logprob"] = params.ranks
    del content["best_of"]
    for name in ("use_beam_search", "length_penalty", "early_stopping"):
        del content[name]
    if params.use_beam_search:
        content["temperature"] = 0.0
        stopping = _STOPPING[params.early_stopping]
        content["beams"] = {"length_penalty": params.length_penalty, "early_stopping": stopping}
    content["add_special_tokens"] = prompt.add_special_tokens
    content["max_tool_calls"] = prompt.max_tool_calls
    del content["structured_outputs"]
    content |= _grammar(params, prompt.calls)
    target = content.pop("target_itl_ms")
    if target is not None:
        content["target_itl_ns"] = nanoseconds(target)
    content["explain"] = params.explain or explain
    return msgspec.json.encode(content)
