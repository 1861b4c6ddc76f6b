"""How does a moment of the whole box look in a few lines, at any width?

Header, devices, memory, KV blocks, throughput, batch and queue: what the monitor's screen shows above its table and
what `top --once` prints. Where there is little room, the parts that say least give way first. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from homebox.client import words
from homebox.client.lines import (
    ASCII,
    Glyphs,
    Line,
    Part,
    bar,
    clip,
    cut,
    fit,
    graph,
    inline,
    nice_top,
    part,
    width,
)
from homebox.wire.events import Blocks, Device, Snapshot

_BAR = 20
_GOOD_STATES = ("ready", "unloaded")


def header(now: Snapshot, *, cells: int, every: str = "", who: str = "", title: str = "homebox top") -> Line:
    """`every`: how often there is a new picture, or what has become of it; `who` looks."""
    state = "" if now.engine == "ready" else now.engine
    restarts = f"engine restarts {now.engine_restarts}" if now.engine_restarts else ""
    parts = [
        part(title, "title", gap=1),
        part(inline(now.model or "no model"), rank=2),
        *([part(inline(state), "warn" if state not in _GOOD_STATES else "")] if state else []),
        part(f"up {words.duration(now.uptime_s)}", rank=3),
        *([part(restarts, "warn", rank=4)] if restarts else []),
        *([part(every, "dim", rank=5)] if every else []),
    ]
    return fit(parts, cells, right=part(inline(who), "mine") if who else None)


def detail(now: Snapshot, cells: int) -> list[Line]:
    """What the engine has to say of its state, where it does."""
    return [cut(((f" {inline(now.engine_detail)}", "warn"),), cells)] if now.engine_detail else []


def figures(
    now: Snapshot,
    *,
    cells: int,
    glyphs: Glyphs = ASCII,
    short: bool = False,
    out: Sequence[float | None] = (),
) -> list[Line]:
    """Everything between header and table; `short` for a low screen. `out` is the past of the throughput, as many
    values as `graph_room` says."""
    if short:
        return [
            *(_device(device, "", cells, glyphs) for device in now.devices[:1]),
            blocks(now, cells, glyphs),
            batch(now, cells),
        ]
    return [
        *devices(now, cells, glyphs),
        blocks(now, cells, glyphs),
        throughput(now, cells, glyphs, out),
        batch(now, cells),
    ]


# ---- devices and memory


def devices(now: Snapshot, cells: int, glyphs: Glyphs) -> list[Line]:
    """With one, a line for what it does and one for its memory; with several, a line each."""
    if len(now.devices) == 1:
        return [_device(now.devices[0], "", cells, glyphs), memory(now, now.devices[0], cells, glyphs)]
    return [
        _device(device, str(index) if device.kind == "gpu" else "", cells, glyphs, with_memory=True)
        for index, device in enumerate(now.devices)
    ]


def _device(device: Device, number: str, cells: int, glyphs: Glyphs, *, with_memory: bool = False) -> Line:
    """CPU figures are of the engine's process, and the line says CPU. The name gives way to the figures."""
    util = Part(
        (
            ("util ", "head"),
            *bar(device.util_percent, _bar_cells(cells), glyphs),
            (f" {words.percent(device.util_percent)}", ""),
        )
    )
    parts = [util]
    if with_memory or device.kind == "cpu":
        used, total = words.gib(device.memory_used_bytes), words.gib(device.memory_total_bytes)
        parts.append(part(f"mem {used}/{total} GiB", rank=1))
    if device.kind != "cpu":
        parts += [
            part(words.share(device.power_w, device.power_limit_w, "W"), rank=3),
            part(words.unit(device.temperature_c, "C"), hot(device.temperature_c), rank=2),
            part(words.clock(device.clock_mhz), rank=4),
        ]
    kind = f"{device.kind.upper()}{number}"
    room = cells - sum(each.width for each in parts) - width(kind) - 2
    name = clip(device.name, max(8, min(room, 28)))
    return fit([part(kind, "head", gap=1), part(name, rank=5, gap=1), *parts], cells)


def memory(now: Snapshot, device: Device, cells: int, glyphs: Glyphs) -> Line:
    """How the memory is split; what is neither weights nor KV is only known where both lie in what is used."""
    used, share = device.memory_used_bytes, used_share(device)
    name = "VRAM" if device.kind == "gpu" else "MEM "
    figures = f"{words.gib(used)}/{words.gib(device.memory_total_bytes)}"
    split = [("weights", now.weight_bytes), ("kv", now.kv_bytes), ("other", other_bytes(now, device))]
    return fit(
        [
            part(name, "head", gap=1),
            Part(
                (
                    (f"{figures} ", ""),
                    *bar(share, _bar_cells(cells), glyphs, "warn" if (share or 0) >= 95 else "bar"),
                    (f" {words.percent(share)}", ""),
                ),
                gap=1,
            ),
            *(part(f"{what} {words.gib(size)}", rank=rank) for rank, (what, size) in enumerate(split, 1)),
            *computed(now, rank=4),
        ],
        cells,
    )


