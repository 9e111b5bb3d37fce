"""`prompt_logprobs`, vLLM's field: log probabilities of the prompt's tokens, by id and with ranks."""

from typing import Any

import pytest
from service_rig import CLIENT, ServiceThread
from tiny_folder import HashOracle

PATHS = ["/v1/completions", "/v1/chat/completions"]
TEXT = "The quick brown fox é"
RANKED = 20


def ask(service: ServiceThread, path: str, **fields: Any) -> Any:
    asked = {"messages": [{"role": "user", "content": TEXT}]} if "chat" in path else {"prompt": TEXT}
    return CLIENT.post(service.url + path, json={**asked, "max_tokens": 1, "return_token_ids": True, **fields})


def answered(service: ServiceThread, path: str, **fields: Any) -> dict[str, Any]:
    response = ask(service, path, **fields)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def check(oracle: HashOracle, ids: list[int], entries: list[Any], most: int) -> None:
    """One entry for each token of the prompt, null for the first."""
    assert len(entries) == len(ids) and entries[0] is None
    for position, entry in enumerate(entries[1:], start=1):
        expected = oracle.logprobs(ids[:position])
        order = sorted(expected, key=lambda token: (-expected[token], token))
        own = ids[position]
        assert list(entry) == [str(own), *(str(token) for token in order[:most] if token != own)]
        for key, told in entry.items():
            assert told.keys() == {"logprob", "rank", "decoded_token"}
            if int(key) not in expected:
                # A special token of the chat template, which the made-up model never says.
                assert told["rank"] is None
                continue
            rank = order.index(int(key)) + 1
            assert abs(told["logprob"] - float(expected[int(key)])) < 1e-5
            assert told["rank"] == (rank if rank <= RANKED else None)
            assert told["decoded_token"] == oracle.bytes_of(int(key)).decode(errors="replace")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("most", [0, 1, 20])
def test_each_token_of_the_prompt_has_its_own_and_the_likeliest(
    service: ServiceThread, oracle: HashOracle, path: str, most: int
) -> None:
    answer = answered(service, path, prompt_logprobs=most)
    told = answer if "chat" in path else answer["choices"][0]
    check(oracle, told["prompt_token_ids"], told["prompt_logprobs"], most)
    assert answer["choices"][0]["logprobs"] is None
    assert "prompt_logprobs" not in (answer["choices"][0] if "chat" in path else answer)


def test_each_prompt_and_choice_has_those_of_its_own_prompt(service: ServiceThread, oracle: HashOracle) -> None:
    prompts = [[7, 8, 9], [10, 11]]
    for fields in ({"n": 2}, {"n": 1, "best_of": 2}):
        answer = answered(service, PATHS[0], prompt=prompts, prompt_logprobs=2, **fields)
        per_prompt = fields["n"]
        assert len(answer["choices"]) == 2 * per_prompt
        for choice in answer["choices"]:
            check(oracle, prompts[choice["index"] // per_prompt], choice["prompt_logprobs"], 2)


@pytest.mark.parametrize("logprobs", [None, 0, 3])
def test_an_echo_beside_it_is_what_it_is_alone(
    service: ServiceThread, oracle: HashOracle, logprobs: int | None
) -> None:
    fields = {"echo": True, "logprobs": logprobs, "max_tokens": 0}
    alone = answered(service, PATHS[0], **fields)["choices"][0]
    both = answered(service, PATHS[0], prompt_logprobs=5, **fields)["choices"][0]
    check(oracle, both["prompt_token_ids"], both.pop("prompt_logprobs"), 5)
    assert both == alone


@pytest.mark.parametrize("path", PATHS)
def test_what_cannot_be_told_is_refused_by_name(service: ServiceThread, path: str) -> None:
    for fields in (
        {"prompt_logprobs": 21},
        {"prompt_logprobs": -1},
        {"prompt_logprobs": True},
        {"prompt_logprobs": 1, "stream": True},
        {"prompt_logprobs": 1, "use_beam_search": True, "n": 2},
    ):
        response = ask(service, path, **fields)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == "prompt_logprobs"
