"""Which implementation of each operation serves: chosen once, tested once, logged.

`choose_kernels` takes the first implementation of each operation that the machine can run, or the one asked for, and
compares a small case with `reference`. A combination that computes something else is refused, not served.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from diptych_kernels import cpu, elementwise, kv_cache, reference, self_test
from diptych_kernels.attention import Attention
from diptych_kernels.kv_cache import KVLayer

log = logging.getLogger(__name__)


class KernelUnavailableError(RuntimeError):
    """No implementation of an operation can run here, or the one asked for cannot."""


@dataclass(frozen=True, slots=True)
class Implementation:
    """One implementation. `devices` are the torch device types it runs on, `why` says for what it is chosen."""

    name: str
    function: Any
    devices: frozenset[str]
    why: str


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation: its implementations, best first, and the comparison of one of them with the reference."""

    implementations: tuple[Implementation, ...]
    test: Callable[[Any, torch.dtype, torch.device], None]


_EVERYWHERE = frozenset({"cpu", "cuda"})
_ORACLE = "plain definition, for tests"


def _operation(
    fast: tuple[str, Any, str], oracle: Any, test: Callable[[Any, torch.dtype, torch.device], None]
) -> Operation:
    name, function, why = fast
    return Operation(
        (Implementation(name, function, _EVERYWHERE, why), Implementation("reference", oracle, _EVERYWHERE, _ORACLE)),
        test,
    )


OPERATIONS: dict[str, Operation] = {
    "attention": _operation(
        ("cpu", cpu.CpuAttention(), "tiles with online softmax, bounded memory, torch only"),
        reference.ReferenceAttention(),
        self_test.attention,
    ),
    "write_kv": _operation(
        ("torch", kv_cache.write_kv, "one indexed copy per layer"), reference.write_kv, self_test.write_kv
    ),
    "rms_norm": _operation(("torch", elementwise.rms_norm, "fused in torch"), reference.rms_norm, self_test.rms_norm),
    "rotate": _operation(
        ("torch", elementwise.rotate, "in place, products in float32"), reference.rotate, self_test.rotate
    ),
    "silu_multiply": _operation(
        ("torch", elementwise.silu_multiply, "in place"), reference.silu_multiply, self_test.silu_multiply
    ),
}


@dataclass(frozen=True, slots=True)
class Kernels:
    """The functions that serve; `names` says which implementation each is."""

    attention: Attention
    write_kv: Callable[[torch.Tensor, torch.Tensor, KVLayer, torch.Tensor], None]
    rms_norm: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
    rotate: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
    silu_multiply: Callable[[torch.Tensor, torch.Tensor], None]
    names: Mapping[str, str]


def choose_kernels(dtype: torch.dtype, device: torch.device, wanted: Mapping[str, str] | None = None) -> Kernels:
    """Chooses, tests against the reference and logs an implementation of every operation.

    wanted: operation → implementation, for those that should not be chosen automatically.
    Raises KernelUnavailableError for a name that is unknown or cannot run on `device`, and
    self_test.KernelMismatchError when the chosen one computes something else than the reference.
    """
    wanted = dict(wanted or {})
    if unknown := sorted(wanted.keys() - OPERATIONS.keys()):
        raise KernelUnavailableError(f"no operation named {', '.join(unknown)}: there are {', '.join(OPERATIONS)}")
    chosen = {name: _choose(name, device, wanted.get(name)) for name in OPERATIONS}
    for name, implementation in chosen.items():
        OPERATIONS[name].test(implementation.function, dtype, device)
        log.info("kernel %s: %s (%s); agrees with reference", name, implementation.name, implementation.why)
    functions = {name: implementation.function for name, implementation in chosen.items()}
    return Kernels(**functions, names={name: implementation.name for name, implementation in chosen.items()})


def _choose(operation: str, device: torch.device, wanted: str | None) -> Implementation:
    implementations = OPERATIONS[operation].implementations
    for implementation in implementations:
        if device.type in implementation.devices and wanted in (None, implementation.name):
            return implementation
    names = ", ".join(implementation.name for implementation in implementations)
    raise KernelUnavailableError(
        f"operation {operation} has no implementation {wanted or ''} on device {device.type}: there are {names}"
    )
