"""The official Node client on a stream with tool calls: `make clients` installs it."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from service_rig import ServiceThread
from tiny_folder import write_folder
from tool_answers import ANSWER, ARGUMENTS, CALLS, TAGS, THINKING, TOOLS, answering

MODULES = os.environ.get("DIPTYCH_NODE_MODULES")
SCRIPT = Path(__file__).parents[1] / "clients" / "stream_tools.mjs"


needs_node = pytest.mark.skipif(
    MODULES is None or shutil.which("node") is None,
    reason="DIPTYCH_NODE_MODULES names no folder with the openai package, or there is no node: make clients",
)


def told_by_node(service: ServiceThread, *choice: Any) -> dict[str, Any]:
    arguments = [service.url + "/v1", service.model, json.dumps(TOOLS), *map(json.dumps, choice)]
    done = subprocess.run(["node", str(SCRIPT), *arguments], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@needs_node
def test_the_node_clients_stream_helper_adds_up_the_calls(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tools", TAGS)
    with answering(folder, ANSWER, script_step_ms=4.0) as service:
        told = told_by_node(service)
    assert told["calls"] == [["function", "get_weather", arguments] for arguments in ARGUMENTS]
    assert told["content"] == "Let me look.\n" and told["finish"] == "tool_calls" and told["deltas"] > 10


@needs_node
def test_the_node_client_gets_forced_calls(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tools", TAGS)
    with answering(folder, THINKING + CALLS[0], script_step_ms=4.0) as service:
        named = {"type": "function", "function": {"name": "get_weather"}}
        for choice, finish in (("required", "tool_calls"), (named, "stop")):
            told = told_by_node(service, choice)
            assert told["calls"] == [["function", "get_weather", ARGUMENTS[0]]] and told["finish"] == finish
