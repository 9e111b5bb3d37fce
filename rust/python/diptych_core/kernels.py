"""The native CPU kernels: a model that runs steps, its packed weights, and single kernels for tests."""

from diptych_core._native import (
    KernelMismatchError,
    KernelModelError,
    KernelOptionsError,
    KernelsError,
    Model,
    PackedWeightsError,
    PlanError,
    Weights,
    attention,
    instruction_sets,
    pack_weights,
    product,
    sample,
)

__all__ = [
    "KernelMismatchError",
    "KernelModelError",
    "KernelOptionsError",
    "KernelsError",
    "Model",
    "PackedWeightsError",
    "PlanError",
    "Weights",
    "attention",
    "instruction_sets",
    "pack_weights",
    "product",
    "sample",
]
