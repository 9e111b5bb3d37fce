"""Steps run before anything is served, so that the first request does not pay for what torch sets up lazily."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from diptych.worker.runner import LOGIT_ROWS, ModelRunner
from diptych.worker.step import PLACEHOLDER

# Longest chunk worth running: what is set up lazily depends on shapes up to here (MLP slices, attention tiles).
PREFILL_TOKENS = 1024
DECODE_ROWS = (1, 8, 32)


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
        for name in ("delta_rows", "delta_starts", "delta_counts", "delta_blocks", "block_copies", "side"):
            self.arrays[name] = np.empty(0, dtype=np.int32)
        self._neutral_sampling(1.0 if sampled else 0.0)

    def _neutral_sampling(self, temperature: float) -> None:
        count = self.num_sampling_rows
        floats = {"temperature": temperature, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
        for name in (*floats, "presence_penalty", "frequency_penalty"):
            self.arrays[name] = np.full(count, floats.get(name, 0.0), dtype=np.float32)
        for name in ("penalty_offset", "bias_offset", "logprobs"):
            self.arrays[name] = np.full(count, -1, dtype=np.int32)
        for name in ("top_k", "output_index", "choice_index"):
            self.arrays[name] = np.zeros(count, dtype=np.int32)
        self.arrays["seed"] = np.arange(count, dtype=np.int64)

    def array(self, name: str) -> Any:
        """See `StepView.array`."""
        return self.arrays[name]


def _run(
    runner: ModelRunner, rows: Sequence[tuple[int, int, Sequence[int]]], num_decode_rows: int, sampled: bool
) -> None:
    """Runs a step of these rows. All tables point to the null block, which nobody reads."""
    step = SyntheticStep(rows, num_decode_rows, sampled)
    step.arrays["slots"] = step.arrays["positions"].astype(np.int64) % runner.sizes.block_size
    runner.run(step)


def warm_up_prefill(runner: ModelRunner) -> None:
    """Every padded number of rows, then a chunk as long as a step allows, at most PREFILL_TOKENS."""
    sizes = runner.sizes
    runner.executors.model.warm_up_products(min(sizes.max_running, LOGIT_ROWS))
    length = min(sizes.max_tokens, sizes.max_model_len, PREFILL_TOKENS)
    _run(runner, [(0, 0, [index % sizes.vocabulary for index in range(length)])], 0, sampled=False)


def warm_up_decode(runner: ModelRunner) -> None:
    """One row, and a few, greedy and sampled."""
    sizes = runner.sizes
    position = min(sizes.max_model_len - 1, 300)
    for count in sorted({min(rows, sizes.max_running, sizes.max_tokens) for rows in DECODE_ROWS}):
        for sampled in (False, True):
            _run(runner, [(row, position, [PLACEHOLDER]) for row in range(count)], count, sampled)
