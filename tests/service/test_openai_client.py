"""The official client, as its users call it."""

import asyncio
from pathlib import Path

import openai
import pytest
from service_rig import ServiceThread

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


def test_the_synchronous_client(service: ServiceThread) -> None:
    with openai.OpenAI(base_url=service.url + "/v1", api_key="none", max_retries=0) as client:
        model = client.models.list().data[0].id
        assert client.models.retrieve(model).id == model
        answer = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=10)  # type: ignore[arg-type]
        stream = client.chat.completions.create(
            model=model,
            messages=MESSAGES,  # type: ignore[arg-type]
            max_tokens=10,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True, "top_k": -1},
        )
        chunks = list(stream)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == answer.choices[0].message.content
        assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 10
        completion = client.completions.create(model=model, prompt="One, two,", max_tokens=5)
        assert completion.usage is not None and completion.usage.completion_tokens == 5
        assert completion._request_id


async def test_the_asynchronous_client_with_its_stream_helper(service: ServiceThread) -> None:
    async with openai.AsyncOpenAI(base_url=service.url + "/v1", api_key="none", max_retries=0) as client:
        async with client.chat.completions.stream(model=service.model, messages=MESSAGES, stop="\n") as stream:  # type: ignore[arg-type]
            async for _ in stream:
                if stream.current_completion_snapshot.choices[0].finish_reason:
                    break
            snapshot = stream.current_completion_snapshot
        assert snapshot.choices[0].message.role == "assistant"


def test_an_error_in_mid_stream_is_raised_after_the_text_before_it(model_folder: Path) -> None:
    with ServiceThread(model_folder, script_step_ms=10.0) as service:
        client = openai.OpenAI(base_url=service.url + "/v1", api_key="none", max_retries=0)
        text = ""
        with pytest.raises(openai.APIError, match="closed"), client:
            for chunk in client.completions.create(model=service.model, prompt="Hi", max_tokens=1500, stream=True):
                if not text:
                    asyncio.run_coroutine_threadsafe(service.engine.close(), service.loop)
                text += chunk.choices[0].text
                assert chunk.choices[0].finish_reason is None
        assert text


def test_errors_reach_the_client_as_its_own_classes(service: ServiceThread) -> None:
    with openai.OpenAI(base_url=service.url + "/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            client.chat.completions.create(model="nobody", messages=MESSAGES)  # type: ignore[arg-type]
        with pytest.raises(openai.BadRequestError, match="maximum context length is 2048 tokens"):
            client.completions.create(model=service.model, prompt="a", max_tokens=5000)
        with pytest.raises(openai.BadRequestError, match="tools"):
            client.chat.completions.create(
                model=service.model,
                messages=MESSAGES,  # type: ignore[arg-type]
                tools=[{"type": "function", "function": {"name": "f"}}],
            )
