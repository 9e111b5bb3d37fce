"""The arithmetic of `bench/peers`: ratios, targets, spreads, and who used the machine."""

import subprocess
import sys

import pytest
from peers.__main__ import parse
from peers.engines import ENGINES
from peers.loads import LOADS, THROUGHPUT, TPOT, TTFT, Figure
from peers.machine import Usage, session_seconds
from peers.report import TARGETS, Run, Target, Visit, limit_outcome, load_table, spread
from service_rig import wait_until


def visits(load: str, figure: Figure, *values: float | None) -> list[Visit]:
    return [Visit(figures={load: {figure: value}} if value is not None else {}) for value in values]


def test_ratios_are_of_one_round_and_above_one_where_ours_is_better() -> None:
    run = Run(
        {
            "diptych-bf16": visits("W2", THROUGHPUT, 400, 500, 600),
            "vllm-bf16": visits("W2", THROUGHPUT, 100, None, 300),
        }
    )
    assert run.ratios("diptych-bf16", "vllm-bf16", "W2", THROUGHPUT) == [4.0, 2.0]
    times = Run({"diptych-bf16": visits("W1", TPOT, 10, 5), "vllm-bf16": visits("W1", TPOT, 20, 30)})
    assert times.ratios("diptych-bf16", "vllm-bf16", "W1", TPOT) == [2.0, 6.0]


def test_a_target_takes_the_worst_round_of_the_best_peer() -> None:
    run = Run(
        {
            "diptych-bf16": visits("W2", THROUGHPUT, 400, 400),
            "llama.cpp-bf16": visits("W2", THROUGHPUT, 100, 250),
            "llama.cpp-f16": visits("W2", THROUGHPUT, 200, 150),
            "openvino-bf16": visits("W2", THROUGHPUT, 390, 300),
        }
    )
    assert Target("W2", THROUGHPUT, 16, 1.8, "llama.cpp").outcome(run) == (
        "W2 throughput, 16 bits: 1.8 × the faster llama.cpp",
        "MISS: 1.60 × llama.cpp-bf16",
    )
    assert Target("W2", THROUGHPUT, 16, 1.0).outcome(run)[1] == "pass: 1.03 × openvino-bf16"
    assert Target("W3", THROUGHPUT, 16, 1.0).outcome(run)[1] == "not measured"


def test_the_bandwidth_limit_is_held_in_the_worst_round() -> None:
    slow, fast = visits("W1", TPOT, 15.0, 11.0)
    slow.bandwidth, fast.bandwidth = 20.0, 30.0
    run = Run({"diptych-bf16": [slow, fast]}, bandwidths=[18.0, 20.0, 30.0, 45.0], weight_bytes=270_000_000)
    assert run.limit_factors("diptych-bf16", "W1") == [
        (pytest.approx(1.111, abs=1e-3), 13.5),
        (pytest.approx(1.222, abs=1e-3), 9.0),
    ]
    assert limit_outcome(run)[1] == "pass: 1.22 × 9.00 ms of its round (1.83 × the run's shortest, 6.00 ms)"
    slow.bandwidth = 30.0
    assert limit_outcome(run)[1].startswith("MISS: 1.67 ×")


def test_every_target_names_a_load_with_its_figure() -> None:
    assert all(target.figure in LOADS[target.load].figures for target in TARGETS)


def test_a_failure_is_told_in_the_table() -> None:
    run = Run({"vllm-bf16": [Visit(errors={"W1": "no | answer"})], "diptych-bf16": visits("W1", TPOT, 8.0)})
    lines = load_table(run, "W1").splitlines()
    assert "| vllm-bf16 | failed: no / answer |  |  |  |" in lines
    assert "| diptych-bf16 | 8.0 (8.0..8.0) |  |  |  |" in lines


def test_what_an_engine_is_spared_is_told() -> None:
    run = Run({"transformers-bf16": [Visit()]})
    assert f"not run: {ENGINES['transformers-bf16'].spared['W2']}" in load_table(run, "W2")


def test_a_spread_has_digits_after_its_size() -> None:
    assert spread([3.0, 1.0, None, 2.0]) == "2.0 (1.0..3.0)"
    assert spread([300.4, 100.0, 200.0]) == "200 (100..300)"
    assert spread([1.234], 2) == "1.23 (1.23..1.23)"
    assert spread([None]) == ""


def test_the_cpu_time_of_a_session_is_counted() -> None:
    begun = Usage.now()
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    try:
        wait_until(lambda: session_seconds(busy.pid) >= 0.2, what="0.2 s of CPU")
    finally:
        busy.kill()
        busy.wait()
    assert Usage.now().busy - begun.busy >= 0.15
    assert session_seconds(busy.pid) == 0


def test_names_are_chosen_by_their_beginning() -> None:
    options = parse(["--engines", "diptych,llama.cpp-q8", "--loads", "W2", "--rounds", "3"])
    assert options.engines == ["diptych-bf16", "diptych-int8", "llama.cpp-q8_0"]
    assert options.loads == ["W2"]
    # Part of a run leaves the table of a whole one alone.
    assert options.output is None
    assert parse([]).output.name == "peers.md"


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--engines", "sglang"])
    assert "'sglang' is the beginning of none of" in capsys.readouterr().err


def test_there_is_one_of_ours_for_each_number_of_bits() -> None:
    ours = [engine.bits for engine in ENGINES.values() if engine.ours]
    assert sorted(ours) == [8, 16]
    assert {engine.bits for engine in ENGINES.values()} == {8, 16}
    assert TTFT in LOADS["prefill"].figures
