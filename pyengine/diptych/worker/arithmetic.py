"""Device and dtype of a worker: one arithmetic for both executors."""

from pathlib import Path

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Either makes torch's 16-bit products faster than float32 (measured with AVX-512 BF16: 2 to 3 times, at 1 to 512 rows);
# without them bfloat16 is emulated and several times slower. Chosen by flag, not by timing: a restarted worker must
# compute what its predecessor did.
_FAST_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16"})


class SettingError(ValueError):
    """A setting of the worker that is not valid here, named in the message."""


def choose_device(device: str) -> torch.device:
    """cpu, cuda or auto → a torch device. Raises SettingError where there is none."""
    if device not in ("auto", "cpu", "cuda"):
        raise SettingError(f"device = {device!r}: use auto, cpu or cuda")
    there = torch.cuda.is_available()
    if device == "cuda" and not there:
        raise SettingError(f"device = 'cuda', but torch {torch.__version__} sees no CUDA device: use cpu")
    return torch.device("cuda", torch.cuda.current_device()) if there and device != "cpu" else torch.device("cpu")


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Feature flags of the first CPU; none where the file does not list them."""
    for line in cpuinfo.read_text().splitlines() if cpuinfo.is_file() else ():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def choose_dtype(
    name: str, device: torch.device, stored: torch.dtype, flags: frozenset[str]
) -> tuple[torch.dtype, str]:
    """The dtype of weights, activations and KV cache, and why. `stored` is the checkpoint's."""
    if name != "auto":
        if name not in DTYPES:
            raise SettingError(f"dtype = {name!r}: use auto, {', '.join(DTYPES)}")
        return DTYPES[name], "as configured"
    if device.type != "cpu":
        return stored, "the checkpoint's"
    if stored == torch.float32:
        return torch.float32, "the checkpoint's"
    if fast := sorted(_FAST_BFLOAT16 & flags):
        return torch.bfloat16, f"the CPU has {fast[0]}"
    return torch.float32, "the CPU has neither avx512_bf16 nor amx_bf16"
