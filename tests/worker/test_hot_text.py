"""What a random model says when it is hot: most of it is no text, and every answer is whole."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from raw_client import RawClient, events
from service_rig import CLIENT, ServiceThread
from tiny_folder import write_folder
from tokenizers import Tokenizer
from worker_rig import write_random_llama

pytestmark = pytest.mark.model
PATHS = ("/v1/completions", "/v1/chat/completions")
REQUESTS = 500


def test_five_hundred_hot_answers_are_whole_and_their_tokenizers_own_decode(tmp_path):
    folder = write_folder(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    write_random_llama(folder, vocab_size=config["vocab_size"], eos_token_id=config["eos_token_id"])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def answer(service, number):
        path = PATHS[number % 2]
        asked = {"messages": [{"role": "user", "content": "x"}]} if number % 2 else {"prompt": "x "}
        fields = {"max_tokens": 40, "temperature": 2, "seed": number, "ignore_eos": True, "return_token_ids": True}
        if number % 4 < 2:
            response = CLIENT.post(service.url + path, json=asked | fields)
            assert response.status_code == 200, response.text
            choices = response.json()["choices"]
        else:
            with RawClient(service.port) as client:
                status, content = client.post(path, asked | fields | {"stream": True}).read_response()
            chunks = events(content)
            assert status == 200 and chunks[-1] == "[DONE]"
            choices = [choice for chunk in chunks[:-1] for choice in chunk["choices"]]
        ids = [token for choice in choices for token in choice.get("token_ids", [])]
        return ids, "".join(text_of(choice) for choice in choices)

    with ServiceThread(folder, worker="inline", threads=1, kv_cache_bytes=8 << 20) as service:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda number: answer(service, number), range(REQUESTS)))
        service.wait_idle()
        assert answer(service, 0) == answers[0]
    for ids, text in answers:
        assert len(ids) == 40 and text == tokenizer.decode(ids)
    assert sum("\ufffd" in text for _, text in answers) > REQUESTS // 2


def text_of(choice):
    if "text" in choice:
        return choice["text"]
    return choice.get("message", choice.get("delta", {})).get("content", "")
