"""How many threads compute, on which cores, and where do the weights lie?

`place` is a pure function of a `Topology`; `topology` reads this machine's from sysfs, the scheduler's affinity and the
control group. One thread a physical core: two threads on the halves of a core share its multipliers and wait for each
other. From six cores on, one is left to the daemon and to whoever else lives here; below that it is worth more as a
sixth of the work, and the engine is niced, so that the daemon gets its moments anyway. More threads than the control
group's quota would all be stopped together until its next period.

Cores of as few memory nodes as will do. Where it takes several, every thread reads all weights now and then, so their
pages are to be spread over these nodes (`Placement.interleave`): each node then gives its share of the bandwidth, where
memory that is touched by one thread first would all come from one node.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from homebox import cgroups

DAEMON_FROM_CORES = 6


@dataclass(frozen=True)
class Cpu:
    """One logical processor. Those with the same `core` are halves of one core; `node` is its memory node."""

    id: int
    core: int
    node: int = 0


@dataclass(frozen=True)
class Topology:
    """`cpus`: those that this process may use, at least one. `quota`: how many of them at a time; None is all."""

    cpus: tuple[Cpu, ...]
    quota: float | None = None


@dataclass(frozen=True)
class Placement:
    """`cpus`: one for each thread, in the order of the threads; empty where there are more threads than processors,
    and the scheduler decides. `nodes`: the memory nodes of these."""

    threads: int
    cpus: tuple[int, ...]
    nodes: tuple[int, ...]

    @property
    def interleave(self) -> bool:
        """Whether the pages of the weights are to be spread over `nodes`."""
        return len(self.nodes) > 1


def place(topology: Topology, threads: int = 0) -> Placement:
    """`threads`: how many the settings ask for; 0 lets the machine decide."""
    first, others = _by_core(topology.cpus)
    wanted = threads or _worth_it(len(first), topology.quota)
    if wanted > len(topology.cpus):
        return Placement(wanted, (), tuple(sorted({cpu.node for cpu in topology.cpus})))
    chosen = [*_in_order(first), *others][:wanted]
    return Placement(wanted, tuple(cpu.id for cpu in chosen), tuple(sorted({cpu.node for cpu in chosen})))


def _worth_it(cores: int, quota: float | None) -> int:
    allowed = cores if quota is None else min(cores, max(1, int(quota)))
    return allowed - 1 if allowed >= DAEMON_FROM_CORES else allowed


def _by_core(cpus: Iterable[Cpu]) -> tuple[list[Cpu], list[Cpu]]:
    """One processor of each core, and all others, each by number."""
    first: dict[int, Cpu] = {}
    others = []
    for cpu in sorted(cpus, key=lambda cpu: cpu.id):
        if first.setdefault(cpu.core, cpu) is not cpu:
            others.append(cpu)
    return list(first.values()), others


def _in_order(cores: list[Cpu]) -> list[Cpu]:
    """Node by node, the fullest first. In its node the lowest core is the last: it answers most interrupts."""
    sizes = Counter(cpu.node for cpu in cores)
    return sorted(cores, key=lambda cpu: (-sizes[cpu.node], cpu.node, cpu is cores[0], cpu.id))


def topology(allowed: Iterable[int] | None = None, root: Path = Path("/")) -> Topology:
    """This machine's, as far as this process may use it. What sysfs does not tell is taken for the simplest: every
    processor a core, all memory one node."""
    ids = sorted(os.sched_getaffinity(0) if allowed is None else allowed)
    cpu_folder, node_folder = root / "sys/devices/system/cpu", root / "sys/devices/system/node"
    nodes = {
        cpu: int(folder.name.removeprefix("node"))
        for folder in node_folder.glob("node[0-9]*")
        for cpu in _list(cgroups.read(folder / "cpulist"))
    }
    cores = {
        cpu: min(_list(cgroups.read(cpu_folder / f"cpu{cpu}/topology/thread_siblings_list")), default=cpu)
        for cpu in ids
    }
    return Topology(tuple(Cpu(cpu, cores[cpu], nodes.get(cpu, 0)) for cpu in ids), _quota(root))


def _quota(root: Path) -> float | None:
    """The tightest cpu.max of our control groups."""
    found = []
    for folder in cgroups.folders(root):
        match cgroups.read(folder / "cpu.max").split():
            case [limit, period] if limit != "max":
                found.append(int(limit) / int(period))
    return min(found, default=None)


def _list(text: str) -> list[int]:
    """`0-3,8` as in cpuset(7)."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            found += range(int(first), int(last or first) + 1)
    return found
