"""Memory for weights and blocks: zeros where vectors may read them, from the memory nodes that were asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from homebox.kernels.cpu.memory import Arena, pages, spread


def policy(address: int) -> str:
    """What the kernel says of the mapping in which `address` is the first byte (numa_maps in proc(5))."""
    lines = Path("/proc/self/numa_maps").read_text().splitlines()
    return next(line.split()[1] for line in lines if int(line.split()[0], 16) == address)


def test_what_is_spread_comes_from_the_nodes_in_turns() -> None:
    memory = pages(2**20)
    if not Path("/proc/self/numa_maps").exists() or not spread(memory, [0]):
        pytest.skip("this system does not say, or does not let us ask")
    assert policy(memory.data_ptr()) == "interleave:0"


def test_memory_is_there_where_the_system_cannot_spread_it() -> None:
    assert not spread(pages(100), [64])
    assert not pages(100, nodes=[0, 64]).any()


def test_parts_of_an_arena_are_zeros_at_the_beginning_of_a_line_and_do_not_overlap() -> None:
    arena = Arena(at_once=2**21)
    taken = [arena.take(size) for size in (1, 64, 65, 3 * 2**20, 7)]
    for n, part in enumerate(taken):
        assert part.data_ptr() % 64 == 0 and not part.any()
        part.fill_(n + 1)
    assert [set(part.tolist()) for part in taken] == [{n + 1} for n in range(len(taken))]
