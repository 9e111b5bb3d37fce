"""Runs one step: block tables, forward, sampling. Knows no port and no process, so tests drive it directly."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from diptych.sampling import sampler
from diptych.sampling.parameters import STATUS_OK
from diptych.worker.executors import Executors, StepKind, step_kind
from diptych.worker.plan import Sizes, StepView
from diptych.worker.step import RowState, Sampled, read_block_copies, read_sampling, read_tokens

# Rows whose logits exist at once: bounds the memory whatever the number of running requests.
LOGIT_ROWS = 64


class StepResult(NamedTuple):
    """Per sampling row: status [S] int32, id [S] int32, its log probability [S] float32 (0 where not asked for).

    `candidate_ids` [C] int32 and `candidate_logprobs` [C] float32: for each row that asks for its likeliest ids
    so many, best first; zeros where its status is not ok. Log probabilities are those of the model: before penalties,
    bias and temperature.
    """

    status: torch.Tensor
    ids: torch.Tensor
    logprobs: torch.Tensor
    candidate_ids: torch.Tensor
    candidate_logprobs: torch.Tensor


class ModelRunner:
    """A model, its cache and its rows."""

    def __init__(self, executors: Executors, sizes: Sizes) -> None:
        self.executors = executors
        self.sizes = sizes
        self.state = RowState(sizes, executors.device)

    def run(self, step: StepView, forward_done: Callable[[StepKind], None] = lambda kind: None) -> StepResult:
        """Runs a step; `forward_done` is called between the forward and sampling. Raises PlanError for a bad plan."""
        copies = read_block_copies(step, self.sizes)
        sampled = read_sampling(step, self.sizes)
        tokens = read_tokens(step, self.sizes)
        self.state.apply_deltas(step)
        self.executors.pool.copy_blocks(*copies)
        ids = self.state.fill_placeholders(tokens)
        residual = self.executors.run(tokens, ids, self.state.tables)
        forward_done(step_kind(tokens))
        return self._sample(residual, sampled, step.masks() if sampled.masked else {})

    def _sample(self, residual: torch.Tensor, sampled: Sampled, masks: dict[int, bytes | None]) -> StepResult:
        count, device = sampled.tokens.shape[0], residual.device
        status, ids = torch.zeros(count, dtype=torch.int32), torch.zeros(count, dtype=torch.int32)
        scores, own = _Scores(sampled.logprobs), _first_of_each(sampled.rows)
        for start in range(0, count, LOGIT_ROWS):
            part = slice(start, start + LOGIT_ROWS)
            logits = self.executors.model.logits(residual, sampled.tokens[part].long().to(device))
            # The checkpoint may pad its vocabulary beyond the tokenizer's: such ids are never sampled.
            logits = logits[:, : self.sizes.vocabulary]
            scored = (sampled.logprobs[part] >= 0).nonzero().flatten()
            plain = logits[scored.to(device)]
            here = {row - start: mask for row, mask in masks.items() if start <= row < start + LOGIT_ROWS}
            part_ids, part_status = sampler.sample(logits, sampled.parameters.select(part).to(device), here)
            kept = own[part].nonzero().flatten()
            of_kept = kept.to(device)
            self.state.remember(sampled.rows[part][kept], part_ids[of_kept], part_status[of_kept] == STATUS_OK)
            ids[part], status[part] = part_ids.cpu(), part_status.cpu()
            scores.take(start + scored, plain, (ids, status))
        return StepResult(status, ids, scores.logprobs, scores.likely_ids, scores.likely_logprobs)


def _first_of_each(rows: torch.Tensor) -> torch.Tensor:
    """[S] bool: the first sampling row of each state row, which goes on with its id. The others score a prompt."""
    numbered = list(enumerate(rows.tolist()))
    first = {row: index for index, row in reversed(numbered)}
    return torch.tensor([first[row] == index for index, row in numbered], dtype=torch.bool)


class _Scores:
    """Log probabilities of sampled ids, and the likeliest ids one row's after the other's, where they are wanted."""

    def __init__(self, wanted: torch.Tensor) -> None:
        self._counts = wanted.clamp(min=0)
        total = int(self._counts.sum())
        self.logprobs = torch.zeros(len(wanted), dtype=torch.float32)
        self.likely_ids = torch.zeros(total, dtype=torch.int32)
        self.likely_logprobs = torch.zeros(total, dtype=torch.float32)
        self._filled = 0

    def take(self, rows: torch.Tensor, logits: torch.Tensor, sampled: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Sampling rows [n] that want something, in order, with their logits [n, V]; ids and statuses of all rows."""
        if not len(rows):
            return
        ids, status = (each[rows] for each in sampled)
        found = sampler.log_probabilities(logits, ids.to(logits.device)).cpu()
        self.logprobs[rows] = torch.where(status == STATUS_OK, found, 0.0)
        for index, count in enumerate(self._counts[rows].tolist()):
            place = slice(self._filled, self._filled + count)
            self._filled += count
            if count and int(status[index]) == STATUS_OK:
                self.likely_ids[place], self.likely_logprobs[place] = sampler.likeliest(logits[index], count)
