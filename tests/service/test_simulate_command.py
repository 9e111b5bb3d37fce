"""`diptych simulate`: flags become options, results go where they should."""

import json
from pathlib import Path

import pytest

from diptych_service import commands
from diptych_service.cli import main
from diptych_service.simulate import asked_for


def asked(*arguments: str) -> dict[str, object]:
    return asked_for(commands.parse(["simulate", *arguments]))


def test_flags_become_options() -> None:
    assert asked(
        "--workload", "gamma,rate=2,cv=3.5", "--requests", "9", "--blocks", "100", "--policy", "diptych,static"
    ) == {
        "policies": ["diptych", "static"],
        "workload": {"arrivals": {"kind": "gamma", "rate": 2, "cv": 3.5}, "requests": 9},
        "engine": {"blocks": 100},
    }
    assert asked("--trace", "some.jsonl", "--speed", "2")["workload"] == {
        "arrivals": {"kind": "mooncake", "path": "some.jsonl", "speed": 2.0}
    }
    assert asked("--eviction", "lru-ttl=30")["eviction"] == {"lru-ttl": 30}
    assert len(asked("--policy", "all")["policies"]) == 6


def test_flags_win_over_a_file(tmp_path: Path) -> None:
    file = tmp_path / "options.json"
    file.write_text('{"seed": 4, "device": "h200", "policies": ["static"]}')
    assert asked("--options", str(file), "--seed", "5") == {"seed": 5, "device": "h200", "policies": ["static"]}


def test_result_and_plot_are_written_and_the_table_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, plot = tmp_path / "result.json", tmp_path / "plot.html"
    arguments = ["--requests", "30", "--policy", "all", "--json", str(result), "--plot", str(plot)]
    assert main(["simulate", *arguments]) == 0
    printed = capsys.readouterr()
    assert "goodput at SLO" in printed.out and "first-chunk" in printed.out
    assert "100 %" in printed.err
    assert len(json.loads(result.read_text())["runs"]) == 6
    assert "<svg" in plot.read_text()


def test_the_demonstration_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--demo", "batching"]) == 0
    assert "slot-steps idle" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [["--device", "tpu"], ["--workload", "poisson,rate"], ["--eviction", "lru-ttl=x"], ["--options", "/no"]],
)
def test_wrong_usage_is_one_line_and_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *arguments]) == 2
    assert capsys.readouterr().err.startswith("diptych: ")
