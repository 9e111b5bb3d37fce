"""lm-eval's results for the tasks of `evaluation`, as JSON: `python evaluate.py FOLDER [URL]`, where lm-eval is.

With a URL a service is asked, with prompts as token ids and as text, by lm-eval's model `local-completions`; without
one transformers computes on the weights of the folder, in float32, by its model `hf`.
"""

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

TASKS = ["capitals", "prose", "sentences"]
HERE = Path(__file__).parent / "evaluation"


def evaluated(model: str, arguments: dict[str, Any], batch_size: int = 1) -> dict[str, Any]:
    """Metrics of each task, and what the model answered to each request of each document."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    found = lm_eval.simple_evaluate(
        model=model,
        model_args=arguments,
        tasks=TASKS,
        task_manager=TaskManager(include_path=str(HERE), include_defaults=False),
        batch_size=batch_size,
        device="cpu",
        log_samples=True,
        bootstrap_iters=0,
    )
    return {
        task: {
            "metrics": {name: value for name, value in found["results"][task].items() if isinstance(value, float)},
            "answers": [[one for group in sample["resps"] for one in group] for sample in found["samples"][task]],
        }
        for task in TASKS
    }


def main(folder: str, url: str | None = None) -> dict[str, Any]:
    if url is None:
        return {"hf": evaluated("hf", {"pretrained": folder, "dtype": "float32"})}
    common = {
        "model": Path(folder).name,
        "base_url": url + "/v1/completions",
        "tokenizer": folder,
        "tokenizer_backend": "huggingface",
        "max_length": 2048,
    }
    ways: dict[str, tuple[dict[str, Any], int]] = {
        "ids": ({"tokenized_requests": True}, 1),
        "text": ({"tokenized_requests": False}, 1),
        "many at once": ({"tokenized_requests": True, "num_concurrent": 8}, 1),
        "batches": ({"tokenized_requests": True}, 4),
    }
    return {name: evaluated("local-completions", {**common, **way}, size) for name, (way, size) in ways.items()}


if __name__ == "__main__":
    os.chdir(HERE)
    with contextlib.redirect_stdout(sys.stderr):
        results = main(*sys.argv[1:])
    json.dump(results, sys.stdout)
