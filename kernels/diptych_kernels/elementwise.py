"""The small operations between matrix products, in plain torch; float32 inside where it matters."""

import torch

from diptych_kernels.checks import require_contiguous, require_dtype, require_shape, require_strides

# Tokens rotated at a time: bounds the float32 intermediates of a long chunk.
ROTATE_TOKENS = 1024


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """hidden / root mean square × weight over the last axis: [T, size] → new [T, size] in the dtype of weight [size].

    hidden is of that dtype too, or float32 with a 16-bit weight.
    """
    require_shape("hidden", hidden, (None, None))
    require_contiguous("hidden", hidden)
    require_shape("weight", weight, (hidden.shape[1],))
    if hidden.dtype == torch.float32 and weight.dtype.itemsize == 2:
        return torch.nn.functional.rms_norm(hidden, (hidden.shape[1],), weight.float(), epsilon).to(weight.dtype)
    require_dtype("weight", weight, hidden.dtype)
    return torch.nn.functional.rms_norm(hidden, (hidden.shape[1],), weight, epsilon)


def rotate(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> None:
    """Turns each pair (i, i + head_dim / 2) of heads by its token's angle, in place.

    heads [T, heads, head_dim], token rows may lie apart; cosine, sine [T, head_dim / 2] float32. The products are
    float32 and rounded once.
    """
    require_shape("heads", heads, (None, None, None))
    tokens, _, head_dim = heads.shape
    require_strides("heads", heads, (None, head_dim, 1))
    for name, table in (("cosine", cosine), ("sine", sine)):
        require_dtype(name, table, torch.float32)
        require_shape(name, table, (tokens, head_dim // 2))
    for start in range(0, tokens, ROTATE_TOKENS):
        part = slice(start, start + ROTATE_TOKENS)
        first, second = heads[part].chunk(2, dim=-1)
        cos, sin = cosine[part].unsqueeze(1), sine[part].unsqueeze(1)
        turned = (first * cos).sub_(second * sin)
        second.copy_((second * cos).add_(first * sin))
        first.copy_(turned)


def silu_multiply(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """silu(gate) × up of gate_up [T, 2 × size] into out [T, size]; the gate half is overwritten."""
    require_shape("gate_up", gate_up, (None, None))
    require_contiguous("gate_up", gate_up)
    require_dtype("out", out, gate_up.dtype)
    require_shape("out", out, (gate_up.shape[0], gate_up.shape[1] // 2))
    require_contiguous("out", out)
    gate, up = gate_up.chunk(2, dim=-1)
    torch.nn.functional.silu(gate, inplace=True)
    torch.mul(gate, up, out=out)
