"""How many CPUs there are: affinity and the quotas of both versions of control groups."""

import os
from pathlib import Path

import pytest

from diptych.hardware import available_cpus

AFFINITY = len(os.sched_getaffinity(0))


@pytest.fixture
def many_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))


def groups(folder: Path, membership: str, files: dict[str, str]) -> tuple[Path, Path]:
    for name, content in files.items():
        (folder / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "root" / name).write_text(content)
    (folder / "membership").write_text(membership)
    return folder / "root", folder / "membership"


@pytest.mark.usefixtures("many_cpus")
@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "400000 100000\n"}, 4),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "250000 100000\n"}, 2),
        ("0::/a/b\n", {"cpu.max": "300000 100000\n"}, 3),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 16),
        (
            "4:cpu,cpuacct:/x\n1:memory:/y\n",
            {"cpu/x/cpu.cfs_quota_us": "600000", "cpu/x/cpu.cfs_period_us": "100000"},
            6,
        ),
        ("4:cpu,cpuacct:/x\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 16),
        ("4:cpu:/x\n", {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2),
        ("garbage\n", {"cpu.max": "what\n"}, 16),
    ],
)
def test_the_tightest_quota_counts(tmp_path: Path, membership: str, files: dict[str, str], expected: int) -> None:
    assert available_cpus(*groups(tmp_path, membership, files)) == expected


def test_affinity_counts_where_there_are_no_groups(tmp_path: Path) -> None:
    assert available_cpus(tmp_path / "none", tmp_path / "none") == AFFINITY
    assert 1 <= available_cpus() <= AFFINITY
