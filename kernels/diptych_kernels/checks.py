"""What kernels refuse, and how they say it."""

from collections.abc import Sequence

import torch


class KernelInputError(ValueError):
    """A tensor handed to a kernel has a dtype, shape, stride or device that the kernel does not take."""


def describe(tensor: torch.Tensor) -> str:
    """What an error message says of a tensor."""
    return f"dtype {tensor.dtype}, shape {tuple(tensor.shape)}, strides {tensor.stride()}, device {tensor.device}"


def require_dtype(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    """Refuses `tensor` unless it has `dtype`."""
    if tensor.dtype != dtype:
        raise KernelInputError(f"{name} must have dtype {dtype}, got {describe(tensor)}")


def require_shape(name: str, tensor: torch.Tensor, shape: Sequence[int | None]) -> None:
    """Refuses `tensor` unless its shape is `shape`; None stands for any size."""
    sizes = tuple(tensor.shape)
    fits = len(sizes) == len(shape) and all(want in (None, have) for have, want in zip(sizes, shape, strict=True))
    if not fits:
        wanted = "[" + ", ".join("any" if want is None else str(want) for want in shape) + "]"
        raise KernelInputError(f"{name} must have shape {wanted}, got {describe(tensor)}")


def require_strides(name: str, tensor: torch.Tensor, strides: Sequence[int | None]) -> None:
    """Refuses `tensor` unless its strides are `strides`; None stands for any, and axes of size 1 are not looked at."""
    for size, have, want in zip(tensor.shape, tensor.stride(), strides, strict=True):
        if size > 1 and want is not None and have != want:
            wanted = "(" + ", ".join("any" if stride is None else str(stride) for stride in strides) + ")"
            raise KernelInputError(f"{name} must have strides {wanted}, got {describe(tensor)}")


def require_contiguous(name: str, tensor: torch.Tensor) -> None:
    """Refuses `tensor` unless it is contiguous."""
    if not tensor.is_contiguous():
        raise KernelInputError(f"{name} must be contiguous, got {describe(tensor)}")
