"""From a model folder to a runner in torch that is warm: plan memory, load, allocate, test the kernels, warm up."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from diptych.models.config import LlamaConfig, weight_shapes
from diptych.models.llama import Llama, Weights, Workspace, assemble
from diptych.sampling import sampler
from diptych.worker import memory
from diptych.worker.arithmetic import SettingError, choose_dtype, cpu_flags
from diptych.worker.checkpoint import check_tensors
from diptych.worker.devices import TORCH_DTYPES, choose_device
from diptych.worker.executors import Executors
from diptych.worker.init import WorkerInit
from diptych.worker.plan import Sizes
from diptych.worker.preparation import Clock, read_model_config
from diptych.worker.runner import LOGIT_ROWS, ModelRunner
from diptych.worker.warm_up import warm_up_decode, warm_up_prefill
from diptych.worker.weights import Checkpoint, weight_bytes
from diptych_kernels import cpu
from diptych_kernels.kv_cache import KVPool, KVShape
from diptych_kernels.registry import Kernels, choose_kernels

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Started:
    """A warm runner, what `hello` says of it, and the seconds each part of the start took."""

    runner: ModelRunner
    hello: dict[str, Any]
    timings: dict[str, float]


def start(init: WorkerInit) -> Started:
    """Makes the runner. Every refusal names the setting, file or tensor; those about memory have the arithmetic."""
    options = init.model_options()
    for name, neutral in (("kv_cache_dtype", "auto"), ("quantization", None)):
        if (value := getattr(options, name)) != neutral:
            raise SettingError(f"{name} = {value!r} needs the native kernels, and kernels = {options.kernels!r}")
    torch.set_num_threads(options.threads)
    clock = Clock()
    device = choose_device(options.device)
    config = read_model_config(init, Path(options.model))
    if config.packed is not None:
        raise SettingError(f"the weights are packed as {config.packed!r}, which only the native kernels read")
    with Checkpoint(Path(options.model)) as checkpoint:
        check_tensors(checkpoint.tensors, weight_shapes(config))
        stored = checkpoint.tensors["model.norm.weight"].dtype
        name, why = choose_dtype(options.dtype, device.type, stored, cpu_flags())
        dtype = TORCH_DTYPES[name]
        log.info("arithmetic: %s on %s (%s), %d threads", dtype, device, why, options.threads)
        plan = plan_kv(init, config, dtype, device)
        weights = assemble(config, lambda names: checkpoint.take(names, dtype, device))
    clock.lap("weights")
    shape = KVShape(config.layers, plan.num_blocks, init.block_size, config.kv_heads, config.head_dim)
    pool = KVPool(shape, dtype, device)
    workspace = Workspace(config, init.max_step_tokens, dtype, device)
    clock.lap("kv")
    kernels = choose_kernels(dtype, device)
    runner = _runner(init, config, weights, kernels, (pool, workspace))
    clock.lap("kernels")
    warm_up_prefill(runner)
    clock.lap("warm_up_prefill")
    warm_up_decode(runner)
    clock.lap("warm_up_decode")
    runner.state.reset()
    return Started(runner, _hello(init, pool, kernels, dtype), clock.parts)


def activation_bytes(config: LlamaConfig, dtype: torch.dtype, init: WorkerInit) -> int:
    """Upper bound, in bytes, of all that a step of the most tokens holds besides weights and KV cache."""
    max_tokens = init.max_step_tokens
    scratch = cpu.scratch_bytes(config.heads, config.kv_heads, config.head_dim, init.max_running)
    scratch += cpu.mask_bytes(max_tokens, init.max_running, init.max_model_len)
    rows = min(init.max_running, LOGIT_ROWS)
    logits = rows * config.vocabulary * (dtype.itemsize + 4) + sampler.scratch_bytes(config.vocabulary, rows)
    return Workspace.bytes(config, max_tokens, dtype) + max(scratch, logits)


def plan_kv(init: WorkerInit, config: LlamaConfig, dtype: torch.dtype, device: torch.device) -> memory.MemoryPlan:
    """Plans the KV cache, logging the arithmetic. Raises memory.MemoryPlanError where it cannot be."""
    options = init.model_options()
    activations = activation_bytes(config, dtype, init)
    log.info(
        "activation bound: %s B for steps of at most %d tokens (max_prefill_tokens %s, max_batched_tokens %d)",
        f"{activations:,}",
        init.max_step_tokens,
        init.max_prefill_tokens or "unbounded",
        init.max_batched_tokens,
    )
    shape = KVShape(config.layers, 1, init.block_size, config.kv_heads, config.head_dim)
    needs = memory.Needs(
        weights=weight_bytes(weight_shapes(config), dtype),
        activations=activations,
        bytes_per_block=shape.bytes_per_block(dtype),
        block_size=init.block_size,
        max_model_len=init.max_model_len,
        max_running=init.max_running,
    )
    if device.type == "cpu":
        limits = memory.read_limits()
        usable, default = limits.usable, memory.default_kv_bytes(limits)
    else:
        free, total = torch.cuda.mem_get_info(device)
        taken = total - free
        usable = max(int(total * (options.memory_utilization or 0.9)) - taken, 0)
        default = usable
    plan = memory.plan_memory(needs, usable, options.kv_cache_bytes, default)
    log.info("memory: %s", plan.arithmetic)
    return plan


def _runner(
    init: WorkerInit, config: LlamaConfig, weights: Weights, kernels: Kernels, buffers: tuple[KVPool, Workspace]
) -> ModelRunner:
    pool, workspace = buffers
    sizes = Sizes(
        num_blocks=pool.shape.blocks,
        block_size=init.block_size,
        max_running=init.max_running,
        max_model_len=init.max_model_len,
        max_tokens=init.max_step_tokens,
        vocabulary=init.vocabulary,
    )
    return ModelRunner(Executors(Llama(config, weights, kernels, workspace), pool), sizes)


def _hello(init: WorkerInit, pool: KVPool, kernels: Kernels, dtype: torch.dtype) -> dict[str, Any]:
    layer = pool.layers[0].keys
    return {
        "layout_version": init.layout_version,
        "vocabulary": init.vocabulary,
        "num_blocks": pool.shape.blocks,
        "kv_layout": {
            "dtype": str(dtype).removeprefix("torch."),
            "layers": pool.shape.layers,
            "shape": list(layer.shape),
            "strides": list(layer.stride()),
            "bytes_per_block": pool.shape.bytes_per_block(dtype),
        },
        "buckets": [],
        "capabilities": [],
        "implementation": {"torch": str(torch.__version__), "mixed_step": "fused", **kernels.names},
    }
