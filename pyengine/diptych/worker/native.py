"""The worker that computes with the native kernels. Imports neither torch nor numpy: that alone would take seconds."""

import json
import logging
from pathlib import Path
from typing import Any

from diptych.worker import memory
from diptych.worker.arithmetic import SettingError, choose_dtype, cpu_flags
from diptych.worker.init import WorkerInit, WorkerOptions
from diptych.worker.packed_weights import WeightSource, find_source, open_weights
from diptych.worker.preparation import Clock, Started, read_model_config
from diptych_core import kernels

log = logging.getLogger(__name__)


def start(init: WorkerInit, instruction_set: str | None = None) -> Started:
    """Makes the worker. Every refusal names the setting, file or tensor; those about memory have the arithmetic.

    instruction_set: None for the fastest of this machine.
    """
    options = init.model_options()
    clock = Clock()
    if options.device == "cuda":
        raise SettingError("device = 'cuda': the native kernels compute on the CPU")
    folder = Path(options.model)
    config = read_model_config(init, folder)
    source = find_source(folder, config, options.quantization)
    formats, arithmetic, why = choose_formats(options, source)
    limits = memory.read_limits()
    weights = open_weights(source, config, formats, options.threads)
    clock.lap("weights")
    settings = {
        "instruction_set": instruction_set,
        "threads": options.threads,
        "arithmetic": arithmetic,
        "kv": choose_kv(options.kv_cache_dtype, options.dtype, arithmetic),
        "block_size": init.block_size,
        "max_running": init.max_running,
        "max_tokens": init.max_step_tokens,
        "max_model_len": init.max_model_len,
        "vocabulary": init.vocabulary,
    }
    plan, block_bytes = plan_kv(init, weights, settings, limits)
    model = kernels.Model(weights, json.dumps({**settings, "num_blocks": plan.num_blocks}).encode())
    clock.lap("kv")
    about = {**settings, **json.loads(model.describe()), "formats": formats}
    about["num_blocks"], about["bytes_per_block"] = plan.num_blocks, block_bytes
    _log_choices(about, why)
    return Started(NativeWorker(model), _hello(init, about), clock.parts)


def choose_formats(options: WorkerOptions, source: WeightSource) -> tuple[str, str, str]:
    """Formats to pack the weights in, arithmetic of the products of 16-bit values, and why that one."""
    dtype = options.dtype
    if options.quantization is None and dtype == "auto" and source.stored == "float16":
        # bfloat16 arithmetic would round these weights.
        arithmetic, why = "float32", "the checkpoint is float16"
    else:
        arithmetic, why = choose_dtype(dtype, "cpu", source.stored, cpu_flags())
    formats = options.quantization or source.formats or (dtype if dtype in ("bfloat16", "float16") else "auto")
    return formats, "float32" if arithmetic == "float16" else arithmetic, why


def choose_kv(asked: str, dtype: str, arithmetic: str) -> str:
    """The format of the KV cache: what is asked for, else that of the arithmetic."""
    if asked != "auto":
        return asked
    return "float16" if dtype == "float16" else arithmetic


def plan_kv(
    init: WorkerInit, weights: kernels.Weights, settings: dict[str, Any], limits: memory.Limits
) -> tuple[memory.MemoryPlan, int]:
    """Plans the KV cache, logging the arithmetic; gives the bytes of a block too. Raises memory.MemoryPlanError.

    limits: as they were before the weights were opened.
    """
    needs = json.loads(weights.needs(json.dumps({**settings, "num_blocks": 1}).encode()))
    log.info(
        "activation bound: %s B for steps of at most %d tokens (max_prefill_tokens %s, max_batched_tokens %d)",
        f"{needs['activation_bytes']:,}",
        init.max_step_tokens,
        init.max_prefill_tokens or "unbounded",
        init.max_batched_tokens,
    )
    plan = memory.plan_memory(
        memory.Needs(
            weights=weights.num_bytes,
            activations=needs["activation_bytes"],
            bytes_per_block=needs["bytes_per_block"],
            block_size=init.block_size,
            max_model_len=init.max_model_len,
            max_running=init.max_running,
        ),
        limits.usable,
        init.model_options().kv_cache_bytes,
        memory.default_kv_bytes(limits),
    )
    log.info("memory: %s", plan.arithmetic)
    return plan, needs["bytes_per_block"]


class NativeWorker:
    """See `preparation.StepWorker`."""

    def __init__(self, model: kernels.Model) -> None:
        self.model = model
        self._steps = {"prefill": 0, "decode": 0, "mixed": 0}

    def run(self, step: Any, port: Any) -> tuple[Any, Any, Any, Any, Any]:
        """See `preparation.StepWorker`."""
        result = self.model.run(step, port)
        decode = step.num_decode_rows
        self._steps["prefill" if decode == 0 else "decode" if decode == step.num_rows else "mixed"] += 1
        return result

    def reset(self) -> None:
        """See `preparation.StepWorker`."""
        self.model.reset()

    def stats(self) -> dict[str, Any]:
        """Steps by kind."""
        return {"steps": dict(self._steps)}


def _log_choices(about: dict[str, Any], why: str) -> None:
    known = kernels.instruction_sets()
    reason = "the fastest of this machine" if about["instruction_set"] == known[0] else "as configured"
    log.info("instruction set: %s (%s; it has %s)", about["instruction_set"], reason, ", ".join(known))
    log.info("arithmetic: %s (%s), weights: %s, KV cache: %s", about["arithmetic"], why, about["formats"], about["kv"])
    log.info(
        "%d threads; huge pages hold %s of %s B of weights and, so far, %s of %s B of KV cache",
        about["threads"],
        *(f"{about[name]:,}" for name in ("weight_huge_bytes", "weight_bytes", "kv_huge_bytes", "kv_bytes")),
    )


def _hello(init: WorkerInit, about: dict[str, Any]) -> dict[str, Any]:
    return {
        "layout_version": init.layout_version,
        "vocabulary": init.vocabulary,
        "num_blocks": about["num_blocks"],
        "kv_layout": {"dtype": about["kv"], "layers": about["layers"], "bytes_per_block": about["bytes_per_block"]},
        "buckets": [],
        "capabilities": ["exact"],
        "implementation": {
            "kernels": "native",
            "instruction_set": about["instruction_set"],
            "weights": about["formats"],
            "arithmetic": about["arithmetic"],
            "mixed_step": "fused",
        },
    }
