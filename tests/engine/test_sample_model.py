"""The sample model end to end: pulled, loaded by a worker process, asked."""

from pathlib import Path
from typing import Any

import pytest

from diptych import LLM, AsyncEngine, EngineConfig, SamplingParams
from diptych.hub import pull

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

# In bfloat16 the two best first tokens of this question are one rounding step apart. One thread: several wait for each
# other when the machine is busy.
SMALL: dict[str, Any] = {
    "dtype": "float32",
    "threads": 1,
    "max_model_len": 512,
    "max_running": 4,
    "max_batched_tokens": 64,
    "kv_cache_bytes": 1 << 26,
}
GREEDY = SamplingParams(max_tokens=24, temperature=0.0)
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def sample() -> Path:
    return pull("smollm2-135m", progress=False)


def test_the_tokenizer_splits_as_the_model_was_trained(sample: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(sample / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 49152
    for text, tokens in {
        "Hello world": ["Hello", "Ġworld"],
        "x = 1234": ["x", "Ġ=", "Ġ", "1", "2", "3", "4"],
        "<|im_start|>user\n": ["<|im_start|>", "user", "Ċ"],
        "    return": ["ĠĠĠ", "Ġreturn"],
        "a  1": ["a", "ĠĠ", "1"],
    }.items():
        assert tokenizer.encode(text).tokens == tokens
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


async def test_the_capital_of_france_is_paris(sample: Path) -> None:
    async with AsyncEngine(EngineConfig("smollm2-135m", **SMALL)) as engine:
        assert engine.model_name == "smollm2-135m"
        assert engine.model.eos_ids == [2, 0]
        outputs = [output async for output in engine.chat(QUESTION, GREEDY)]
        text = "".join(output.text for output in outputs)
        assert text == "The capital of France is Paris."
        assert outputs[-1].finish_reason == "stop"
        assert outputs[-1].usage is not None and outputs[-1].usage.prompt_tokens == 37
        assert {"model", "weights", "total"} <= set(engine.timings)


def test_an_inline_worker_gives_the_same_answer(sample: Path) -> None:
    with LLM(str(sample), worker="inline", **SMALL) as llm:
        (result,) = llm.chat([QUESTION], GREEDY)
        assert result.text == "The capital of France is Paris."
        assert llm.model_name == "smollm2-135m"
