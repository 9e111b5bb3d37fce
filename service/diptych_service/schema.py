"""Requests as structs. Names and types are those of the OpenAI API and of vLLM's extensions to it.

A field is `None` where the client did not give it: the model's own default then applies.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`include_usage` asks for one more chunk with the usage, `continuous_usage_stats` for usage on every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class SamplingFields(msgspec.Struct, kw_only=True):
    """What both endpoints honour."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    logit_bias: dict[str, float] | None = None
    n: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    prompt_logprobs: int | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    target_itl_ms: float | None = None
    priority: int | None = None
    timeout: float | None = None
    ttft_timeout: float | None = None
    cache_salt: str | None = None
    cache_ttl: float | None = None
    cache_retention: int | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None


class CompletionRequest(SamplingFields, kw_only=True):
    """POST /v1/completions. `prompt` is text, token ids, or a list of either: `prompts.prompts_of` decodes it."""

    prompt: msgspec.Raw
    add_special_tokens: bool | None = None
    # False is how clients of the other endpoint say none.
    logprobs: int | bool | None = None
    echo: bool | None = None


class ChatRequest(SamplingFields, kw_only=True):
    """POST /v1/chat/completions. `max_completion_tokens` wins over `max_tokens`; `checked_tools` checks the tools."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    documents: list[dict[str, Any]] | None = None
    include_reasoning: bool | None = None
