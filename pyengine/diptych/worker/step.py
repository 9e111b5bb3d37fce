"""A step plan as tensors: read from the arena, checked, laid out for the executors.

Everything is a view of the arena or a batched computation over it: the number of Python objects does not grow with the
number of requests.
"""

from dataclasses import dataclass

import numpy as np
import torch

from diptych.sampling.parameters import SamplingRows
from diptych.worker.plan import PLACEHOLDER, PlanError, Sizes, StepView

_DTYPES = {
    "slots": torch.int64,
    "seed": torch.int64,
    "submission": torch.int64,
    "temperature": torch.float32,
    "top_p": torch.float32,
    "min_p": torch.float32,
    "presence_penalty": torch.float32,
    "frequency_penalty": torch.float32,
    "repetition_penalty": torch.float32,
}
_SAMPLING_FIELDS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "output_index",
    "choice_index",
    "penalty_offset",
    "bias_offset",
    "side",
)


def tensor(step: StepView, name: str) -> torch.Tensor:
    """A plan array as a tensor over the arena's own memory: int32 unless the layout says otherwise, `side` included."""
    array, dtype = step.array(name), _DTYPES.get(name, torch.int32)
    return torch.frombuffer(array, dtype=dtype) if memoryview(array).nbytes else torch.empty(0, dtype=dtype)


@dataclass(frozen=True, slots=True)
class TokenRows:
    """The tokens of a step, T of them in R rows, decode rows first. All on the host."""

    ids: torch.Tensor  # [T] int32, PLACEHOLDER where the row's last sampled id is meant
    positions: torch.Tensor  # [T] int32
    slots: torch.Tensor  # [T] int64
    rows: torch.Tensor  # [R] int32, state rows
    query_starts: torch.Tensor  # [R + 1] int32
    sequence_lengths: torch.Tensor  # [R] int32
    num_decode_rows: int

    @property
    def num_tokens(self) -> int:
        """T."""
        return self.ids.shape[0]

    @property
    def num_rows(self) -> int:
        """R."""
        return self.rows.shape[0]


def read_tokens(step: StepView, sizes: Sizes) -> TokenRows:
    """The token rows of a step. Raises PlanError for any value that would read or write where it must not."""
    found = TokenRows(
        ids=tensor(step, "token_ids"),
        positions=tensor(step, "positions"),
        slots=tensor(step, "slots"),
        rows=tensor(step, "rows"),
        query_starts=tensor(step, "query_starts"),
        sequence_lengths=tensor(step, "sequence_lengths"),
        num_decode_rows=step.num_decode_rows,
    )
    if not 0 < found.num_tokens <= sizes.max_tokens:
        raise PlanError(f"a step of {found.num_tokens} tokens: this worker takes 1 to {sizes.max_tokens}")
    _require_range("token_ids", found.ids, PLACEHOLDER, sizes.vocabulary)
    _require_range("positions", found.positions, 0, sizes.max_model_len)
    _require_range("slots", found.slots, 0, sizes.num_blocks * sizes.block_size)
    _require_range("rows", found.rows, 0, sizes.max_running)
    _require_range("sequence_lengths", found.sequence_lengths, 1, sizes.max_model_len + 1)
    if bool((found.ids[found.num_decode_rows :] == PLACEHOLDER).any()):
        raise PlanError("a placeholder stands among prefill tokens: only a decode row can take its last sampled id")
    return found


