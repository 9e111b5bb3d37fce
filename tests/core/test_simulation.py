"""The simulator through Python: options in, a report out, the GIL released, interruptions heeded."""

import json
import threading

import pytest

from diptych_core import sim

SMALL = {"workload": {"requests": 40}, "measure_host": False}


def test_a_report_is_json_text_and_a_page() -> None:
    report = sim.simulate(json.dumps({**SMALL, "policies": ["diptych", "static"]}))
    runs = json.loads(report.json())["runs"]
    assert [run["policy"] for run in runs] == ["diptych", "static"]
    assert all(run["requests"]["finished"] == 40 for run in runs)
    assert "TTFT p99, ms" in report.text()
    page = report.html()
    assert page.startswith("<!doctype html>") and page.count("<svg") == 6 and "http" not in page


def test_equal_options_give_equal_reports() -> None:
    first, second = (sim.simulate(json.dumps(SMALL)).json() for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("options", "kind", "told"),
    [
        ({"devise": "h200"}, "options", "devise"),
        ({"device": "tpu"}, "options", "cpu-2core or h200"),
        ({"replicas": 1001}, "options", "1 to 1,000"),
        ({"policies": ["fifo"]}, "options", "prefill-first"),
        ({"workload": {"arrivals": {"kind": "poisson", "rate": 0}}}, "options", "rate = 0"),
        ({"engine": {"block_size": 3}}, "options", "power of two"),
        ({"workload": {"arrivals": {"kind": "azure", "path": "/nowhere", "speed": 1}}}, "trace", "/nowhere"),
    ],
)
def test_what_cannot_work_is_named(options: dict[str, object], kind: str, told: str) -> None:
    with pytest.raises(sim.SimulationError, match=told) as raised:
        sim.simulate(json.dumps(options))
    assert raised.value.kind == kind


def test_other_threads_run_meanwhile_and_hear_of_progress() -> None:
    reports: list[tuple[str, int, int, float]] = []
    running = threading.Event()

    def hear(policy: str, ended: int, expected: int, virtual_s: float) -> None:
        running.set()
        reports.append((policy, ended, expected, virtual_s))

    options = json.dumps({"workload": {"requests": 2000}})
    thread = threading.Thread(target=sim.simulate, args=(options, hear))
    thread.start()
    assert running.wait(60)
    thread.join(60)
    assert reports[-1][:3] == ("diptych", 2000, 2000)
    assert [report[1] for report in reports] == sorted(report[1] for report in reports)


def test_what_progress_raises_ends_the_simulation() -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        sim.simulate(json.dumps({"workload": {"requests": 10**9}}), refuse)


def test_the_demonstration_shows_both_kinds_of_batching() -> None:
    drawn = sim.demo_batching()
    assert "Static batching" in drawn and "Continuous batching" in drawn
