"""The sample model in float32: real prompts give the ids that transformers gives."""

import pytest
import torch
from worker_rig import Schedule, greedy_oracle, start_runner

from diptych.errors import ModelError
from diptych.hub.pull import pull

PROMPTS = [
    "What is the capital of France?",
    "Write a haiku about rain.",
    "def fibonacci(n):\n    ",
    "The three laws of thermodynamics are",
    "Příliš žluťoučký kůň úpěl",
    "Once upon a time, in a village by the sea, there lived an old woman who",
]
TOKENS = 16


@pytest.fixture(scope="module")
def folder():
    try:
        return pull("smollm2-135m", progress=False)
    except ModelError as error:
        pytest.skip(f"the sample model is neither cached nor to be fetched: {error}")


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_six_real_prompts_equal_transformers(folder):
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    prompts = [tokenizer.encode(text) for text in PROMPTS]
    runner = start_runner(folder, vocabulary=len(tokenizer), kv_cache_bytes=64 << 20, block_size=16, max_model_len=256)
    with torch.inference_mode():
        got = Schedule(runner).generate(prompts, TOKENS, 20)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    assert got == [greedy_oracle(model, prompt, TOKENS) for prompt in prompts]
