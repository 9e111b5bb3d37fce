"""The official Node client on a stream with tool calls: `make clients` installs it."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tiny_folder import write_folder
from tool_answers import ANSWER, ARGUMENTS, TAGS, TOOLS, answering

MODULES = os.environ.get("DIPTYCH_NODE_MODULES")
SCRIPT = Path(__file__).parents[1] / "clients" / "stream_tools.mjs"


@pytest.mark.skipif(
    MODULES is None or shutil.which("node") is None,
    reason="DIPTYCH_NODE_MODULES names no folder with the openai package, or there is no node: make clients",
)
def test_the_node_clients_stream_helper_adds_up_the_calls(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tools", TAGS)
    with answering(folder, ANSWER, script_step_ms=4.0) as service:
        command = ["node", str(SCRIPT), service.url + "/v1", service.model, json.dumps(TOOLS)]
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    told = json.loads(done.stdout)
    assert told["calls"] == [["function", "get_weather", arguments] for arguments in ARGUMENTS]
    assert told["content"] == "Let me look.\n" and told["finish"] == "tool_calls" and told["deltas"] > 10
