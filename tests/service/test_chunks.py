"""The events of a stream, byte for byte: as recorded, and readable by every parser whatever stands in them."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from diptych import Output
from diptych_service.chunks import ChatChunks, Chunks, CompletionChunks, Identity, View

KINDS: dict[str, type[Chunks]] = {"chat": ChatChunks, "completions": CompletionChunks}


class Case(msgspec.Struct):
    """`chunks`: what each of `steps`, outputs with the prompt that they are of, adds to the stream."""

    name: str
    endpoint: str
    identity: dict[str, Any]
    view: dict[str, Any]
    prompts: int
    per_prompt: int
    steps: list[tuple[int, Output]]
    chunks: list[str]
    closing: str

    def stream(self) -> Chunks:
        identity, view = Identity(**self.identity), View(**self.view)
        return KINDS[self.endpoint](identity, view, self.prompts, self.per_prompt)


RECORDED = Path(__file__).with_name("chunks.jsonl")
CASES = [msgspec.json.decode(line, type=Case) for line in RECORDED.read_text().split("\n") if line]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.endpoint}: {case.name}")
def test_chunks_are_as_recorded(case: Case) -> None:
    stream = case.stream()
    for (prompt, output), expected in zip(case.steps, case.chunks, strict=True):
        assert stream.of(prompt, output).decode() == expected
    assert stream.all_accepted and stream.all_finished
    assert stream.closing().decode() == case.closing
