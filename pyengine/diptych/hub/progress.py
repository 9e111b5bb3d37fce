"""Progress on standard error: a bar on a terminal, one line now and then anywhere else."""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol, TextIO

SPARSE_INTERVAL_S = 5.0


class Progress(Protocol):
    """What a long operation reports to. `advance_to` takes the absolute count: a repeated report is harmless."""

    def stage(self, title: str, total: int, unit: str) -> None: ...
    def advance_to(self, count: int) -> None: ...
    def note(self, line: str) -> None: ...
    def close(self) -> None: ...


class Silent:
    """For embedders: their standard error is not ours."""

    def stage(self, title: str, total: int, unit: str) -> None: ...

    def advance_to(self, count: int) -> None: ...

    def note(self, line: str) -> None: ...

    def close(self) -> None: ...

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None: ...


class StderrProgress:
    """A tqdm bar if `stream` is a terminal; otherwise a line at each stage's start, every 5 s, and at its end."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._bar: Any = None
        self._title, self._total, self._unit, self._count = "", 0, "", 0
        self._printed_at = 0.0

    def stage(self, title: str, total: int, unit: str) -> None:
        self._finish()
        self._title, self._total, self._unit, self._count = title, total, unit, 0
        if self._terminal:
            from huggingface_hub.utils.tqdm import tqdm

            scaled = unit == "B"
            self._bar = tqdm(  # type: ignore[no-untyped-call]
                desc=title, total=total, unit=unit, unit_scale=scaled, file=self._stream, leave=True
            )
        else:
            self._line("")

    def advance_to(self, count: int) -> None:
        count = min(count, self._total)
        if count <= self._count:
            return
        if self._bar is not None:
            self._bar.update(count - self._count)
        self._count = count
        if not self._terminal and (count == self._total or time.monotonic() - self._printed_at >= SPARSE_INTERVAL_S):
            self._line(f" {100 * count // max(self._total, 1)} %")

    def note(self, line: str) -> None:
        if self._bar is not None:
            self._bar.clear()
        self._stream.write(line + "\n")
        self._stream.flush()

    def close(self) -> None:
        self._finish()
        self._title = ""

    def _line(self, state: str) -> None:
        self._printed_at = time.monotonic()
        size = f" ({self._total / 1e6:.0f} MB)" if self._unit == "B" and not state else ""
        self._stream.write(f"{self._title}{size}{state}\n")
        self._stream.flush()

    def _finish(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __enter__(self) -> StderrProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def make_progress(shown: bool) -> StderrProgress | Silent:
    return StderrProgress() if shown else Silent()
