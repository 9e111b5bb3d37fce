"""A step made in Python instead of by the core: for warming up, tests and measurements."""

from collections.abc import Sequence
from typing import Any

import numpy as np


class SyntheticStep:
    """A plan built in Python with the arrays of the protocol; `rows` are (state row, first position, ids)."""

    def __init__(self, rows: Sequence[tuple[int, int, Sequence[int]]], num_decode_rows: int, sampled: bool) -> None:
        counts = [len(ids) for _, _, ids in rows]
        self.num_tokens, self.num_rows = sum(counts), len(rows)
        self.num_decode_rows = num_decode_rows
        self.num_sampling_rows = len(rows)
        ends = np.cumsum(counts)
        self.arrays: dict[str, Any] = {
            "token_ids": np.concatenate([np.asarray(ids, dtype=np.int32) for _, _, ids in rows]),
            "positions": np.concatenate([np.arange(at, at + len(ids), dtype=np.int32) for _, at, ids in rows]),
            "rows": np.array([row for row, _, _ in rows], dtype=np.int32),
            "query_starts": np.array([0, *ends], dtype=np.int32),
            "sequence_lengths": np.array([at + len(ids) for _, at, ids in rows], dtype=np.int32),
            "sampling_tokens": (ends - 1).astype(np.int32),
            "sampling_rows": np.array([row for row, _, _ in rows], dtype=np.int32),
        }
        for name in ("delta_rows", "delta_starts", "delta_counts", "delta_blocks", "block_copies", "side", "masks"):
            self.arrays[name] = np.empty(0, dtype=np.int32)
        self._neutral_sampling(1.0 if sampled else 0.0)

    def _neutral_sampling(self, temperature: float) -> None:
        count = self.num_sampling_rows
        floats = {"temperature": temperature, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
        for name in (*floats, "presence_penalty", "frequency_penalty"):
            self.arrays[name] = np.full(count, floats.get(name, 0.0), dtype=np.float32)
        for name in ("penalty_offset", "bias_offset", "logprobs"):
            self.arrays[name] = np.full(count, -1, dtype=np.int32)
        for name in ("top_k", "output_index", "choice_index", "masked"):
            self.arrays[name] = np.zeros(count, dtype=np.int32)
        self.arrays["seed"] = np.arange(count, dtype=np.int64)

    def masks(self) -> dict[int, bytes | None]:
        """See `StepView.masks`."""
        return {}

    def array(self, name: str) -> Any:
        """See `StepView.array`."""
        return self.arrays[name]
