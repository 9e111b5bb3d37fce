"""`echo`: the prompt before its answer, with its log probabilities, as evaluation harnesses ask for it."""

from typing import Any

import pytest
from raw_client import RawClient, events
from service_rig import CLIENT, ServiceThread
from tiny_folder import HashOracle

PATH = "/v1/completions"
TEXT = "The quick brown fox jumps"


def whole(service: ServiceThread, **fields: Any) -> dict[str, Any]:
    response = CLIENT.post(service.url + PATH, json={"echo": True, **fields}, timeout=20)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_an_evaluation_harness_reads_the_log_probabilities_of_its_continuations(
    service: ServiceThread, oracle: HashOracle
) -> None:
    """Batched prompts of token ids, one more token that is left out, greedy or not for each."""
    prompts = [[5 + (index * 37 + length) % 500 for index in range(length)] for length in (2, 7, 290)]
    answer = whole(service, prompt=prompts, max_tokens=1, logprobs=1, temperature=0, seed=1234)
    for prompt, choice in zip(prompts, answer["choices"], strict=True):
        logprobs = choice["logprobs"]
        assert len(logprobs["tokens"]) == len(prompt) + 1
        assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
        for position in range(1, len(prompt)):
            expected = oracle.logprobs(prompt[:position])
            assert abs(logprobs["token_logprobs"][position] - float(expected[prompt[position]])) < 1e-5
            top = logprobs["top_logprobs"][position]
            greedy = max(expected, key=lambda token: expected[token]) == prompt[position]
            assert (max(top, key=lambda text: top[text]) == logprobs["tokens"][position]) == greedy


@pytest.mark.parametrize("logprobs", [None, 0, 3])
@pytest.mark.parametrize("max_tokens", [0, 1, 12, None])
@pytest.mark.parametrize("n", [1, 2])
def test_a_stream_tells_the_same_as_a_whole_answer(
    service: ServiceThread, logprobs: int | None, max_tokens: int | None, n: int
) -> None:
    fields = {"prompt": TEXT, "logprobs": logprobs, "max_tokens": max_tokens, "n": n}
    answer = whole(service, **fields)
    count = 16 if max_tokens is None else max_tokens
    plain = CLIENT.post(service.url + PATH, json={"prompt": TEXT, "max_tokens": max(count, 1), "n": n}).json()
    with RawClient(service.port) as client:
        status, content = client.post(PATH, {"echo": True, "stream": True, **fields}).read_response()
    assert status == 200, content
    chunks = [choice for chunk in events(content)[:-1] for choice in chunk["choices"]]
    for choice, other in zip(answer["choices"], plain["choices"], strict=True):
        assert choice["text"] == TEXT + (other["text"] if count else "")
        assert answer["usage"]["completion_tokens"] == count * n and choice["finish_reason"] == "length"
        own = [chunk for chunk in chunks if chunk["index"] == choice["index"]]
        assert "".join(chunk["text"] for chunk in own) == choice["text"]
        if logprobs is None:
            assert choice["logprobs"] is None
            continue
        told = [chunk["logprobs"] for chunk in own if chunk["logprobs"] is not None]
        merged = {name: [value for each in told for value in each[name]] for name in choice["logprobs"]}
        assert merged == choice["logprobs"]
        for at, token in zip(merged["text_offset"], merged["tokens"], strict=True):
            if not token.startswith("bytes:") and "\ufffd" not in choice["text"]:
                assert choice["text"].startswith(token, at)


def test_a_chat_has_no_echo(service: ServiceThread) -> None:
    body = {"messages": [{"role": "user", "content": TEXT}], "echo": True}
    response = CLIENT.post(service.url + "/v1/chat/completions", json=body)
    assert response.status_code == 400 and response.json()["error"]["param"] == "echo"
