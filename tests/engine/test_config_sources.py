"""Flags over variables over the file over defaults, and TOML that reads back."""

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych import EngineConfig
from diptych.config_sources import load, parse, to_toml
from diptych.errors import ConfigError


class Service(msgspec.Struct, frozen=True):
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    limit: float | None = 30.0
    name: str | None = None


SECTIONS: dict[str, type[msgspec.Struct]] = {"engine": EngineConfig, "service": Service}


def loaded(flags: dict[str, Any] | None = None, environ: dict[str, str] | None = None, file: Path | None = None) -> Any:
    return load(SECTIONS, flags=flags or {}, environ={"DIPTYCH_MODEL": "m", **(environ or {})}, file=file)


def problems(**sources: Any) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        loaded(**sources)
    return raised.value.problems


def write(folder: Path, text: str) -> Path:
    file = folder / "diptych.toml"
    file.write_text(text)
    return file


def test_flags_over_variables_over_file_over_defaults(tmp_path: Path) -> None:
    file = write(tmp_path, "[engine]\nmax_running = 3\nblock_size = 4\nthreads = 5\n[service]\nport = 1\n")
    environ = {"DIPTYCH_MAX_RUNNING": "30", "DIPTYCH_BLOCK_SIZE": "8", "DIPTYCH_PORT": "2"}
    found = loaded({"max_running": "33", "port": None}, environ, file)
    engine, service = found.values["engine"], found.values["service"]
    assert (engine.max_running, engine.block_size, engine.threads, service.port) == (33, 8, 5, 2)
    assert engine.max_queued_requests == 1024
    assert found.origins["max_running"] == "--max-running"
    assert found.origins["block_size"] == "DIPTYCH_BLOCK_SIZE"
    assert found.origins["threads"].endswith("[engine]")
    assert "max_queued_requests" not in found.origins


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("none", int | None, None),
        ("None", str | None, None),
        ("none", str, "none"),
        ("7", int, 7),
        ("0.5", float, 0.5),
        ("true", bool, True),
        ("0", bool, False),
        ("one", tuple[str, ...], ("one",)),
        ("one, two", tuple[str, ...], ("one", "two")),
        ('["a,b"]', list[str], ["a,b"]),
        ("[[1,2],[3]]", str | list[list[int]] | None, "[[1,2],[3]]"),
    ],
)
def test_text_stands_for_values_of_any_type(text: str, kind: Any, value: Any) -> None:
    assert parse(text, kind) == value


def test_problems_of_all_sources_and_sections_are_told_together(tmp_path: Path) -> None:
    file = write(tmp_path, "[engine]\nblok_size = 3\n[servce]\nport = 1\n")
    environ = {"DIPTYCH_MAX_RUNING": "4", "DIPTYCH_THREADS": "many"}
    found = problems(flags={"block_size": "3"}, environ=environ, file=file)
    assert len(found) == 5
    for told in (
        "unknown setting blok_size in [engine] (did you mean block_size?)",
        "unknown table [servce] (did you mean service?)",
        "unknown variable DIPTYCH_MAX_RUNING (did you mean DIPTYCH_MAX_RUNNING?)",
        "threads='many' (DIPTYCH_THREADS)",
        "block_size=3: expected a power of two",
    ):
        assert any(told in line for line in found), told


def test_a_missing_required_field_says_how_to_give_it() -> None:
    with pytest.raises(ConfigError, match="model is missing: give --model, DIPTYCH_MODEL or model in") as raised:
        load(SECTIONS, flags={}, environ={}, file=None)
    assert len(raised.value.problems) == 1


@pytest.mark.parametrize("text", ["[engine", "\xff"])
def test_a_file_that_cannot_be_read_is_a_clear_error(tmp_path: Path, text: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_bytes(text.encode("latin-1"))
    (line,) = problems(file=file)
    assert "cannot be read" in line
    (line,) = problems(file=tmp_path / "absent.toml")
    assert "cannot be read" in line


def test_kubernetes_service_links_are_no_settings() -> None:
    links = {"DIPTYCH_SERVICE_HOST": "10.0.0.1", "DIPTYCH_PORT_8000_TCP_ADDR": "10.0.0.1", "DIPTYCH_SERVICE_PORT": "80"}
    assert loaded(environ=links).values["service"].port == 8000
    (line,) = problems(environ={"DIPTYCH_PORT": "tcp://10.0.0.1:8000"})
    assert "enableServiceLinks" in line


def test_secrets_are_masked_and_none_where_the_default_is_something_else_reads_back(tmp_path: Path) -> None:
    found = loaded({"api_keys": "alpha,beta", "limit": "none"})
    text = to_toml(found, frozenset({"api_keys"}))
    assert "alpha" not in text
    assert "api_keys" in text
    again = loaded(file=write(tmp_path, text))
    assert again.values["service"].limit is None
    assert again.values["service"].api_keys == ()


@given(
    st.builds(
        EngineConfig,
        model=st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip),
        max_model_len=st.none() | st.integers(2, 10**9),
        block_size=st.sampled_from([1, 16, 256]),
        prefix_cache=st.booleans(),
        worker=st.just("scripted"),
        script=st.none() | st.lists(st.lists(st.integers(0, 99), max_size=3), min_size=1, max_size=3),
        script_step_ms=st.floats(0, 1000),
    ),
    st.builds(Service, host=st.text(st.characters(exclude_categories=["Cs"])), port=st.integers(0, 65535)),
)
def test_what_is_printed_reads_back_to_the_same(engine: EngineConfig, service: Service) -> None:
    from diptych.config_sources import Loaded

    text = to_toml(Loaded({"engine": engine, "service": service}, {}))
    content = tomllib.loads(text)
    assert EngineConfig(**content["engine"]) == engine
    assert msgspec.convert(content["service"], Service) == service
