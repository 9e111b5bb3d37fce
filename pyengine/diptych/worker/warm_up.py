"""Steps run before anything is served, so that the first request does not pay for what torch sets up lazily."""

from collections.abc import Sequence

import numpy as np

from diptych.worker.plan import PLACEHOLDER
from diptych.worker.runner import LOGIT_ROWS, ModelRunner
from diptych.worker.synthetic_step import SyntheticStep

# Longest chunk worth running: what is set up lazily depends on shapes up to here (MLP slices, attention tiles).
PREFILL_TOKENS = 1024
DECODE_ROWS = (1, 8, 32)


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
