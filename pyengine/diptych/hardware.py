"""What this process may use of the machine it runs on."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath


def available_cpus(cgroup_root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> int:
    """CPUs this process may use: its affinity, lowered to the tightest CPU quota of its control groups (v1 or v2).

    Rounded down, at least 1: one thread more than the quota allows makes all of them wait for the next period.
    """
    affinity = len(os.sched_getaffinity(0))
    return max(1, int(min([float(affinity), *_quotas(cgroup_root, membership)])))


def _quotas(root: Path, membership: Path) -> list[float]:
    """Quotas, in CPUs, from this process's groups up to the root; inside a container only some are visible."""
    quotas = []
    for controllers, path in _groups(membership):
        base = root / "cpu" if "cpu" in controllers else root
        if controllers and "cpu" not in controllers:
            continue
        for folder in _upwards(base, path):
            quota = _quota_v1(folder) if controllers else _quota_v2(folder)
            if quota is not None:
                quotas.append(quota)
    return quotas


def _groups(membership: Path) -> list[tuple[set[str], PurePosixPath]]:
    """(controllers, path) of each line of /proc/self/cgroup; version 2 has no controllers."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    parts = [line.split(":", 2) for line in lines]
    return [(set(filter(None, part[1].split(","))), PurePosixPath(part[2])) for part in parts if len(part) == 3]


def _upwards(base: Path, path: PurePosixPath) -> list[Path]:
    relative = PurePosixPath(*path.parts[1:]) if path.is_absolute() else path
    return [base / step for step in (relative, *relative.parents)]


def _quota_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _quota_v1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
        return None if quota <= 0 else quota / period
    except (OSError, ValueError, ZeroDivisionError):
        return None
