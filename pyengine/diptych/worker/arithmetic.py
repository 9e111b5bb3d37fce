"""Arithmetic of a worker, one for all its steps. Dtypes go by their names, so that no kernels need be imported."""

from pathlib import Path

DTYPES = ("float32", "bfloat16", "float16")
# Either makes 16-bit products faster than float32 (measured with AVX-512 BF16: 2 to 3 times, at 1 to 512 rows); without
# them bfloat16 is emulated and several times slower. Chosen by flag, not by timing: a restarted worker must compute
# what its predecessor did.
_FAST_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16"})


class SettingError(ValueError):
    """A setting of the worker that is not valid here, named in the message."""


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Feature flags of the first CPU; none where the file does not list them."""
    if not cpuinfo.is_file():
        return frozenset()
    with cpuinfo.open() as lines:
        for line in lines:
            if line.startswith(("flags", "Features")):
                return frozenset(line.partition(":")[2].split())
    return frozenset()


def choose_dtype(name: str, device: str, stored: str, flags: frozenset[str]) -> tuple[str, str]:
    """The dtype of weights, activations and KV cache, and why. `device` is cpu or cuda, `stored` the checkpoint's."""
    if name != "auto":
        if name not in DTYPES:
            raise SettingError(f"dtype = {name!r}: use auto, {', '.join(DTYPES)}")
        return name, "as configured"
    if device != "cpu":
        return stored, "the checkpoint's"
    if stored == "float32":
        return "float32", "the checkpoint's"
    if fast := sorted(_FAST_BFLOAT16 & flags):
        return "bfloat16", f"the CPU has {fast[0]}"
    return "float32", "the CPU has neither avx512_bf16 nor amx_bf16"
