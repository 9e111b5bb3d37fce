"""lm-eval, an evaluation harness, on the sample model: what it reads of a service is what it computes by transformers.

`make clients` installs it, in an environment of its own.
"""

import json
import math
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from service_rig import ServiceThread

from diptych.hub import pull

PYTHON = os.environ.get("DIPTYCH_LM_EVAL")
PROGRAM = Path(__file__).parents[1] / "clients" / "evaluate.py"
# Per token of a text, in float32; a logarithm.
TOLERANCE = 2e-3

pytestmark = [
    pytest.mark.model,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(PYTHON is None, reason="DIPTYCH_LM_EVAL names no Python that has lm-eval: make clients"),
]


def run(cache: Path, *arguments: str) -> Any:
    """What `evaluate.py` printed."""
    assert PYTHON is not None
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(cache), "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [PYTHON, str(PROGRAM), *arguments], env=environment, capture_output=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    return json.loads(done.stdout)


def test_scores_and_answers_are_those_of_transformers(tmp_path: Path) -> None:
    folder = pull("smollm2-135m", progress=False)
    expected = run(tmp_path, str(folder))["hf"]
    with ServiceThread(
        folder, worker="process", dtype="float32", max_model_len=2100, kv_cache_bytes=1 << 28
    ) as service:
        ways = run(tmp_path, str(folder), service.url)
    assert len(ways) == 4
    for found in ways.values():
        for task, wanted in expected.items():
            assert len(found[task]["answers"]) == len(wanted["answers"]) > 0
            for answers, others in zip(found[task]["answers"], wanted["answers"], strict=True):
                for answer, other in zip(answers, others, strict=True):
                    check(answer, other)
            for name, value in wanted["metrics"].items():
                assert math.isclose(found[task]["metrics"][name], value, rel_tol=TOLERANCE), (task, name)


def check(answer: Any, other: Any) -> None:
    """A text, a log likelihood, or one with whether a greedy model would say it."""
    if isinstance(other, list):
        assert answer[1:] == other[1:]
        check(answer[0], other[0])
    elif isinstance(other, float):
        assert math.isclose(answer, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE), (answer, other)
    else:
        assert isinstance(other, str) and answer == other
