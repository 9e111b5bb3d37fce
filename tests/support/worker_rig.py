"""A model runner without an engine: random checkpoints, a paged pool, and plans built in Python.

`Schedule` keeps each request's tokens and blocks as the core would and builds the steps of the protocol; it is simple
where the core is clever: blocks come from a shuffled list, nothing is shared.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from diptych.worker import native, reference
from diptych.worker.init import WorkerInit
from diptych.worker.native import NativeWorker
from diptych.worker.plan import Sizes
from diptych.worker.reference import ReferenceWorker
from diptych.worker.runner import ModelRunner, StepResult
from diptych.worker.startup import start
from diptych.worker.synthetic_step import SyntheticStep

VOCABULARY = 96
BLOCK = 4
KERNELS = ("reference", "native")


def write_random_llama(folder: Path, seed: int = 0, architecture: str = "Llama", **changes: Any) -> Any:
    """Writes a 2-layer random checkpoint with transformers and gives the transformers model, in float32."""
    import transformers

    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "initializer_range": 0.3,
        "eos_token_id": None,
        "bos_token_id": None,
        "pad_token_id": None,
        **changes,
    }
    torch.manual_seed(seed)
    config = getattr(transformers, f"{architecture}Config")(**settings)
    model = getattr(transformers, f"{architecture}ForCausalLM")(config).eval()
    # Norms and biases that do something.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    return model


def greedy_oracle(model: Any, prompt: Sequence[int], length: int) -> list[int]:
    """What transformers generates."""
    with torch.inference_mode():
        ids = torch.tensor([list(prompt)])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, do_sample=False)
    return [int(token) for token in out[0, len(prompt) :]]


def worker_init(folder: Path, **changes: Any) -> WorkerInit:
    """A small worker's first message; options of the model by their own names."""
    options = {
        "model": str(folder),
        "dtype": "float32",
        "kernels": "reference",
        "quantization": None,
        "kv_cache_dtype": "auto",
        "kv_cache_bytes": 1 << 20,
        "memory_utilization": 0.9,
        "device": "cpu",
        # One thread: beside other work, two of them wait for each other at every small operation.
        "threads": 1,
        "prefix_cache": True,
    }
    fields: dict[str, Any] = {
        "kind": "inline",
        "epoch": 0,
        "layout_version": 1,
        "block_size": BLOCK,
        "max_running": 8,
        "max_batched_tokens": 256,
        "max_model_len": 128,
        "vocabulary": VOCABULARY,
    }
    for name, value in changes.items():
        (options if name in options else fields)[name] = value
    return WorkerInit(options=options, **fields)


class NativeRunner:
    """The native worker with the face of a `ModelRunner`, as far as tests look."""

    def __init__(self, init: WorkerInit, instruction_set: str | None = None) -> None:
        started = native.start(init, instruction_set)
        assert isinstance(started.worker, NativeWorker)
        self.worker, self.model = started.worker, started.worker.model
        self.sizes = Sizes(
            num_blocks=started.hello["num_blocks"],
            block_size=init.block_size,
            max_running=init.max_running,
            max_model_len=init.max_model_len,
            max_tokens=init.max_step_tokens,
            vocabulary=init.vocabulary,
        )

    def run(self, step: Any) -> StepResult:
        *whole, logprobs = self.worker.run(step, None)
        status, ids, of_ids, candidates = whole
        return StepResult(
            _tensor(status, torch.int32),
            _tensor(ids, torch.int32),
            _tensor(of_ids, torch.float32),
            _tensor(candidates, torch.int32),
            _tensor(logprobs, torch.float32),
        )

    def logits(self, step: Any) -> torch.Tensor:
        return _tensor(self.model.logits(step), torch.float32).view(-1, self.sizes.vocabulary)


