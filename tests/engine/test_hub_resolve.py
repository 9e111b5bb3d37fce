"""What the user calls a model: a known name, a folder, or an id on a hub, here one on loopback."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tiny_folder import write_folder

from diptych.errors import ModelError
from diptych.hub import resolve_model
from diptych.model_info import read_model_info

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(BaseHTTPRequestHandler):
    """Serves `files` as the repository `owner/tiny`, at `main` and `v1`; logs the paths asked for."""

    files: dict[str, bytes]
    asked: list[str]

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.asked.append(path)
        if path.startswith("/api/models/owner/tiny/tree/"):
            tree = [{"type": "file", "path": name, "oid": name, "size": len(data)} for name, data in self.files.items()]
            return self._answer(200, json.dumps(tree).encode())
        if path.startswith("/api/models/owner/tiny"):
            revision = path.removeprefix("/api/models/owner/tiny").removeprefix("/revision/") or "main"
            if revision not in ("main", "v1", COMMIT):
                return self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            siblings = [{"rfilename": name} for name in self.files]
            return self._answer(200, json.dumps({"id": "owner/tiny", "sha": COMMIT, "siblings": siblings}).encode())
        if path.startswith("/api/models/owner/gated"):
            return self._answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
        if path.startswith("/owner/tiny/resolve/"):
            name = path.split("/", 5)[5]
            if name in self.files:
                etag = f'"{hash(name) & 0xFFFFFFFF:x}"'
                return self._answer(200, self.files[name], {"ETag": etag, "X-Repo-Commit": COMMIT})
        return self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "Content-Type": "application/json"}.items():
            self.send_header(name, value)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    folder = write_folder(tmp_path / "tiny-model")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.fixture
def hub(tmp_path: Path, model_folder: Path) -> Iterator[tuple[str, type[FakeHub]]]:
    files = {file.name: file.read_bytes() for file in model_folder.iterdir()}
    others = {"pytorch_model.bin": b"again", "onnx/model.json": b"{}", "README.md": b"text"}
    handler = type("Handler", (FakeHub,), {"files": files | others, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    server.server_close()
    thread.join()


def resolve(endpoint: str, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the hub's library reads its environment once."""
    code = (
        "import sys\nfrom diptych.errors import ModelError\nfrom diptych.hub import resolve_model\n"
        "try:\n    print(resolve_model(*sys.argv[1:]))\n"
        "except ModelError as error:\n    print(error)\n    sys.exit(3)\n"
    )
    environment = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "PATH": "/usr/bin:/bin", "HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True, timeout=100
    )


def test_a_hub_id_is_fetched_without_what_nobody_reads(
    hub: tuple[str, type[FakeHub]], tmp_path: Path, model_folder: Path
) -> None:
    endpoint, handler = hub
    ended = resolve(endpoint, tmp_path / "home", "owner/tiny")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    folder = Path(ended.stdout.strip())
    assert {file.name for file in folder.iterdir()} == {file.name for file in model_folder.iterdir()}
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert ended.stderr == ""
    assert not any("pytorch_model.bin" in path or "onnx" in path for path in handler.asked)


def test_a_revision_is_asked_for_and_an_unknown_one_refused(hub: tuple[str, type[FakeHub]], tmp_path: Path) -> None:
    endpoint, handler = hub
    assert resolve(endpoint, tmp_path / "home", "owner/tiny", "v1").returncode == 0
    assert "/api/models/owner/tiny/revision/v1" in handler.asked
    ended = resolve(endpoint, tmp_path / "home", "owner/tiny", "v9")
    assert (ended.returncode, ended.stdout) == (3, "the model 'owner/tiny' has no revision 'v9'\n")


@pytest.mark.parametrize(
    ("name", "told"),
    [("owner/gated", "is gated: accept its terms"), ("owner/absent", "none on the hub that you may read")],
)
def test_what_the_hub_refuses_is_one_clear_line(
    hub: tuple[str, type[FakeHub]], tmp_path: Path, name: str, told: str
) -> None:
    ended = resolve(hub[0], tmp_path / "home", name)
    assert ended.returncode == 3, ended.stderr
    assert told in ended.stdout
    assert len(ended.stdout.splitlines()) == 1


def test_without_a_network_a_hub_id_fails_within_seconds_unless_it_is_cached(
    hub: tuple[str, type[FakeHub]], tmp_path: Path
) -> None:
    nowhere = "http://127.0.0.1:9"
    ended = resolve(nowhere, tmp_path / "home", "owner/tiny")
    assert ended.returncode == 3
    assert "the hub cannot be reached" in ended.stdout
    cached = resolve(hub[0], tmp_path / "home", "owner/tiny")
    assert resolve(nowhere, tmp_path / "home", "owner/tiny").stdout == cached.stdout


def test_a_folder_is_taken_as_it_is(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_model(str(model_folder)) == model_folder
    monkeypatch.chdir(model_folder.parent)
    assert resolve_model("tiny-model") == model_folder
    assert resolve_model("./tiny-model") == model_folder


def test_a_folder_that_lacks_something_says_what(model_folder: Path) -> None:
    (model_folder / "model.safetensors").unlink()
    (model_folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"holds no tokenizer.json, no \*.safetensors"):
        resolve_model(str(model_folder))
    with pytest.raises(ModelError, match=r"holds no tokenizer.json$"):
        resolve_model(str(model_folder), weights=False)


@pytest.mark.parametrize("name", ["/no/such/folder", "./none", "~/none-of-that", "what is this", "a/b/c", ""])
def test_what_is_no_model_at_all_is_refused_without_asking_anybody(name: str) -> None:
    with pytest.raises(ModelError, match="no such folder or GGUF file, and neither a known name"):
        resolve_model(name)


def test_a_revision_where_there_is_none_is_refused(model_folder: Path) -> None:
    with pytest.raises(ModelError, match="which is a local folder"):
        resolve_model(str(model_folder), "main")
    with pytest.raises(ModelError, match="which is a known name"):
        resolve_model("smollm2-135m", "main")


def test_model_info_reads_limits_ends_and_defaults(model_folder: Path) -> None:
    generation = {"eos_token_id": [2, 0], "temperature": 0.6, "top_p": 0.9, "top_k": None, "do_sample": True}
    (model_folder / "generation_config.json").write_text(json.dumps(generation))
    info = read_model_info(model_folder)
    assert (info.max_model_len, info.eos_ids) == (2048, [2, 0])
    assert info.default_sampling == {"temperature": 0.6, "top_p": 0.9}
    assert read_model_info(model_folder, 100).max_model_len == 100
    with pytest.raises(ModelError, match="max_model_len=4096 exceeds the model's own limit of 2048"):
        read_model_info(model_folder, 4096)


@pytest.mark.parametrize(
    ("content", "told"),
    [("{", "cannot be read"), ("[]", "holds list"), ('{"vocab_size": 0}', "max_position_embeddings=None")],
)
def test_a_damaged_config_is_a_clear_error(model_folder: Path, content: str, told: str) -> None:
    (model_folder / "config.json").write_text(content)
    with pytest.raises(ModelError, match=told):
        read_model_info(model_folder)
