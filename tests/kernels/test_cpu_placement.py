"""Threads go one to a core, never beyond what this process may use, and the daemon keeps a core where there are enough."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from homebox.kernels.cpu.placement import DAEMON_FROM_CORES, Cpu, Topology, place, topology


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    """Nodes of cores of one or two halves, numbered as it comes; some processors are not ours, perhaps there is a quota."""
    halves = draw(st.integers(1, 2))
    numbers = list(range(draw(st.integers(1, 4)) * draw(st.integers(1, 9)) * halves))
    nodes = draw(st.integers(1, 4))
    ids = draw(st.permutations(numbers))
    cores = [ids[i : i + halves] for i in range(0, len(ids), halves)]
    cpus = [Cpu(id, min(core), i % nodes) for i, core in enumerate(cores) for id in core]
    ours = draw(st.lists(st.sampled_from(cpus), min_size=1, unique=True))
    return Topology(tuple(ours), draw(st.none() | st.floats(0.1, 40)))


def cores(machine: Topology) -> int:
    return len({cpu.core for cpu in machine.cpus})


@given(machines())
def test_one_thread_a_core_within_affinity_and_quota(machine: Topology) -> None:
    placed = place(machine)
    core = {cpu.id: cpu.core for cpu in machine.cpus}
    assert 1 <= placed.threads == len(placed.cpus) <= cores(machine)
    assert len({core[id] for id in placed.cpus}) == placed.threads, "no two halves of a core"
    if machine.quota is not None:
        assert placed.threads <= max(1, machine.quota)


@given(machines())
def test_from_six_cores_on_one_is_left_to_the_daemon(machine: Topology) -> None:
    allowed = cores(machine) if machine.quota is None else min(cores(machine), max(1, int(machine.quota)))
    left = allowed - place(machine).threads
    assert left == (1 if allowed >= DAEMON_FROM_CORES else 0)


@given(machines(), st.integers(1, 100))
def test_a_setting_is_kept_and_uses_cores_before_their_halves(machine: Topology, threads: int) -> None:
    placed = place(machine, threads)
    core = {cpu.id: cpu.core for cpu in machine.cpus}
    assert placed.threads == threads
    if threads <= len(machine.cpus):
        assert len(set(placed.cpus)) == threads and set(placed.cpus) <= set(core)
        assert len({core[id] for id in placed.cpus}) == min(threads, cores(machine))
    else:
        assert placed.cpus == (), "more threads than processors: nobody has one of its own"


@given(machines(), st.integers(0, 40))
def test_memory_is_spread_over_the_nodes_that_compute_and_there_are_no_more_than_needed(
    machine: Topology, threads: int
) -> None:
    placed = place(machine, threads)
    node = {cpu.id: cpu.node for cpu in machine.cpus}
    if placed.cpus:
        assert set(placed.nodes) == {node[id] for id in placed.cpus}
    assert placed.interleave == (len(placed.nodes) > 1)
    sizes: dict[int, set[int]] = {}
    for cpu in machine.cpus:
        sizes.setdefault(cpu.node, set()).add(cpu.core)
    if placed.threads <= cores(machine):
        assert placed.interleave == (placed.threads > max(map(len, sizes.values())))


@given(machines())
def test_the_same_machine_gives_the_same_placement_however_it_is_listed(machine: Topology) -> None:
    assert place(machine) == place(Topology(tuple(reversed(machine.cpus)), machine.quota))


# ---- read from a machine that is made up


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def two_sockets(root: Path) -> None:
    """Four cores of two halves: 0-3 and 4-7, a node each for {0, 1, 4, 5} and {2, 3, 6, 7}."""
    write(
        root,
        {
            "sys/devices/system/node/node0/cpulist": "0-1,4-5\n",
            "sys/devices/system/node/node1/cpulist": "2-3,6-7\n",
        },
    )
    for cpu in range(8):
        pair = f"{cpu % 4},{cpu % 4 + 4}\n"
        write(root, {f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": pair})


def test_cores_and_nodes_are_read_from_sysfs(tmp_path: Path) -> None:
    two_sockets(tmp_path)
    found = topology(range(8), tmp_path)
    assert [(cpu.core, cpu.node) for cpu in found.cpus] == [(0, 0), (1, 0), (2, 1), (3, 1)] * 2
    placed = place(found)
    assert placed.cpus == (1, 0, 2, 3) and placed.nodes == (0, 1) and placed.interleave
    assert place(found, 2).nodes == (0,) and place(found, 3).nodes == (0, 1)
    assert place(topology([2, 6, 7], tmp_path)).cpus == (7, 2), "only what affinity leaves"


def test_without_sysfs_every_processor_is_a_core(tmp_path: Path) -> None:
    assert place(topology([0, 3, 5], tmp_path)).cpus == (3, 5, 0)


def test_the_tightest_quota_on_the_way_up_counts(tmp_path: Path) -> None:
    write(tmp_path, {
        "proc/self/cgroup": "2:cpu:/old\n0::/system.slice/homebox.service\n",
        "sys/fs/cgroup/system.slice/homebox.service/cpu.max": "max 100000\n",
        "sys/fs/cgroup/system.slice/cpu.max": "250000 100000\n",
        "sys/fs/cgroup/cpu.max": "400000 100000\n",
    })  # fmt: skip
    found = topology(range(8), tmp_path)
    assert found.quota == 2.5 and place(found).threads == 2


def test_a_container_sees_its_quota_at_the_top(tmp_path: Path) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"})
    assert topology(range(8), tmp_path).quota == 0.5 and place(topology(range(8), tmp_path)).threads == 1
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("max 100000\n")
    assert topology(range(8), tmp_path).quota is None


def test_this_machine_has_a_place_for_at_least_one_thread() -> None:
    assert place(topology()).threads >= 1
