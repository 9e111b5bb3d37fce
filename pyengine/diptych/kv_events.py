"""What the prefix cache holds, told as events: for routers that send a request to where its prefix is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec


class StoredBlock(msgspec.Struct, frozen=True):
    """A block that a prefix lookup finds.

    `hash` is XXH3-64 over `parent` (for a first block: `namespace`) as 8 bytes and the ids in `tokens` as 4 bytes each,
    little-endian.
    """

    hash: int
    parent: int | None
    namespace: int
    tokens: list[int]


class KvEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """A block is `stored` or `removed`, or all are gone (`cleared`). `at`: nanoseconds of CLOCK_MONOTONIC."""

    sequence: int
    at: int
    type: Literal["stored", "removed", "cleared"]
    hash: int | None = None
    parent: int | None = None
    namespace: int = 0
    tokens: list[int] = []  # msgspec copies empty defaults


class KvEvents(msgspec.Struct, frozen=True):
    """Events from one number on; `next` is the number to go on from. Another `core` counts from 0 again."""

    core: int
    next: int
    events: list[KvEvent]


class KvSnapshot(msgspec.Struct, frozen=True):
    """All blocks that are found before event `next`, parents before children."""

    core: int
    next: int
    blocks: list[StoredBlock]


def vllm_events(events: Iterable[KvEvent], block_size: int, medium: str) -> list[dict[str, Any]]:
    """The same as events of vLLM's schema (`BlockStored`, `BlockRemoved`, `AllBlocksCleared`), by field name.

    A chain of blocks that were stored one after the other becomes one `BlockStored`. `medium`: `GPU` or `CPU`.
    """
    told: list[dict[str, Any]] = []
    for event in events:
        last: dict[str, Any] = told[-1] if told else {"type": None}
        if event.type == "cleared":
            told.append({"type": "AllBlocksCleared"})
        elif event.type == "removed":
            if last["type"] != "BlockRemoved":
                last = {"type": "BlockRemoved", "block_hashes": [], "medium": medium}
                told.append(last)
            last["block_hashes"].append(event.hash)
        else:
            if last["type"] != "BlockStored" or event.parent is None or last["block_hashes"][-1] != event.parent:
                last = _stored(event, block_size, medium)
                told.append(last)
            last["block_hashes"].append(event.hash)
            last["token_ids"] += event.tokens
            last["extra_keys"].append([event.namespace] if event.namespace else None)
    return told


def _stored(event: KvEvent, block_size: int, medium: str) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": [],
        "parent_block_hash": event.parent,
        "token_ids": [],
        "block_size": block_size,
        "lora_id": None,
        "medium": medium,
        "lora_name": None,
        "extra_keys": [],
    }
