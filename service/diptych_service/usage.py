"""The `usage` object of answers."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from diptych import Explanation, Usage


def total_usage(usages: list[Usage], explanations: list[Explanation] | None = None) -> dict[str, Any]:
    """Over all prompts of a request; explanations, one a choice, where the client asked for them."""
    prompt = sum(usage.prompt_tokens for usage in usages)
    completion = sum(usage.completion_tokens + usage.discarded_tokens for usage in usages)
    total: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(usage.cached_tokens for usage in usages)},
    }
    told = [usage.reasoning_tokens for usage in usages if usage.reasoning_tokens is not None]
    if told:
        total["completion_tokens_details"] = {"reasoning_tokens": sum(told)}
    return {**total, "explanations": explanations} if explanations else total


def counted_once(usages: list[Usage], per_prompt: int) -> list[Usage]:
    """The usages of choices, those of one prompt side by side, with each prompt in the first of them alone."""
    if per_prompt == 1:
        return usages
    return [
        usage if index % per_prompt == 0 else replace(usage, prompt_tokens=0, cached_tokens=0)
        for index, usage in enumerate(usages)
    ]