def computed(now: Snapshot, *, rank: int) -> list[Part]:
    """Of which types weights, keys and values are, and which kernels run."""
    kv = f"KV in {now.kv}" if now.kv else ""
    how = ", ".join(inline(each) for each in (now.weights, kv, now.attention) if each)
    return [part(how, "dim", rank=rank)] if how else []


def used_share(device: Device) -> float | None:
    """Percent of the memory that is in use."""
    if device.memory_used_bytes is None or not device.memory_total_bytes:
        return None
    return 100 * device.memory_used_bytes / device.memory_total_bytes


def other_bytes(now: Snapshot, device: Device) -> int | None:
    """What is used and is neither weights nor KV; None where these do not lie in what is used."""
    if None in (device.memory_used_bytes, now.weight_bytes, now.kv_bytes):
        return None
    rest = (device.memory_used_bytes or 0) - (now.weight_bytes or 0) - (now.kv_bytes or 0)
    return rest if rest >= 0 else None


def hot(temperature_c: float | None) -> str:
    return "warn" if temperature_c is not None and temperature_c >= 85 else ""


# ---- the engine


def blocks(now: Snapshot, cells: int, glyphs: Glyphs) -> Line:
    tail = [
        part(f"prefix hit {hit_rate(now)}", rank=2),
        part(f"preempt {now.preemptions}", "warn" if now.preemptions else "", rank=1),
    ]
    pool = now.blocks
    tail += host(pool)
    share = used_blocks(pool)
    if pool is None or share is None:
        return fit([part("KV", "head", gap=1), part("n/a", gap=3), *tail], cells)
    figures = (
        (f"{pool.used:,}/{pool.total:,} blk ", ""),
        *bar(share, _bar_cells(cells), glyphs, "warn" if share >= 95 else "bar"),
        (f" {share:.0f}%", ""),
    )
    return fit([part("KV", "head", gap=1), Part(figures, gap=3), *tail], cells)


def host(pool: Blocks | None) -> list[Part]:
    """What host memory keeps for conversations that rest, where it can."""
    if pool is None or not pool.host_total:
        return []
    return [part(f"host {pool.host_used:,}/{pool.host_total:,}", rank=3)]


def used_blocks(pool: Blocks | None) -> float | None:
    return 100 * pool.used / pool.total if pool and pool.total else None


def hit_rate(now: Snapshot) -> str:
    return words.percent(None if now.prefix_hit_rate is None else 100 * now.prefix_hit_rate)


def graph_room(now: Snapshot, cells: int) -> int:
    """How many columns the throughput's graph has beside its figures."""
    return max(0, min(60, cells - sum(each.width for each in _rates(now, cells)) - 7))


def throughput(now: Snapshot, cells: int, glyphs: Glyphs, past: Sequence[float | None]) -> Line:
    known = [value for value in past if value is not None]
    drawn = graph(past, 1, nice_top(max(known, default=0.0)), glyphs)[0] if past else ""
    parts = [
        part("OUT", "head", gap=1),
        *([part(drawn, "graph", rank=4)] if drawn else []),
        *_rates(now, cells),
    ]
    return fit(parts, cells)


def _rates(now: Snapshot, cells: int) -> list[Part]:
    step = [part(f"step {now.step_ms:.0f} ms", rank=3)] if now.step_ms is not None and cells < 80 else []
    return [
        part(f"{words.rate(now.tok_s_out)} tok/s"),
        Part((("IN ", "head"), (f"{words.rate(now.tok_s_in)} tok/s", "")), rank=2),
        *step,
    ]


def batch(now: Snapshot, cells: int) -> Line:
    slots = words.whole(now.max_running)
    oldest = f" (oldest {now.oldest_wait_s:.1f} s)" if now.oldest_wait_s is not None else ""
    return fit(
        [
            Part((("BATCH ", "head"), (f"{now.running}/{slots}", "")), gap=1),
            Part((("QUEUE ", "head"), (f"{now.waiting}", "warn" if now.waiting else ""))),
            *([part(oldest.strip(), rank=3, gap=1)] if oldest else []),
            Part((("TTFT ", "head"), (f"p50 {words.seconds(now.ttft_p50_ms)}", "")), rank=2),
            part(f"p95 {words.seconds(now.ttft_p95_ms)}", rank=4, gap=1),
            Part((("gap ", "head"), (f"p50 {words.whole(now.gap_p50_ms)}", "")), rank=5),
            part(f"p95 {words.whole(now.gap_p95_ms)}", rank=6, gap=1),
            part("ms", rank=5, gap=1),
        ],
        cells,
    )


def _bar_cells(cells: int) -> int:
    return _BAR if cells >= 80 else 10 if cells >= 56 else 6
