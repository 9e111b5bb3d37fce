"""`diptych replay`: an event log into a new core, and where its plans first differ."""

from __future__ import annotations

from os import PathLike

import msgspec


class Difference(msgspec.Struct, frozen=True):
    """The first place where this build plans something else than the log says. `now`: nanoseconds, as logged."""

    record: int
    now: int
    step: int
    field: str
    logged: str
    replayed: str


class ReplayReport(msgspec.Struct, frozen=True):
    """What a replay found. `ending`: `whole`, `{"torn": …}` (the process died writing) or `{"said": why}`."""

    records: int
    cores: int
    plans: int
    difference: Difference | None
    ending: str | dict[str, object] | None

    @property
    def identical(self) -> bool:
        return self.difference is None

    @property
    def text(self) -> str:
        """For people."""
        if (found := self.difference) is not None:
            return (
                f"different at step {found.step}, field {found.field} (record {found.record}, now {found.now} ns)\n"
                f"  logged:   {found.logged}\n  replayed: {found.replayed}"
            )
        return f"identical: {self.plans} plans from {self.records} records{self._end()}"

    def _end(self) -> str:
        if not isinstance(self.ending, dict):
            return ""
        if "torn" in self.ending:
            return "; the last record is torn, as of a process that died"
        return f"; the log ends early: {self.ending.get('said')}"


def replay_log(path: str | PathLike[str]) -> ReplayReport:
    """Replay the log at `path`. Raises `OSError`, and `ValueError` for what is no log that this build can replay."""
    from diptych_core import sim

    return msgspec.json.decode(sim.replay(path), type=ReplayReport)
