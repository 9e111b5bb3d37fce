"""What every kernel set knows of a step's plan: its view, its limits, and how a bad one is refused."""

from dataclasses import dataclass
from typing import Any, Protocol

from diptych_core.kernels import PlanError as PlanError

# Token id of a decode row whose last sampled id is meant.
PLACEHOLDER = -1


class StepView(Protocol):
    """What the worker uses of a step (`diptych_core.worker.Step`)."""

    num_tokens: int
    num_rows: int
    num_decode_rows: int
    num_sampling_rows: int

    def array(self, name: str) -> Any:
        """A plan array by name: any object with the buffer protocol, valid until the step is published."""

    def masks(self) -> dict[int, bytes | None]:
        """Of each sampling row that is drawn under a mask: bit `id % 8` of byte `id // 8` allows an id; None as long as
        the mask is not there. To be asked for once there are logits.
        """


@dataclass(frozen=True, slots=True)
class Sizes:
    """Limits that a plan must keep."""

    num_blocks: int
    block_size: int
    max_running: int
    max_model_len: int
    max_tokens: int
    vocabulary: int

    @property
    def max_blocks(self) -> int:
        """Columns of the block tables."""
        return -(-self.max_model_len // self.block_size)
