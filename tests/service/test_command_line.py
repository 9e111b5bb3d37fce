"""Flags, variables and files, and what the commands print: in this process, as nothing is started."""

import os
import socket
from pathlib import Path

import pytest

from diptych_service.cli import main
from diptych_service.config import LOG_LEVELS


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("DIPTYCH_", "OTEL_")):
            monkeypatch.delenv(name)


def settings_in(toml: str) -> list[str]:
    """Its lines without comments, which name where a value came from."""
    lines = [line.partition("  #")[0] for line in toml.splitlines()]
    return [line for line in lines if not line.startswith("#")]


def test_a_taken_port_is_told_before_anything_is_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        # The model does not exist either: the port is looked at first.
        assert main(["serve", "--model", str(tmp_path / "nothing"), "--port", port]) == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in capsys.readouterr().err


def test_a_missing_model_is_a_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--model", str(tmp_path / "nothing"), "--port", "0"]) == 1
    printed = capsys.readouterr()
    assert "nothing" in printed.err and not printed.out


def test_keys_for_events_that_are_not_kept_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DIPTYCH_KV_EVENTS_KEYS", "router")
    arguments = ["serve", "--model", "some/where", "--print-config"]
    assert main(arguments) == 2
    refused = capsys.readouterr()
    assert "kv_events is 0" in refused.err and "router" not in refused.err and not refused.out
    assert main([*arguments, "--kv-events", "64"]) == 0
    assert "kv_events = 64" in settings_in(capsys.readouterr().out)


def test_the_configuration_reads_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DIPTYCH_API_KEYS", "secret-one,secret-two")
    monkeypatch.setenv("DIPTYCH_WRITE_TIMEOUT", "5")
    monkeypatch.setenv("DIPTYCH_MAX_RUNNING", "9")
    arguments = ["serve", "--model", "some/where", "--max-running", "7", "--no-prefix-cache", "--print-config"]
    assert main(arguments) == 0
    first = capsys.readouterr().out
    assert {"max_running = 7", "prefix_cache = false", "write_timeout = 5.0"} <= set(settings_in(first))
    assert "secret" not in first
    file = tmp_path / "diptych.toml"
    file.write_text(first)
    for name in ("API_KEYS", "WRITE_TIMEOUT", "MAX_RUNNING"):
        monkeypatch.delenv(f"DIPTYCH_{name}")
    assert main(["serve", "--config", str(file), "--print-config"]) == 0
    assert settings_in(capsys.readouterr().out) == settings_in(first)


def test_flags_win_over_variables_and_those_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "diptych.toml"
    file.write_text('[engine]\nmodel = "a"\nblock_size = 8\nmax_running = 3\n[service]\nport = 1\nhost = "::1"\n')
    monkeypatch.setenv("DIPTYCH_CONFIG", str(file))
    monkeypatch.setenv("DIPTYCH_BLOCK_SIZE", "32")
    monkeypatch.setenv("DIPTYCH_PORT", "2")
    assert main(["serve", "--port", "3", "--print-config"]) == 0
    printed = set(settings_in(capsys.readouterr().out))
    assert {'model = "a"', "block_size = 32", "max_running = 3", "port = 3", 'host = "::1"'} <= printed


def test_every_problem_is_told_at_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("DIPTYCH_MAX_RUNING", "3")
    arguments = ["--block-size", "17", "--log-level", "loud", "--drain-timeout", "-1", "--max-body-bytes", "5"]
    assert main(["serve", "--model", "m", *arguments]) == 2
    told = capsys.readouterr().err
    for name in ("DIPTYCH_MAX_RUNING", "block_size", "log_level", "drain_timeout", "max_body_bytes"):
        assert name in told
    assert all(level in told for level in LOG_LEVELS)


@pytest.mark.parametrize(
    "keys", ['["secret-one", secret-two]', "[secret-one", '["secret-one"', '["secret-one"] x', "[1]"]
)
def test_keys_that_look_like_json_and_are_none_are_refused_and_not_shown(
    keys: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DIPTYCH_API_KEYS", keys)
    assert main(["serve", "--model", "m", "--print-config"]) == 2
    printed = capsys.readouterr()
    assert "api_keys" in printed.err and "DIPTYCH_API_KEYS" in printed.err
    assert "secret" not in printed.err + printed.out


def test_without_a_model_the_flag_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve"]) == 2
    assert "--model" in capsys.readouterr().err


def test_versions_name_both_distributions_and_the_build(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("diptych ") and second.startswith("diptych-core ")
    assert "release" in second or "debug" in second


def test_pull_ends_with_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    assert main(["pull", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path.resolve())


def test_every_flag_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    for flag in ("--max-batched-tokens", "--no-prefix-cache", "--script-step-ms", "--served-model-name", "--api-keys"):
        assert flag in told
