"""From logits to token ids.

Order: penalties, masks, logit bias, temperature, top-k, top-p, min-p, then the inverse of the cumulated probabilities
at one uniform number. Candidates have one total order: adjusted logit descending (0.0 and -0.0 equal), id ascending.
In it what top-k, top-p and min-p keep is always a prefix, so every path computes one length. Precisely, with weights
w = exp((logit - maximum) / temperature) in float64, and sums taken one after the other:

    top-k   the first k candidates; off below 1 and from the vocabulary's size on
    top-p   the shortest prefix whose weights reach top_p × the weights that top-k kept; off at 1
    min-p   weights of at least min_p (the largest is 1); off at 0
    token   the first candidate at which the cumulated weights of the kept exceed uniform × their sum

The sum over a whole row is taken in order of ids, over part of it in order of candidates. A row's result does not
depend on which path computed it, nor on the other rows.
"""

from collections.abc import Mapping
from types import MappingProxyType

import torch

from diptych.sampling.adjust import apply_bias, apply_masks, apply_penalties
from diptych.sampling.parameters import GREEDY_TEMPERATURE, STATUS_NAN, STATUS_NOT_SAMPLED, STATUS_OK, SamplingRows
from diptych.sampling.philox import uniform

# Candidates ordered at first: whoever needs more has its whole row sorted.
FIRST_CANDIDATES = 512
# Rows whose candidates are ordered at once: bounds the memory.
ROWS_AT_ONCE = 16
_LOW_WORD = 0xFFFFFFFF


