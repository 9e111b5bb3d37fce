"""Why a worker could not start: its own words, without what was done to it afterwards."""

from pathlib import Path

import fake_engine
import pytest
from tiny_folder import write_folder

import diptych_core
from diptych import AsyncEngine, EngineConfig
from diptych.errors import EngineStartError

KILLED = " (signal: 9 (SIGKILL))"


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("(MemoryPlanError): too little memory" + KILLED, "(MemoryPlanError): too little memory"),
        ("(MemoryPlanError): too little memory", "(MemoryPlanError): too little memory"),
        # Here the signal is the reason.
        ("(WorkerDied): it ended" + KILLED, "(WorkerDied): it ended" + KILLED),
    ],
)
async def test_a_worker_that_told_its_reason_was_not_killed_by_somebody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, shown: str
) -> None:
    def ready_within(_native: object, _limit_s: float) -> bytes:
        raise diptych_core.EngineStartError(f"the worker did not start {told}")

    monkeypatch.setattr("diptych_core.engine.Engine", fake_engine.Engine)
    monkeypatch.setattr(fake_engine.Engine, "ready_within", ready_within)
    engine = AsyncEngine(EngineConfig(str(write_folder(tmp_path)), worker="scripted"))
    with pytest.raises(EngineStartError) as error:
        await engine.start()
    assert error.value.message == f"the worker did not start {shown}"
