"""The engine through its Python face: a worker without a model, whose next token is a hash of the whole prefix."""

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from scripted_engine import Reader, engine_options, hashed_continuation, running, stats, submit, wait_idle

from diptych_core.engine import Engine
from diptych_core.text import ChatTemplate, Tokenizer


def random_prompt(generator: random.Random, length: int) -> list[int]:
    return [generator.randrange(3, 600) for _ in range(length)]


@pytest.mark.parametrize("overlap_depth", [0, 1, 2])
def test_ids_are_the_hash_of_the_prefix_over_all_block_edges(tokenizer_folder: Path, overlap_depth: int) -> None:
    generator = random.Random(1)
    prompts = [random_prompt(generator, length) for length in (1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 64, 100)]
    with running(engine_options(tokenizer_folder, overlap_depth=overlap_depth)) as engine:
        reader = Reader(engine.frame_queue())
        requests = [submit(engine, reader.queue, prompt, max_tokens=20) for prompt in prompts]
        assert requests == list(range(len(prompts)))
        for prompt, answer in zip(prompts, reader.wait_end(requests), strict=True):
            assert answer.finished is not None, answer.failure
            assert answer.token_ids == hashed_continuation(prompt, 20)
            assert (answer.finished.reason, answer.finished.completion_tokens) == ("length", 20)
            assert answer.accepted is not None
            assert answer.accepted.prompt_tokens == answer.finished.prompt_tokens == len(prompt)
        wait_idle(engine)


@pytest.mark.parametrize("overlap_depth", [0, 1])
def test_preempted_requests_lose_and_change_nothing(tokenizer_folder: Path, overlap_depth: int) -> None:
    generator = random.Random(2)
    prompts = [random_prompt(generator, 20) for _ in range(8)]
    tight = {"max_model_len": 96, "admission": "whole_prompt", "overlap_depth": overlap_depth}
    with running(engine_options(tokenizer_folder, worker={"num_blocks": 25}, **tight)) as engine:
        reader = Reader(engine.frame_queue())
        requests = [submit(engine, reader.queue, prompt, max_tokens=40) for prompt in prompts]
        for prompt, answer in zip(prompts, reader.wait_end(requests), strict=True):
            assert answer.token_ids == hashed_continuation(prompt, 40)
        assert stats(engine)["preemptions"] > 0


def test_a_repeated_prompt_is_found_in_the_prefix_cache(tokenizer_folder: Path) -> None:
    prompt = random_prompt(random.Random(3), 41)
    with running(engine_options(tokenizer_folder)) as engine:
        reader = Reader(engine.frame_queue())
        first, second = (reader.wait_end([submit(engine, reader.queue, prompt)])[0].finished for _ in range(2))
        assert first is not None and second is not None
        assert (first.cached_tokens, second.cached_tokens) == (0, 40)