def sample(
    logits: torch.Tensor, rows: SamplingRows, masks: Mapping[int, bytes | None] = MappingProxyType({})
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token per row: logits [S, V] float32, overwritten → ids [S] int32, status [S] int32.

    `masks`: of rows that are drawn under one, as in `StepView.masks`; a row whose mask is not there has status
    STATUS_NOT_SAMPLED and id 0. Masked ids have -inf.
    A row with a NaN, with +inf, or with nothing above -inf has status STATUS_NAN and id 0; no other row is affected.
    """
    apply_penalties(logits, rows)
    apply_masks(logits, masks)
    apply_bias(logits, rows)
    # The first of equal maxima, and NaN if there is one.
    best, ids = logits.max(dim=-1)
    healthy = best.isfinite()
    status = torch.where(healthy, STATUS_OK, STATUS_NAN).int()
    random = (healthy & (rows.temperature >= GREEDY_TEMPERATURE)).nonzero().flatten()
    for part in torch.split(random, ROWS_AT_ONCE) if random.numel() else ():
        ids[part] = _sample_random(logits[part], best[part], rows.select(part))
    if late := [row for row, mask in masks.items() if mask is None]:
        status[late], ids[late] = STATUS_NOT_SAMPLED, 0
    return torch.where(healthy, ids, 0).int(), status


def log_probabilities(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """[S] float32: log probability of one id a row, under logits [S, V] as they are. Summed in float64."""
    parts = zip(torch.split(logits, ROWS_AT_ONCE), torch.split(ids.long(), ROWS_AT_ONCE), strict=True)
    found = [
        (part.gather(1, own.unsqueeze(1)).squeeze(1).double() - _log_normaliser(part)).float() for part, own in parts
    ]
    return torch.cat(found) if found else logits.new_empty(0)


def likeliest(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids [count] int32 of the largest of logits [V], largest first and among equal ones the lowest id first, and their
    log probabilities [count] float32 under the logits as they are. On the host."""
    row = logits.unsqueeze(0)
    ids = _LOW_WORD - (_order_keys(row).topk(count, dim=-1).values[0] & _LOW_WORD)
    found = (logits[ids].double() - _log_normaliser(row)).float()
    return ids.int().cpu(), found.cpu()


def _log_normaliser(logits: torch.Tensor) -> torch.Tensor:
    """[n] float64: what is taken off logits [n, V] to make them log probabilities."""
    wide = logits.double()
    best = wide.max(dim=-1, keepdim=True).values
    return best.squeeze(1) + wide.sub_(best).exp_().sum(dim=-1).log_()


def scratch_bytes(vocabulary: int, max_rows: int) -> int:
    """Upper bound of what sampling `max_rows` rows of logits allocates, in bytes, with the logits as they were of rows
    that ask for log probabilities."""
    # Per ordered row: a copy, keys, sorted keys and their indices, weights, cumulated weights, one temporary of each.
    return vocabulary * (max_rows * 8 + min(max_rows, ROWS_AT_ONCE) * (4 + 8 * 8))


def _order_keys(logits: torch.Tensor) -> torch.Tensor:
    """int64 keys, all different within a row, larger for an earlier candidate; the id is in the low word."""
    bits = (logits + 0.0).view(torch.int32)
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
    return (ordered << 32) | (_LOW_WORD - torch.arange(logits.shape[1], device=logits.device))


def _sample_random(logits: torch.Tensor, best: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """Ids [n] int64 of rows with a finite maximum and a temperature."""
    vocabulary = logits.shape[1]
    numbers = uniform(rows.seed, rows.output_index, rows.choice_index)
    keys = _order_keys(logits)
    scale = (best.double().unsqueeze(1), rows.temperature.double().unsqueeze(1))
    whole = _weights(logits, scale).cumsum(dim=-1)[:, -1]
    ordered = keys.topk(min(FIRST_CANDIDATES, vocabulary), dim=-1).values
    ids, resolved = _choose(logits, ordered, scale, whole, (rows, numbers))
    left = (~resolved).nonzero().flatten()
    if left.numel():
        ordered = keys[left].sort(dim=-1, descending=True).values
        parts = (scale[0][left], scale[1][left])
        ids[left], _ = _choose(logits[left], ordered, parts, whole[left], (rows.select(left), numbers[left]))
    return ids


def _weights(logits: torch.Tensor, scale: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """exp((logit - maximum) / temperature) in float64: finite and at most 1 for any temperature."""
    return logits.double().sub_(scale[0]).div_(scale[1]).exp_()


def _choose(
    logits: torch.Tensor,
    ordered: torch.Tensor,
    scale: tuple[torch.Tensor, torch.Tensor],
    whole: torch.Tensor,
    drawn: tuple[SamplingRows, torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Chooses among the first candidates of each row, given by their keys, best first: [n, width].

    Gives ids [n] int64, and [n] bool where the candidates were enough to know.
    """
    (rows, numbers), width, vocabulary = drawn, ordered.shape[1], logits.shape[1]
    ids = _LOW_WORD - (ordered & _LOW_WORD)
    weights = _weights(logits.gather(1, ids), scale)
    cumulated = weights.cumsum(dim=-1)

    def mass(count: torch.Tensor) -> torch.Tensor:
        """Sum of the first `count` weights; the row's where that is all of them."""
        part = cumulated.gather(1, (count.clamp(max=width) - 1).unsqueeze(1)).squeeze(1)
        return torch.where(count == vocabulary, whole, part)

    def prefix(inside: torch.Tensor, off: torch.Tensor) -> torch.Tensor:
        """Length of the prefix that is inside; the vocabulary when off, or when it may go on past the candidates."""
        count = inside.sum(dim=-1)
        return torch.where(off | (count == width), vocabulary, count)

    top_k = rows.top_k.long()
    by_k = torch.where((top_k < 1) | (top_k > vocabulary), vocabulary, top_k)
    before = torch.nn.functional.pad(cumulated[:, :-1], (1, 0))
    reach = (rows.top_p.double() * mass(by_k)).unsqueeze(1)
    by_p = prefix(before < reach, rows.top_p >= 1.0)
    by_m = prefix(weights >= rows.min_p.double().unsqueeze(1), rows.min_p <= 0.0)
    kept = torch.minimum(by_k, torch.minimum(by_p, by_m)).clamp(min=1)
    index = (cumulated <= (numbers * mass(kept)).unsqueeze(1)).sum(dim=-1)
    uncut = (by_k == vocabulary) & (rows.top_p >= 1.0) & (rows.min_p <= 0.0)
    # A top-k past the candidates leaves top-p's reach unknown as well.
    resolved = ((kept <= width) & ((by_k <= width) | (by_k == vocabulary))) | (uncut & (index < width))
    last = torch.minimum(kept, (weights > 0).sum(dim=-1)) - 1
    index = torch.minimum(index, last).clamp(min=0, max=width - 1)
    return ids.gather(1, index.unsqueeze(1)).squeeze(1), resolved
