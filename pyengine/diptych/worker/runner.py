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
    so many, best first; zeros where its status is not ok.
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
        return self._sample(residual, sampled)

    def _sample(self, residual: torch.Tensor, sampled: Sampled) -> StepResult:
        count, device = sampled.tokens.shape[0], residual.device
        status, ids = torch.zeros(count, dtype=torch.int32), torch.zeros(count, dtype=torch.int32)
        logprobs = torch.zeros(count, dtype=torch.float32)
        likely = _Likely(sampled.logprobs)
        for start in range(0, count, LOGIT_ROWS):
            part = slice(start, start + LOGIT_ROWS)
            logits = self.executors.model.logits(residual, sampled.tokens[part].long().to(device))
            # The checkpoint may pad its vocabulary beyond the tokenizer's: such ids are never sampled.
            logits = logits[:, : self.sizes.vocabulary]
            part_ids, part_status = sampler.sample(logits, sampled.parameters.select(part).to(device))
            self.state.remember(sampled.rows[part], part_ids, part_status == STATUS_OK)
            ids[part], status[part] = part_ids.cpu(), part_status.cpu()
            likely.take(start, logits, status[part])
            if bool((scored := sampled.logprobs[part] == 0).any()):
                chosen = scored.nonzero().flatten().to(device)
                found = sampler.log_probabilities(logits[chosen], part_ids[chosen]).cpu()
                logprobs[start + scored.nonzero().flatten()] = torch.where(
                    status[part][scored] == STATUS_OK, found, 0.0
                )
        return StepResult(status, ids, logprobs, likely.ids, likely.logprobs)


class _Likely:
    """The likeliest ids of the rows that ask for them, one row's after the other's."""

    def __init__(self, wanted: torch.Tensor) -> None:
        self._counts = wanted.clamp(min=0)
        total = int(self._counts.sum())
        self.ids = torch.zeros(total, dtype=torch.int32)
        self.logprobs = torch.zeros(total, dtype=torch.float32)
        self._filled = 0

    def take(self, start: int, logits: torch.Tensor, status: torch.Tensor) -> None:
        """Logits [n, V] of the rows from `start` on, as the sampler left them, and their statuses [n]."""
        for index in self._counts[start : start + len(logits)].nonzero().flatten().tolist():
            count = int(self._counts[start + index])
            place = slice(self._filled, self._filled + count)
            self._filled += count
            if int(status[index]) == STATUS_OK:
                self.ids[place], self.logprobs[place] = sampler.likeliest(logits[index], count)