def _require_range(name: str, values: torch.Tensor, low: int, high: int) -> None:
    if values.numel() and not low <= int(values.min()) <= int(values.max()) < high:
        raise PlanError(
            f"{name} from {int(values.min())} to {int(values.max())} in a plan: allowed {low} to {high - 1}"
        )


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a step samples: S tokens among its T, the state rows they belong to, and how."""

    tokens: torch.Tensor  # [S] int32
    rows: torch.Tensor  # [S] int32
    logprobs: torch.Tensor  # [S] int32: 0 for the id's log probability, k for the k likeliest ids, -1 for nothing
    masked: bool  # whether any is drawn under a mask
    parameters: SamplingRows


def read_sampling(step: StepView, sizes: Sizes) -> Sampled:
    """The sampling rows of a step. Raises PlanError for values out of range and for fields that are not built."""
    tokens, rows = tensor(step, "sampling_tokens"), tensor(step, "sampling_rows")
    _require_range("sampling_tokens", tokens, 0, step.num_tokens)
    _require_range("sampling_rows", rows, 0, sizes.max_running)
    logprobs = tensor(step, "logprobs")
    _require_range("logprobs", logprobs, -1, sizes.vocabulary + 1)
    masked = tensor(step, "masked")
    _require_range("masked", masked, 0, 2)
    parameters = SamplingRows(**{name: tensor(step, name) for name in _SAMPLING_FIELDS})
    return Sampled(tokens, rows, logprobs, bool(masked.any()), parameters)


def read_block_copies(step: StepView, sizes: Sizes) -> torch.Tensor:
    """Source and destination of each block copy, [2, C] int64. Raises PlanError for what is none within the pool."""
    values = tensor(step, "block_copies")
    if values.numel() % 4:
        raise PlanError(f"block_copies has {values.numel()} values in a plan: four make a copy")
    sources, destinations, counts, kinds = values.long().reshape(-1, 4).T
    _require_range("block_copies: source", sources, 0, sizes.num_blocks)
    _require_range("block_copies: destination", destinations, 1, sizes.num_blocks)
    _require_range("block_copies: tokens", counts, 1, sizes.block_size + 1)
    _require_range("block_copies: kind", kinds, 0, 1)
    return torch.stack((sources, destinations))


class RowState:
    """What outlives a step, by state row: block tables on the host, last sampled ids where the model computes."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        self._sizes = sizes
        self._tables = np.zeros((sizes.max_running, sizes.max_blocks), dtype=np.int32)
        self.tables = torch.from_numpy(self._tables)
        self.last_ids = torch.zeros(sizes.max_running, dtype=torch.int64, device=device)

    def reset(self) -> None:
        """Every table points to the null block again."""
        self.tables.zero_()
        self.last_ids.zero_()

    def apply_deltas(self, step: StepView) -> None:
        """Block-table changes, in order. Raises PlanError, changing nothing, for a row or block out of range."""
        rows, starts, counts, blocks = (
            tensor(step, name) for name in ("delta_rows", "delta_starts", "delta_counts", "delta_blocks")
        )
        if rows.numel() == 0 and blocks.numel() == 0:
            return
        sizes = self._sizes
        _require_range("delta_rows", rows, 0, sizes.max_running)
        _require_range("delta_counts", counts, 0, sizes.max_blocks + 1)
        _require_range("delta_starts", starts, 0, sizes.max_blocks + 1)
        _require_range("delta_starts + delta_counts", starts + counts, 0, sizes.max_blocks + 1)
        _require_range("delta_blocks", blocks, 0, sizes.num_blocks)
        if int(counts.sum()) != blocks.numel():
            raise PlanError(f"block-table deltas announce {int(counts.sum())} blocks and bring {blocks.numel()}")
        wide = counts.long()
        bases = rows.long() * sizes.max_blocks + starts - (wide.cumsum(0) - wide)
        places = torch.repeat_interleave(bases, wide) + torch.arange(blocks.numel())
        # numpy assigns in order, so that the last of several changes to one place stands.
        self._tables.reshape(-1)[places.numpy()] = blocks.numpy()

    def fill_placeholders(self, tokens: TokenRows) -> torch.Tensor:
        """Ids [T] int64 on the device, each placeholder replaced by its row's last sampled id."""
        device, decode = self.last_ids.device, tokens.num_decode_rows
        ids = tokens.ids.long().to(device)
        waiting = tokens.ids[:decode] == PLACEHOLDER
        if bool(waiting.any()):
            last = self.last_ids[tokens.rows[:decode].long().to(device)]
            ids[:decode] = torch.where(waiting.to(device), last, ids[:decode])
        return ids

    def remember(self, rows: torch.Tensor, ids: torch.Tensor, healthy: torch.Tensor) -> None:
        """Keeps what the state rows [S] sampled; ids and healthy [S] on the device."""
        places = rows.long().to(self.last_ids.device)
        self.last_ids[places] = torch.where(healthy, ids.long(), self.last_ids[places])
