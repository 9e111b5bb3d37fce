"""The machine: whether others use it, and how fast it reads memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from .environments import PeerError, cache

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """CPU seconds since the machine's start, over all CPUs; `stolen` by the host's other guests."""

    clock: float
    busy: float
    stolen: float

    @classmethod
    def now(cls) -> Usage:
        fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        user, nice, system, _idle, _wait, interrupts, soft, stolen = fields
        return cls(time.perf_counter(), (user + nice + system + interrupts + soft) / TICKS, stolen / TICKS)


def session_seconds(session: int) -> float:
    """CPU seconds of a session's live processes, with their ended children."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name in parentheses may hold blanks.
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / TICKS


def wait_until_quiet(limit: float, patience: float) -> float:
    """Waits until the machine has been used less than `limit` CPUs for three seconds on end; the seconds it took.

    After `patience` seconds it gives up and says so: the figures that follow are then of a machine in use.
    """
    begun = time.perf_counter()
    quiet = 0
    used = 0.0
    while quiet < 3:
        before = Usage.now()
        time.sleep(1.0)
        after = Usage.now()
        used = (after.busy + after.stolen - before.busy - before.stolen) / (after.clock - before.clock)
        quiet = quiet + 1 if used < limit else 0
        if not quiet and after.clock - begun > patience:
            print(f"  not quiet after {patience:.0f} s: others use {used:.2f} CPUs; measured all the same", flush=True)
            break
    return time.perf_counter() - begun - min(quiet, 3)


class Bandwidth:
    """Reading memory with all threads, on huge pages where the system gives them."""

    #: Well above any cache.
    SIZE = 512 << 20

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._read = _compiled().read_all
        self._read.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._read.restype = ctypes.c_uint64
        self.huge = True

    def measure(self, seconds: float = 1.0) -> float:
        """The best of some passes, GB/s: interference only ever lowers it."""
        area = mmap.mmap(-1, self.SIZE)
        try:
            area.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            self.huge = False
        view = memoryview(area)
        for at in range(0, self.SIZE, 4096):
            view[at] = 1
        address = ctypes.addressof(ctypes.c_char.from_buffer(area))
        best = 0.0
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            best = max(best, self.SIZE / self._pass(address))
        view.release()
        return best / 1e9

    def _pass(self, address: int) -> float:
        share = self.SIZE // self._threads
        threads = [
            threading.Thread(target=self._read, args=(address + index * share, share)) for index in range(self._threads)
        ]
        begun = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - begun


def _compiled() -> ctypes.CDLL:
    source = Path(__file__).with_name("bandwidth.c")
    library = cache() / "bandwidth.so"
    if not library.is_file() or library.stat().st_mtime < source.stat().st_mtime:
        library.parent.mkdir(parents=True, exist_ok=True)
        command = [
            os.environ.get("CC", "cc"),
            "-O3",
            "-march=native",
            "-shared",
            "-fPIC",
            "-o",
            str(library),
            str(source),
        ]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise PeerError(f"bandwidth.c: {getattr(error, 'stderr', '') or error}") from error
    return ctypes.CDLL(str(library))
