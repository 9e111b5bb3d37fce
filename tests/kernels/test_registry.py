"""Implementations are chosen once, compared with the reference, and refused when they differ."""

import dataclasses
import logging

import pytest
import torch

from diptych_kernels import elementwise, reference, registry
from diptych_kernels.checks import KernelInputError
from diptych_kernels.registry import KernelUnavailableError, choose_kernels
from diptych_kernels.self_test import KernelMismatchError

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_choice_is_tested_and_logged_with_its_reason(dtype, caplog):
    with caplog.at_level(logging.INFO):
        kernels = choose_kernels(dtype, CPU)
    assert kernels.names["attention"] == "cpu"
    for operation in registry.OPERATIONS:
        assert any(f"kernel {operation}: {kernels.names[operation]} (" in message for message in caplog.messages)


def test_the_reference_can_be_asked_for():
    kernels = choose_kernels(torch.float32, CPU, {"attention": "reference", "rotate": "reference"})
    assert kernels.attention.name == "reference"
    assert kernels.rotate is reference.rotate


def test_unknown_names_are_refused():
    with pytest.raises(KernelUnavailableError, match="attentoin"):
        choose_kernels(torch.float32, CPU, {"attentoin": "cpu"})
    with pytest.raises(KernelUnavailableError, match=r"flash.*cpu, reference"):
        choose_kernels(torch.float32, CPU, {"attention": "flash"})
    with pytest.raises(KernelUnavailableError, match="device meta"):
        choose_kernels(torch.float32, torch.device("meta"))


def zeros_norm(hidden, weight, epsilon):
    return torch.zeros_like(hidden)


def nan_norm(hidden, weight, epsilon):
    return torch.full_like(hidden, torch.nan)


@pytest.mark.parametrize("broken", [zeros_norm, nan_norm])
def test_a_broken_implementation_is_refused_instead_of_computing_zeros(monkeypatch, broken):
    good = registry.OPERATIONS["rms_norm"]
    bad = dataclasses.replace(good.implementations[0], function=broken)
    monkeypatch.setitem(registry.OPERATIONS, "rms_norm", dataclasses.replace(good, implementations=(bad,)))
    with pytest.raises(KernelMismatchError, match=r"rms_norm differs from its reference .* torch"):
        choose_kernels(torch.float32, CPU)


def test_elementwise_kernels_refuse_what_they_would_have_to_copy():
    wide = torch.randn(4, 32)
    with pytest.raises(KernelInputError, match=r"hidden must be contiguous.*\(4, 16\).*\(32, 1\)"):
        elementwise.rms_norm(wide[:, :16], torch.ones(16), 1e-5)
    with pytest.raises(KernelInputError, match="weight must have dtype"):
        elementwise.rms_norm(wide, torch.ones(32, dtype=torch.float64), 1e-5)
    with pytest.raises(KernelInputError, match="gate_up must be contiguous"):
        elementwise.silu_multiply(wide[:, :16], torch.empty(4, 8))
    with pytest.raises(KernelInputError, match="out must have shape"):
        elementwise.silu_multiply(wide, torch.empty(4, 8))
    with pytest.raises(KernelInputError, match=r"cosine must have dtype torch\.float32"):
        elementwise.rotate(wide.view(4, 4, 8), torch.ones(4, 4).bfloat16(), torch.ones(4, 4).bfloat16())
    with pytest.raises(KernelInputError, match="heads must have strides"):
        elementwise.rotate(wide.view(4, 8, 4).transpose(1, 2), torch.ones(4, 4), torch.ones(4, 4))


def test_long_chunks_are_rotated_like_short_ones():
    heads = torch.randn(2500, 2, 8)
    angles = torch.randn(2500, 4)
    want = heads.clone()
    reference.rotate(want, angles.cos(), angles.sin())
    elementwise.rotate(heads, angles.cos(), angles.sin())
    assert torch.allclose(heads, want, atol=1e-6)
