"""Hard texts in the hands of real clients: joined deltas are the whole answer, and the tokenizer's own decode.

`make clients` installs what Node and the browser need; what is not there is skipped, and says so.
"""

import functools
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import openai
import pytest
from hard_texts import Said, sayings
from service_rig import CLIENT, ServiceThread
from spoken_folder import write_byte_fallback
from tiny_folder import write_folder

PATHS = ["/v1/completions", "/v1/chat/completions"]
PROGRAMS = Path(__file__).parents[1] / "clients"
MODULES = os.environ.get("DIPTYCH_NODE_MODULES")
UNAVAILABLE = 77
MESSAGES: Any = [{"role": "user", "content": "a"}]

node_is_there = pytest.mark.skipif(shutil.which("node") is None, reason="no node on PATH")
packages_are_there = pytest.mark.skipif(
    MODULES is None or shutil.which("node") is None,
    reason="DIPTYCH_NODE_MODULES names no folder with Node's packages, or there is no node: make clients",
)


class Read(NamedTuple):
    """What a client read of one text: deltas in one or more ways, and the whole answer."""

    path: str
    streamed: Sequence[Sequence[str]]
    whole: str


@pytest.fixture(scope="module", params=["byte_level", "byte_fallback"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    base: Path = tmp_path_factory.mktemp("hard")
    if request.param == "byte_level":
        return write_folder(base / request.param)
    written = write_byte_fallback(base / request.param)
    (written / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    return written


@pytest.fixture(scope="module")
def said(folder: Path) -> list[Said]:
    return sayings(folder, in_pieces=folder.name == "byte_fallback")


@pytest.fixture(scope="module")
def page_url() -> Iterator[str]:
    """The address of `page.html`: another origin than the service's."""
    handler = functools.partial(_QuietHandler, directory=str(PROGRAMS))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/page.html"
        server.shutdown()
        thread.join()


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def service(folder: Path, said: list[Said], page_url: str) -> Iterator[ServiceThread]:
    """Says each text four times: streamed and whole, on both endpoints. A step takes a fifth of a millisecond."""
    settings = {"allowed_origins": (page_url.removesuffix("/page.html"),)}
    script = [one.ids for one in said for _ in range(2 * len(PATHS))]
    with ServiceThread(folder, settings, script=script, script_step_ms=0.2) as running:
        yield running


def check(reads: Sequence[Read], said: Sequence[Said]) -> None:
    expected = [(path, one) for one in said for path in PATHS]
    assert [read.path for read in reads] == [path for path, _ in expected]
    for read, (path, one) in zip(reads, expected, strict=True):
        assert read.whole == one.text, (path, one.name)
        for deltas in read.streamed:
            assert "".join(deltas) == one.text, (path, one.name)
    # What gathers while a client is busy comes as one delta.
    assert sum(len(read.streamed[0]) for read in reads) > 5 * len(reads)


def run(program: str, *arguments: str) -> Any:
    """The JSON that a program in `tests/clients` printed. Skips where it says that it could not begin."""
    command = ["node", str(PROGRAMS / program), *arguments]
    done = subprocess.run(command, capture_output=True, timeout=110, check=False)
    if done.returncode == UNAVAILABLE:
        pytest.skip(f"no browser could be started: {done.stderr.decode().strip()}")
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def test_pythons_openai_client(service: ServiceThread, said: list[Said]) -> None:
    reads = []
    with openai.OpenAI(base_url=service.url + "/v1", api_key="none", max_retries=0) as client:
        complete = functools.partial(client.completions.create, model=service.model, prompt="a", max_tokens=1000)
        chat = functools.partial(
            client.chat.completions.create, model=service.model, messages=MESSAGES, max_tokens=1000
        )
        for _ in said:
            texts = [choice.text for chunk in complete(stream=True) for choice in chunk.choices]
            reads.append(Read(PATHS[0], [texts], complete().choices[0].text))
            contents = [choice.delta.content or "" for chunk in chat(stream=True) for choice in chunk.choices]
            reads.append(Read(PATHS[1], [contents], chat().choices[0].message.content or ""))
    check(reads, said)


async def test_pythons_asynchronous_client_and_its_stream_helper(service: ServiceThread, said: list[Said]) -> None:
    reads = []
    async with openai.AsyncOpenAI(base_url=service.url + "/v1", api_key="none", max_retries=0) as client:
        complete = functools.partial(client.completions.create, model=service.model, prompt="a", max_tokens=1000)
        chat = functools.partial(
            client.chat.completions.create, model=service.model, messages=MESSAGES, max_tokens=1000
        )
        for _ in said:
            texts = [choice.text async for chunk in await complete(stream=True) for choice in chunk.choices]
            reads.append(Read(PATHS[0], [texts], (await complete()).choices[0].text))
            async with client.chat.completions.stream(
                model=service.model, messages=MESSAGES, max_tokens=1000
            ) as stream:
                contents = [event.delta async for event in stream if event.type == "content.delta"]
                added = (await stream.get_final_completion()).choices[0].message.content or ""
            whole = (await chat()).choices[0].message.content or ""
            reads.append(Read(PATHS[1], [contents, [added]], whole))
    check(reads, said)


def test_a_client_that_splits_lines_wherever_unicode_ends_one(service: ServiceThread, said: list[Said]) -> None:
    """As programs do that read a stream's lines with httpx, in two lines of code."""
    bodies = {PATHS[0]: {"prompt": "a", "max_tokens": 1000}, PATHS[1]: {"messages": MESSAGES, "max_tokens": 1000}}
    reads = []
    for _ in said:
        for path, body in bodies.items():
            with CLIENT.stream("POST", service.url + path, json=body | {"stream": True}) as response:
                deltas = _deltas_of_lines(response)
            choice = CLIENT.post(service.url + path, json=body).json()["choices"][0]
            reads.append(Read(path, [deltas], choice["text"] if "text" in choice else choice["message"]["content"]))
    check(reads, said)


def _deltas_of_lines(response: httpx.Response) -> list[str]:
    lines = [line for line in response.iter_lines() if line]
    assert lines.pop() == "data: [DONE]" and all(line.startswith("data: {") for line in lines)
    choices = [choice for line in lines for choice in json.loads(line.removeprefix("data: "))["choices"]]
    return [choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in choices]


@packages_are_there
def test_nodes_openai_client(service: ServiceThread, said: list[Said]) -> None:
    told = run("stream_texts.mjs", "openai", service.url, service.model, str(len(said)))
    check([Read(**one) for one in told], said)


@node_is_there
def test_nodes_own_fetch(service: ServiceThread, said: list[Said]) -> None:
    told = run("stream_texts.mjs", "fetch", service.url, service.model, str(len(said)))
    assert {one.pop("requestId") for one in told} == {"page"}
    check([Read(**one) for one in told], said)


@packages_are_there
def test_a_page_of_another_origin_in_a_browser(service: ServiceThread, said: list[Said], page_url: str) -> None:
    told = run("browse.mjs", page_url, service.url, str(len(said)))
    assert isinstance(told["results"], list), told["results"]
    assert {one.pop("requestId") for one in told["results"]} == {"page"}
    check([Read(**one) for one in told["results"]], said)


@packages_are_there
def test_a_browser_keeps_a_page_that_is_not_named_out(folder: Path, page_url: str) -> None:
    with ServiceThread(folder, {"allowed_origins": ("http://127.0.0.1:1",)}) as service:
        told = run("browse.mjs", page_url, service.url, "1")
        assert told["results"] == {"error": "TypeError: Failed to fetch"}
        assert service.stats().generation_tokens == 0
