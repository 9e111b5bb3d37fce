"""torch's devices and dtypes, by the names of the configuration."""

import torch

from diptych.worker.arithmetic import SettingError

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(device: str) -> torch.device:
    """cpu, cuda or auto → a torch device. Raises SettingError where there is none."""
    if device not in ("auto", "cpu", "cuda"):
        raise SettingError(f"device = {device!r}: use auto, cpu or cuda")
    there = torch.cuda.is_available()
    if device == "cuda" and not there:
        raise SettingError(f"device = 'cuda', but torch {torch.__version__} sees no CUDA device: use cpu")
    return torch.device("cuda", torch.cuda.current_device()) if there and device != "cpu" else torch.device("cpu")
