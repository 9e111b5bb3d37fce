"""The entry of `diptych`. The imports take a second, in which a signal must not end in a traceback."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 done, 1 failed, 2 wrong usage or configuration, 130 interrupted."""
    with _ending_at_signals():
        from diptych_service import commands

        options = commands.parse(arguments)
    return commands.run(options)


@contextmanager
def _ending_at_signals() -> Iterator[None]:
    """SIGINT and SIGTERM end the process at once: nothing was started yet."""
    before = {number: signal.signal(number, _end) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, _frame: FrameType | None) -> None:
    os._exit(INTERRUPTED if number == signal.SIGINT else 0)
