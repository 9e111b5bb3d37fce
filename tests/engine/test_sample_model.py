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


def test_beams_are_those_of_transformers(sample: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    texts = ["The capital of France is", "Once upon a time there was a", "def add(a, b):\n"]
    tokenizer = AutoTokenizer.from_pretrained(sample)
    prompts = [tokenizer(text).input_ids for text in texts]
    model = AutoModelForCausalLM.from_pretrained(sample, dtype=torch.float32)
    settings: dict[str, Any] = {"length_penalty": 0.8, "early_stopping": False}
    ends = [2, 0, tokenizer(".").input_ids[0]]
    expected = []
    for prompt in prompts:
        sequences = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=16,
            num_beams=4,
            num_return_sequences=4,
            do_sample=False,
            eos_token_id=ends,
            pad_token_id=2,
            **settings,
        )
        for ids in sequences[:, len(prompt) :].tolist():
            stop = next((at for at, token in enumerate(ids) if token in ends), len(ids) - 1)
            expected.append(ids[: stop + 1])
    params = SamplingParams(max_tokens=16, n=4, use_beam_search=True, stop_token_ids=ends[2:], **settings)
    for kernels in ("native", "reference"):
        with LLM(str(sample), worker="inline", kernels=kernels, **{**SMALL, "max_running": 16}) as llm:
            assert [result.token_ids for result in llm.generate(prompts, params)] == expected


def test_log_probabilities_are_those_of_transformers(sample: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    texts = ["The capital of France is", "Once upon a time there was a", "def add(a, b):\n"]
    tokenizer = AutoTokenizer.from_pretrained(sample)
    prompts = [tokenizer(text).input_ids for text in texts]
    model = AutoModelForCausalLM.from_pretrained(sample, dtype=torch.float32)
    params = SamplingParams(temperature=0.9, seed=4, presence_penalty=0.5, max_tokens=12, logprobs=5, ignore_eos=True)
    for kernels in ("native", "reference"):
        with LLM(str(sample), worker="inline", kernels=kernels, **SMALL) as llm:
            results = llm.generate(prompts, params)
        for prompt, result in zip(prompts, results, strict=True):
            ids = prompt + result.token_ids
            with torch.inference_mode():
                logits = model(torch.tensor([ids])).logits[0, len(prompt) - 1 : -1]
            for row, entry in zip(torch.log_softmax(logits, dim=-1), result.logprobs, strict=True):
                best = row.topk(5)
                assert [other.token_id for other in entry.likeliest] == best.indices.tolist()
                for named in (entry.token, *entry.likeliest):
                    assert abs(float(row[named.token_id]) - named.logprob) < 2e-3
