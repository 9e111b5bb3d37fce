"""Memory planned in bytes before anything is allocated. Pure but for `read_limits`, whose root a test can choose."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30
CPU_DEFAULT_BYTES = 4 * GIB
CPU_DEFAULT_FRACTION = 0.4
# cgroup v1 writes "no limit" as a number near 2^63.
_NO_LIMIT = 1 << 60


class MemoryPlanError(ValueError):
    """Weights, activations and a useful KV cache do not fit; the message has the arithmetic."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes available on the machine now, and what the tightest cgroup leaves to this process (None: no limit)."""

    available: int
    cgroup: int | None

    @property
    def usable(self) -> int:
        """The smaller of the two."""
        return self.available if self.cgroup is None else min(self.available, self.cgroup)


def read_limits(root: Path = Path("/")) -> Limits:
    """Reads /proc/meminfo and this process's memory cgroup (v1 or v2, every level up to the mount's root)."""
    return Limits(_meminfo_available(root), _cgroup_left(root))


def _meminfo_available(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    raise MemoryPlanError("/proc/meminfo has no MemAvailable: set kv_cache_bytes and use a newer kernel")


def _cgroup_left(root: Path) -> int | None:
    left: int | None = None
    for folder, limit_name, usage_name, cache_name in _cgroup_folders(root):
        limit = _read_number(folder / limit_name)
        if limit is None or limit >= _NO_LIMIT:
            continue
        used = (_read_number(folder / usage_name) or 0) - _reclaimable(folder / "memory.stat", cache_name)
        left = min(limit - max(used, 0), limit if left is None else left)
    return left


def _cgroup_folders(root: Path) -> Iterator[tuple[Path, str, str, str]]:
    """This process's memory cgroup and those above it, with the names of limit, usage and reclaimable file cache."""
    membership = root / "proc/self/cgroup"
    for line in membership.read_text().splitlines() if membership.is_file() else ():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            mount, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            mount = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        folder = mount / path.lstrip("/")
        # In a container the path may be the host's and not exist here: the mount itself is then ours.
        while folder != mount:
            yield folder, *names
            folder = folder.parent
        yield mount, *names


def _read_number(file: Path) -> int | None:
    """The number in a cgroup file; None where the file is not there or says "max"."""
    text = file.read_text().strip() if file.is_file() else "max"
    return None if text == "max" else int(text)


def _reclaimable(file: Path, name: str) -> int:
    for line in file.read_text().splitlines() if file.is_file() else ():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


@dataclass(frozen=True, slots=True)
class Needs:
    """What the model needs, in bytes but for the last three."""

    weights: int
    activations: int
    bytes_per_block: int
    block_size: int
    max_model_len: int
    max_running: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What will be allocated. `num_blocks` includes the null block."""

    num_blocks: int
    kv_bytes: int
    arithmetic: str


def default_kv_bytes(limits: Limits) -> int:
    """The default of the CPU: min(4 GiB, 0.4 × min(available, cgroup limit))."""
    return min(CPU_DEFAULT_BYTES, int(CPU_DEFAULT_FRACTION * limits.usable))


def plan_memory(needs: Needs, usable: int, asked: int | None, default: int) -> MemoryPlan:
    """How many blocks to allocate.

    usable: bytes this process may still take; asked: kv_cache_bytes, None for `default`, which shrinks to what the
    weights and activations leave. Raises MemoryPlanError when what was asked for is not there, or when the pool could
    not hold one request of max_model_len tokens.
    """
    left = usable - needs.weights - needs.activations
    budget = asked if asked is not None else min(default, left)
    blocks = max(budget, 0) // needs.bytes_per_block
    wanted = -(-needs.max_model_len // needs.block_size) + 1
    arithmetic = (
        f"usable {_show(usable)} - weights {_show(needs.weights)} - activations {_show(needs.activations)} = "
        f"{_show(left)}; KV cache {_show(budget)} ({'kv_cache_bytes' if asked is not None else 'default'}) / "
        f"{needs.bytes_per_block} B a block of {needs.block_size} tokens = {blocks} blocks"
    )
    if blocks < wanted:
        fits = max(blocks - 1, 0) * needs.block_size
        shorten = f"Lower max_model_len to at most {fits}, raise" if fits else "Raise"
        raise MemoryPlanError(
            f"the KV cache is too small for one request of max_model_len {needs.max_model_len} tokens: that takes "
            f"{wanted} blocks (one is the null block), {_show(wanted * needs.bytes_per_block)}; {arithmetic}. "
            f"{shorten} kv_cache_bytes, or free memory"
        )
    if blocks * needs.bytes_per_block > left:
        raise MemoryPlanError(f"the KV cache asked for does not fit: {arithmetic}. Lower kv_cache_bytes or free memory")
    return MemoryPlan(blocks, blocks * needs.bytes_per_block, arithmetic)


def _show(count: int) -> str:
    return f"{count:,} B"
