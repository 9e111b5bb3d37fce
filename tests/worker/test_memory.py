"""The memory plan: what is available, what is asked for, and the arithmetic in every refusal."""

from pathlib import Path

import pytest

from diptych.worker.memory import (
    GIB,
    Limits,
    MemoryPlanError,
    Needs,
    default_kv_bytes,
    plan_memory,
    read_limits,
)

V2 = "0::/user/app\n"
V1 = "12:cpu,cpuacct:/x\n5:memory:/docker/abc\n1:name=systemd:/\n"
NEEDS = Needs(weights=1000, activations=500, bytes_per_block=100, block_size=16, max_model_len=64, max_running=4)


def machine(root: Path, cgroup: str | None, files: dict[str, str], available_kib: int = 64 * 1024 * 1024) -> Path:
    proc = root / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: 99999999 kB\nMemFree: 1 kB\nMemAvailable:   {available_kib} kB\n")
    if cgroup is not None:
        (proc / "self" / "cgroup").write_text(cgroup)
    for name, text in files.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("cgroup", "files", "left"),
    [
        (None, {}, None),
        (V2, {}, None),
        (V2, {"user/app/memory.max": "max", "user/memory.max": "max"}, None),
        (V2, {"user/app/memory.max": str(2 * GIB), "user/app/memory.current": str(GIB // 2)}, 3 * GIB // 2),
        (V2, {"user/app/memory.max": str(2 * GIB), "user/memory.max": str(GIB)}, GIB),
        # In a container: the path is the host's, the mount is the container's own group.
        (V2, {"memory.max": str(2 * GIB)}, 2 * GIB),
        (
            V2,
            {
                "memory.max": str(2 * GIB),
                "memory.current": str(GIB),
                "memory.stat": f"anon 5\ninactive_file {GIB // 2}\n",
            },
            3 * GIB // 2,
        ),
        (V1, {"memory/docker/abc/memory.limit_in_bytes": str(2 * GIB)}, 2 * GIB),
        (V1, {"memory/memory.limit_in_bytes": str(3 * GIB), "memory/memory.usage_in_bytes": str(GIB)}, 2 * GIB),
        (V1, {"memory/docker/abc/memory.limit_in_bytes": str(0x7FFFFFFFFFFFF000)}, None),
    ],
)
def test_the_limit_of_the_container_is_read_in_either_version(tmp_path, cgroup, files, left):
    limits = read_limits(machine(tmp_path, cgroup, files))
    assert limits == Limits(64 * GIB, left)


def test_this_machine_can_be_read():
    assert read_limits().usable > 0


@pytest.mark.parametrize(
    ("available", "cgroup", "default"),
    [
        (64 * GIB, None, 4 * GIB),
        (5 * GIB, None, 2 * GIB),
        (64 * GIB, 2 * GIB, int(0.8 * GIB)),
        (GIB, 8 * GIB, int(0.4 * GIB)),
    ],
)
def test_the_default_is_four_gib_or_two_fifths_of_what_there_is(available, cgroup, default):
    assert default_kv_bytes(Limits(available, cgroup)) == default


def test_blocks_are_what_the_bytes_hold():
    plan = plan_memory(NEEDS, usable=10_000, asked=1999, default=0)
    assert (plan.num_blocks, plan.kv_bytes) == (19, 1900)
    for part in ("10,000 B", "1,000 B", "500 B", "8,500 B", "1,999 B", "100 B", "19 blocks"):
        assert part in plan.arithmetic


def test_the_default_shrinks_to_what_weights_and_activations_leave():
    assert plan_memory(NEEDS, usable=2500, asked=None, default=5000).num_blocks == 10


def test_a_pool_too_small_for_one_full_request_is_refused_with_the_numbers():
    with pytest.raises(MemoryPlanError) as caught:
        plan_memory(NEEDS, usable=10_000, asked=499, default=0)
    for part in ("max_model_len 64", "5 blocks", "500 B", "= 4 blocks", "at most 48", "kv_cache_bytes"):
        assert part in str(caught.value)
    assert plan_memory(NEEDS, usable=10_000, asked=500, default=0).num_blocks == 5


@pytest.mark.parametrize("asked", [None, 99])
def test_not_even_one_block_is_refused_with_the_numbers(asked):
    with pytest.raises(MemoryPlanError, match=r"= 0 blocks\. Raise kv_cache_bytes"):
        plan_memory(NEEDS, usable=1400, asked=asked, default=4 * GIB)


def test_more_than_there_is_is_refused_before_anything_is_allocated():
    with pytest.raises(
        MemoryPlanError, match=r"does not fit: usable 2,400 B - weights 1,000 B - activations 500 B = 900 B"
    ):
        plan_memory(NEEDS, usable=2400, asked=1000, default=0)