def test_text_prompts_and_chats_are_tokenised_and_answered_in_text(tokenizer_folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(tokenizer_folder)
    template = ChatTemplate.from_folder(tokenizer_folder)
    assert template is not None
    chat = json.dumps({"messages": [{"role": "user", "content": "Grüße 👩‍👧"}], "add_generation_prompt": True})
    with running(engine_options(tokenizer_folder)) as engine:
        reader = Reader(engine.frame_queue())
        prompts = {
            submit(engine, reader.queue, "The quick fox", return_prompt_ids=True): "The quick fox",
            submit(engine, reader.queue, chat, chat=True, return_prompt_ids=True): template.render(chat),
        }
        for text, answer in zip(prompts.values(), reader.wait_end(prompts), strict=True):
            ids = tokenizer.encode(text)
            assert answer.accepted is not None
            assert answer.accepted.prompt_ids == ids
            assert answer.token_ids == hashed_continuation(ids, 8)
            assert answer.text == tokenizer.decode(answer.token_ids)


def test_a_script_is_answered_by_line_and_ends_with_eos(tokenizer_folder: Path) -> None:
    script = [[10, 11, 12], [20]]
    with running(engine_options(tokenizer_folder, worker={"script": script})) as engine:
        reader = Reader(engine.frame_queue())
        requests = [submit(engine, reader.queue, [5], max_tokens=10) for _ in range(4)]
        for index, answer in enumerate(reader.wait_end(requests)):
            assert answer.token_ids == [*script[index % 2], 2]
            assert answer.finished is not None
            assert (answer.finished.reason, answer.finished.stop_token) == ("stop", None)


def test_a_stop_string_cuts_text_and_ids_at_the_same_token(tokenizer_folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(tokenizer_folder)
    script = [tokenizer.encode("The lazy dog jumps over the fox")]
    with running(engine_options(tokenizer_folder, worker={"script": script})) as engine:
        reader = Reader(engine.frame_queue())
        [answer] = reader.wait_end([submit(engine, reader.queue, [5], max_tokens=30, stop=["dog j"])])
        assert answer.text == "The lazy "
        assert answer.finished is not None
        assert (answer.finished.reason, answer.finished.stop_string) == ("stop", "dog j")
        assert answer.finished.completion_tokens == len(answer.token_ids)
        assert "dog j" in tokenizer.decode(answer.token_ids)
        assert "dog j" not in tokenizer.decode(answer.token_ids[:-1])


def test_an_aborted_request_frees_its_blocks(tokenizer_folder: Path) -> None:
    with running(engine_options(tokenizer_folder, worker={"step_ms": 5.0})) as engine:
        reader = Reader(engine.frame_queue())
        request = submit(engine, reader.queue, [7, 8, 9], max_tokens=200)
        reader.wait_tokens(request, 3)
        engine.abort(request)
        [answer] = reader.wait_end([request])
        assert answer.finished is not None
        assert answer.finished.reason == "abort"
        assert answer.token_ids == hashed_continuation([7, 8, 9], len(answer.token_ids))
        engine.abort(request)
        engine.abort(10**9)
        wait_idle(engine)


def test_closing_a_queue_aborts_its_requests_alone(tokenizer_folder: Path) -> None:
    with running(engine_options(tokenizer_folder, worker={"step_ms": 2.0})) as engine:
        left, kept = engine.frame_queue(), Reader(engine.frame_queue())
        submit(engine, left, [7, 8, 9], max_tokens=200)
        request = submit(engine, kept.queue, [4, 5], max_tokens=20)
        left.close()
        [answer] = kept.wait_end([request])
        assert answer.token_ids == hashed_continuation([4, 5], 20)
        wait_idle(engine)


@pytest.mark.parametrize(
    ("prompt", "params", "kind"),
    [
        ([], {}, "invalid_prompt"),
        ([600], {}, "invalid_prompt"),
        ([5] * 250, {"max_tokens": 7}, "context_length"),
        ([5] * 256, {"max_tokens": None}, "context_length"),
    ],
)
def test_impossible_requests_fail_by_themselves(
    tokenizer_folder: Path, prompt: list[int], params: dict[str, Any], kind: str
) -> None:
    with running(engine_options(tokenizer_folder)) as engine:
        reader = Reader(engine.frame_queue())
        requests = [submit(engine, reader.queue, prompt, **params), submit(engine, reader.queue, [5, 6])]
        failed, healthy = reader.wait_end(requests)
        assert failed.failure is not None
        assert failed.failure.kind == kind
        assert isinstance(json.loads(failed.failure.details), dict)
        assert healthy.finished is not None


def test_the_arithmetic_of_a_prompt_too_long_is_told(tokenizer_folder: Path) -> None:
    with running(engine_options(tokenizer_folder)) as engine:
        reader = Reader(engine.frame_queue())
        [answer] = reader.wait_end([submit(engine, reader.queue, [5] * 250, max_tokens=7)])
        assert answer.failure is not None
        assert "maximum context length is 256 tokens" in answer.failure.message
        details = json.loads(answer.failure.details)
        assert (details["prompt_tokens"], details["max_tokens"], details["max_model_len"]) == (250, 7, 256)


def kill_worker(engine: Engine) -> None:
    pid = engine.worker_pid()
    if pid is not None:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("overlap_depth", [0, 1])
def test_a_killed_worker_costs_no_token(tokenizer_folder: Path, overlap_depth: int) -> None:
    generator = random.Random(4)
    prompts = [random_prompt(generator, 10) for _ in range(8)]
    options = engine_options(tokenizer_folder, "scripted", worker={"step_ms": 5.0}, overlap_depth=overlap_depth)
    with running(options) as engine:
        reader = Reader(engine.frame_queue())
        requests = [submit(engine, reader.queue, prompt, max_tokens=60) for prompt in prompts]
        reader.wait_tokens(requests[0], 10)
        first = engine.worker_pid()
        kill_worker(engine)
        for prompt, answer in zip(prompts, reader.wait_end(requests), strict=True):
            assert answer.token_ids == hashed_continuation(prompt, 60)
        assert engine.worker_pid() != first
        seen = stats(engine)
        assert (seen["worker_restarts"], seen["epoch"]) == (1, 2)
        assert (seen["steps_ahead"] > 0) == (overlap_depth > 0)
        assert set(seen["last_restart"]) >= {"detect_s", "spawn_s", "hello_s", "ready_s"}