def _tensor(array: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.frombuffer(array, dtype=dtype).clone() if len(array) else torch.empty(0, dtype=dtype)


AnyRunner = ModelRunner | NativeRunner


def start_runner(folder: Path, **changes: Any) -> ModelRunner:
    """A runner whose whole KV pool is NaN: whatever reads an unwritten slot shows it."""
    runner = start(worker_init(folder, **changes)).runner
    poison(runner)
    return runner


def start_native(folder: Path, instruction_set: str | None = None, **changes: Any) -> NativeRunner:
    """The native kernels likewise."""
    runner = NativeRunner(worker_init(folder, kernels="native", **changes), instruction_set)
    poison(runner)
    return runner


def start_either(kernels: str, folder: Path, **changes: Any) -> AnyRunner:
    """A runner on these kernels."""
    return start_native(folder, **changes) if kernels == "native" else start_runner(folder, **changes)


def poison(runner: AnyRunner) -> None:
    """Makes every number of the KV cache NaN."""
    if isinstance(runner, NativeRunner):
        runner.model.fill_cache(255)
    else:
        runner.executors.pool.storage.fill_(torch.nan)


def step_counts(runner: AnyRunner) -> dict[str, int]:
    """Steps run, by kind."""
    worker = runner.worker if isinstance(runner, NativeRunner) else ReferenceWorker(runner)
    return dict(worker.stats()["steps"])


def step_logits(runner: AnyRunner, step: Any) -> torch.Tensor:
    """Logits [S, vocabulary] of a step's sampling rows."""
    if isinstance(runner, NativeRunner):
        return runner.logits(step)
    kept: list[torch.Tensor] = []
    model = runner.executors.model
    original = model.logits

    def keep(residual: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        # The runner writes over what it is given.
        kept.append(original(residual, tokens).clone())
        return kept[-1].clone()

    with mock.patch.object(model, "logits", keep):
        runner.run(step)
    return torch.cat(kept)


def start_worker(kernels: str, folder: Path, **changes: Any) -> Any:
    """What the loop starts."""
    module = native if kernels == "native" else reference
    return module.start(worker_init(folder, kernels=kernels, **changes))


@dataclass
class Request:
    """One request: `computed` tokens are in the cache."""

    row: int
    tokens: list[int]
    prompt: int
    computed: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt :]


class Schedule:
    """Builds steps for a runner and takes their results."""

    def __init__(self, runner: AnyRunner, seed: int = 0) -> None:
        self.runner = runner
        self.size = runner.sizes.block_size
        self.free = list(range(1, runner.sizes.num_blocks))
        random.Random(seed).shuffle(self.free)
        self.deltas: list[tuple[int, int, list[int]]] = []

    def add(self, row: int, prompt: Sequence[int]) -> Request:
        return Request(row, list(prompt), len(prompt))

    def release(self, request: Request) -> None:
        """Frees a request's blocks: it is over, or preempted and computed anew."""
        self.free.extend(request.blocks)
        request.blocks, request.computed = [], 0

    def _grow(self, request: Request, length: int) -> None:
        missing = -(-length // self.size) - len(request.blocks)
        if missing > 0:
            new = [self.free.pop() for _ in range(missing)]
            self.deltas.append((request.row, len(request.blocks), new))
            request.blocks += new

    def step(self, decode: Sequence[Request], prefill: Sequence[tuple[Request, int]]) -> SyntheticStep:
        """A step: one token of each of `decode`, some tokens of each of `prefill`."""
        parts = [(request, 1) for request in decode] + list(prefill)
        rows = []
        for request, count in parts:
            rows.append((request.row, request.computed, request.tokens[request.computed : request.computed + count]))
            self._grow(request, request.computed + count)
        step = SyntheticStep(rows, len(decode), sampled=False)
        blocks = [
            request.blocks[position // self.size] * self.size + position % self.size
            for request, count in parts
            for position in range(request.computed, request.computed + count)
        ]
        step.arrays["slots"] = np.array(blocks, dtype=np.int64)
        step.arrays["delta_rows"] = np.array([row for row, _, _ in self.deltas], dtype=np.int32)
        step.arrays["delta_starts"] = np.array([start for _, start, _ in self.deltas], dtype=np.int32)
        step.arrays["delta_counts"] = np.array([len(new) for _, _, new in self.deltas], dtype=np.int32)
        step.arrays["delta_blocks"] = np.array([b for _, _, new in self.deltas for b in new], dtype=np.int32)
        self.deltas = []
        self._keep_last_chunks(step, parts)
        return step

    def _keep_last_chunks(self, step: SyntheticStep, parts: Sequence[tuple[Request, int]]) -> None:
        """Only a row whose last token is in this step is sampled."""
        last = np.array([request.computed + count == len(request.tokens) for request, count in parts], dtype=bool)
        for name, array in step.arrays.items():
            if len(array) == len(parts) and name in SAMPLED:
                step.arrays[name] = array[last]
        step.num_sampling_rows = int(last.sum())

    def run(self, decode: Sequence[Request], prefill: Sequence[tuple[Request, int]]) -> StepResult:
        """Runs a step and commits it."""
        step = self.step(decode, prefill)
        result = self.runner.run(step)
        ids = dict(zip(step.arrays["sampling_rows"].tolist(), result.ids.tolist(), strict=True))
        for request, count in [(request, 1) for request in decode] + list(prefill):
            request.computed += count
            if request.computed == len(request.tokens):
                request.tokens.append(ids[request.row])
        return result

    def generate(self, prompts: Sequence[Sequence[int]], length: int, chunk: int) -> list[list[int]]:
        """All prompts together, prefilled in chunks beside whoever decodes already, until each has `length` tokens."""
        requests = [self.add(row, prompt) for row, prompt in enumerate(prompts)]
        while any(len(request.output) < length for request in requests):
            open_requests = [request for request in requests if len(request.output) < length]
            decode = [request for request in open_requests if request.output]
            room, prefill = chunk, []
            for request in open_requests:
                count = min(room, len(request.tokens) - request.computed)
                if not request.output and count > 0:
                    prefill.append((request, count))
                    room -= count
            self.run(decode, prefill)
        for request in requests:
            self.release(request)
        return [request.output for request in requests]


SAMPLED = frozenset(
    (
        *("sampling_tokens", "sampling_rows", "seed", "output_index", "choice_index", "logprobs", "masked"),
        *("temperature", "top_k", "top_p", "min_p"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "penalty_offset", "bias_offset"),
    )
)
