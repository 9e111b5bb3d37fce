"""The sampling rows of a step as tensors."""

from dataclasses import dataclass, fields

import torch

# Row statuses of the protocol.
STATUS_OK = 0
STATUS_NAN = 1
STATUS_NOT_SAMPLED = 3

# Below this a row is greedy.
GREEDY_TEMPERATURE = 1e-5


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """S rows, one tensor [S] a field, on the device of the logits; `side` is the step's side data.

    penalty_offset and bias_offset are word offsets into `side`, -1 for none. A penalty record is prompt length, output
    length, prompt ids, output ids; a bias record is count, ids, bits of float32 values. `side` is int32 [words].
    """

    temperature: torch.Tensor  # float32
    top_k: torch.Tensor  # int32, off below 1
    top_p: torch.Tensor  # float32
    min_p: torch.Tensor  # float32
    presence_penalty: torch.Tensor  # float32
    frequency_penalty: torch.Tensor  # float32
    repetition_penalty: torch.Tensor  # float32
    seed: torch.Tensor  # int64
    output_index: torch.Tensor  # int32
    choice_index: torch.Tensor  # int32
    penalty_offset: torch.Tensor  # int32
    bias_offset: torch.Tensor  # int32
    side: torch.Tensor  # int32

    def select(self, rows: torch.Tensor | slice) -> "SamplingRows":
        """Some of the rows; offsets still count in the whole side data."""
        chosen = {field.name: getattr(self, field.name) for field in fields(self)}
        return SamplingRows(**{name: value if name == "side" else value[rows] for name, value in chosen.items()})

    def to(self, device: torch.device) -> "SamplingRows":
        """The same rows on a device."""
        return SamplingRows(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})
