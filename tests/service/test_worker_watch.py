"""A lost worker stands in the log: once, why, and how long its restart took."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from service_rig import ServiceThread, wait_until

from diptych.errors import EngineClosedError
from diptych.stats import Restart
from diptych_service import worker_watch
from diptych_service.worker_watch import LONG_AWAY, WorkerWatch


class FakeEngine:
    def __init__(self) -> None:
        self.now = SimpleNamespace(worker_alive=True, worker_restarts=0, last_restart=None, last_worker_error=None)
        self.closed = False

    def stats(self) -> Any:
        if self.closed:
            raise EngineClosedError("closed")
        return self.now


def watch() -> tuple[FakeEngine, WorkerWatch]:
    engine = FakeEngine()
    return engine, WorkerWatch(cast(Any, engine))


def test_each_restart_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    engine, watched = watch()
    watched.check()
    engine.now.worker_alive = False
    watched.check()
    assert not caplog.records
    engine.now = SimpleNamespace(
        worker_alive=True,
        worker_restarts=1,
        last_restart=Restart(0.001, 0.02, 0.3, 4.0),
        last_worker_error="it was killed\nby signal 9",
    )
    for _ in range(3):
        watched.check()
    (told,) = caplog.records
    assert (told.levelno, told.name) == (logging.WARNING, "diptych_service")
    for part in ("it was killed by signal 9", "0.001 s", "0.020 s", "0.300 s", "4.000 s"):
        assert part in told.getMessage()
    engine.now.worker_restarts = 4
    watched.check()
    assert "3×" in caplog.records[-1].getMessage() and len(caplog.records) == 2


def test_a_worker_that_stays_away_is_told_before_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    engine, watched = watch()
    engine.now.worker_alive, engine.now.last_worker_error = False, "no memory: " + "x" * 10_000
    for _ in range(3 * LONG_AWAY):
        watched.check()
    (told,) = caplog.records
    assert "no memory" in told.getMessage() and len(told.getMessage()) < 1000


def test_an_engine_that_does_not_run_is_nothing_to_tell(caplog: pytest.LogCaptureFixture) -> None:
    engine, watched = watch()
    engine.closed = True
    watched.check()
    assert not caplog.records


def test_the_death_of_a_real_worker_is_logged(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_watch, "PERIOD_SECONDS", 0.02)
    with ServiceThread(model_folder) as service:
        service.complete("warm", 1)
        pid = service.engine.worker_pid()
        assert pid is not None
        psutil.Process(pid).kill()
        service.complete("after the death", 2)

        def warnings() -> list[logging.LogRecord]:
            return [record for record in caplog.records if record.levelno >= logging.WARNING]

        wait_until(lambda: bool(warnings()), what="a line")
    (told,) = warnings()
    assert told.levelno == logging.WARNING and "restarted" in told.getMessage() and "ready 0." in told.getMessage()
    assert "no reason" not in told.getMessage() and "not known" not in told.getMessage()
