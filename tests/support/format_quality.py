"""What a number format costs: every position's logits under several formats, side by side over the same text."""

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from diptych.models.config import LlamaConfig
from diptych.models.registry import read_config
from diptych.worker.packed_weights import find_source, open_weights
from diptych.worker.synthetic_step import SyntheticStep
from diptych_core import kernels

WINDOW = 1024
# Positions whose logits are held at once, for every variant.
SLICE = 128
BLOCK_SIZE = 16
# Positions scored at once: bounds the float64 copies of their logits.
SCORED = 4
# What a sampling row has, apart from its token and its state row.
SAMPLING = (
    *("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("seed", "output_index", "choice_index", "penalty_offset", "bias_offset", "logprobs", "masked"),
)


@dataclass(frozen=True)
class Variant:
    """A format of the weights (`gguf`: the file's own), one of the KV cache, and the arithmetic of 16-bit products."""

    weights: str
    kv: str
    arithmetic: str
    # Of so many windows one is read.
    every: int = 1

    def __str__(self) -> str:
        return f"{self.weights} weights, {self.kv} KV, {self.arithmetic} arithmetic"


@dataclass
class Scores:
    """One value for each position that predicts a token."""

    variant: Variant
    windows: list[int] = field(default_factory=list)
    losses: list[np.ndarray[Any, Any]] = field(default_factory=list)
    divergences: list[np.ndarray[Any, Any]] = field(default_factory=list)
    agreements: list[np.ndarray[Any, Any]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def loss(self) -> np.ndarray[Any, Any]:
        """-log of the probability of the token that followed."""
        return np.concatenate(self.losses)

    @property
    def perplexity(self) -> float:
        return float(np.exp(self.loss.mean()))

    @property
    def divergence(self) -> float:
        """Mean Kullback-Leibler divergence of the distribution from the first variant's, in nats."""
        return float(np.concatenate(self.divergences).mean())

    @property
    def agreement(self) -> float:
        """Share of positions with the first variant's greedy id."""
        return float(np.concatenate(self.agreements).mean())

    def cost(self, base: "Scores") -> tuple[float, float]:
        """Relative growth of the perplexity over `base`, and its standard error from the paired differences."""
        theirs = [loss for window, loss in zip(base.windows, base.losses, strict=True) if window in set(self.windows)]
        difference = self.loss - np.concatenate(theirs)
        error = difference.std() / np.sqrt(len(difference))
        return float(np.expm1(difference.mean())), float(error)


def encode(folder: Path, text: str, limit: int | None) -> list[int]:
    """The first ids of a text."""
    ids: list[int] = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    return ids[:limit]


def load(folder: Path, variants: Sequence[Variant], threads: int) -> list[kernels.Model]:
    """A model for each variant; weights of one format are shared."""
    config = read_config(json.loads((folder / "config.json").read_text()))
    weights: dict[str, kernels.Weights] = {}
    models = []
    for variant in variants:
        name = variant.weights
        if name not in weights:
            source = find_source(folder, config, "gguf" if name == "gguf" else None)
            weights[name] = open_weights(source, config, name, threads)
        models.append(kernels.Model(weights[name], _settings(config, variant, threads)))
    return models


def _settings(config: LlamaConfig, variant: Variant, threads: int) -> bytes:
    settings = {
        "threads": threads,
        "arithmetic": variant.arithmetic,
        "kv": variant.kv,
        "block_size": BLOCK_SIZE,
        "num_blocks": WINDOW // BLOCK_SIZE + 1,
        "max_running": 1,
        "max_tokens": SLICE,
        "max_model_len": WINDOW,
        "vocabulary": config.vocabulary,
    }
    return json.dumps(settings).encode()


def window_steps(ids: Sequence[int]) -> Iterator[tuple[SyntheticStep, Sequence[int]]]:
    """Steps that bring a window into the cache slice by slice and ask for the logits of every position but the last,
    each with the ids that follow."""
    for start in range(0, len(ids) - 1, SLICE):
        targets = ids[start + 1 : start + 1 + SLICE]
        count = len(targets)
        step = SyntheticStep([(0, start, ids[start : start + count])], 0, False)
        step.num_sampling_rows = count
        arrays = step.arrays
        for name in SAMPLING:
            arrays[name] = np.repeat(arrays[name], count)
        arrays["sampling_tokens"] = np.arange(count, dtype=np.int32)
        arrays["sampling_rows"] = np.zeros(count, dtype=np.int32)
        # Block 0 belongs to nobody.
        arrays["slots"] = np.arange(start, start + count, dtype=np.int64) + BLOCK_SIZE
        if start == 0:
            blocks = WINDOW // BLOCK_SIZE
            arrays["delta_rows"] = arrays["delta_starts"] = np.zeros(1, dtype=np.int32)
            arrays["delta_counts"] = np.array([blocks], dtype=np.int32)
            arrays["delta_blocks"] = np.arange(1, blocks + 1, dtype=np.int32)
        yield step, targets


def measure(
    variants: Sequence[Variant], models: Sequence[kernels.Model], ids: Sequence[int], threads: int
) -> Iterator[list[Scores]]:
    """Scores of all variants over windows of the text, after each window; the first variant is the base."""
    scores = [Scores(variant) for variant in variants]
    with ThreadPoolExecutor(threads) as pool:
        for window, start in enumerate(range(0, len(ids) - 1, WINDOW)):
            read = [place for place, variant in enumerate(variants) if window % variant.every == 0]
            for step, targets in window_steps(ids[start : start + WINDOW]):
                logits = [_run(models[place], step, scores[place]) for place in read]
                places = [slice(at, at + SCORED) for at in range(0, len(targets), SCORED)]
                parts = ([part[place] for part in logits] for place in places)
                for found in pool.map(score_part, parts, (np.array(targets[place]) for place in places)):
                    for place, (loss, divergence, agreement) in zip(read, found, strict=True):
                        scores[place].windows.append(window)
                        scores[place].losses.append(loss)
                        scores[place].divergences.append(divergence)
                        scores[place].agreements.append(agreement)
            yield scores


def _run(model: kernels.Model, step: SyntheticStep, score: Scores) -> np.ndarray[Any, Any]:
    """Logits of the sampling rows [n, vocabulary]."""
    begun = time.perf_counter()
    logits = np.frombuffer(model.logits(step), dtype=np.float32)
    score.seconds += time.perf_counter() - begun
    return logits.reshape(step.num_sampling_rows, -1)


def score_part(logits: Sequence[np.ndarray[Any, Any]], targets: np.ndarray[Any, Any]) -> list[tuple[Any, Any, Any]]:
    """Loss, divergence from the first and agreement with it of each variant's logits [n, vocabulary]; in float64."""
    places = np.arange(len(targets))
    results = []
    weights = best = own = None
    for part in logits:
        values = part.astype(np.float64)
        values -= values.max(axis=1, keepdims=True)
        powers = np.exp(values)
        sums = powers.sum(axis=1)
        logs = np.log(sums)
        if weights is None:
            weights = powers / sums[:, None]
            best = part.argmax(axis=1)
        # The mean log probability under the first variant's distribution.
        mean = np.einsum("ij,ij->i", weights, values) - logs
        own = mean if own is None else own
        results.append((logs - values[places, targets], own - mean, part.argmax(axis=1) == best))
    return results
