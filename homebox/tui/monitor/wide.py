"""How does the box look where there is much room: 130 columns and more?

Two halves beside each other: the device with its utilisation and memory, and the throughput with latencies; below, the
KV map by person, and the batch. Figures to lines; it knows no widget.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from homebox.client import words
from homebox.client.glance import computed, hit_rate, host, hot, other_bytes, used_blocks, used_share
from homebox.client.lines import Glyphs, Line, Part, bar, clip, cut, fit, graph, nice_top, part, plain, width
from homebox.client.past import Past
from homebox.tui.monitor import kvmap
from homebox.wire.events import Device, Snapshot

AXIS = 6  # cells of an axis' figures and its line
GRAPH_ROWS = 3
_BAR = 16


def top(now: Snapshot, past: Past, *, cells: int, glyphs: Glyphs, interval_s: float) -> list[Line]:
    """Everything between header and table."""
    left = cells // 2
    right = cells - left - 1
    rule: Line = ((glyphs.rule * cells, "dim"),)
    device = now.devices[0] if now.devices else None
    more = [_other(each, left) for each in now.devices[1:]]
    return [
        *_beside(
            [
                _device_title(device, left),
                *plotted(
                    past.series("util", left - AXIS - 2, interval_s=interval_s), GRAPH_ROWS, 100, glyphs
                ),
                *_device_figures(now, device, left, glyphs),
                *more,
            ],
            [
                _throughput_title(now, right),
                *_plot(past, "out", right, interval_s, glyphs),
                _latency(now, right),
                _queue(now, right),
            ],
            left,
            glyphs,
        ),
        rule,
        *_beside(
            [_kv_title(now, left), *_kv_map(now, left, glyphs)],
            [_batch_title(now, right), *_plot(past, "running", right, interval_s, glyphs, now.max_running)],
            left,
            glyphs,
        ),
    ]


def plotted(values: Sequence[float | None], rows: int, top: float, glyphs: Glyphs) -> list[Line]:
    """A graph with its axis: the figure at the top, half of it, and 0."""
    lines: list[Line] = []
    for row, drawn in enumerate(graph(values, rows, top, glyphs)):
        at = top * (rows - 1 - row) / (rows - 1) if rows > 1 else top
        figure = f"{at:,.0f}" if top >= 4 or at == int(at) else f"{at:.1f}"
        lines.append(((figure.rjust(AXIS - 1) + glyphs.wall, "dim"), (drawn, "graph")))
    return lines


def _plot(
    past: Past, name: str, cells: int, interval_s: float, glyphs: Glyphs, top: float | None = None
) -> list[Line]:
    values = past.series(name, cells - AXIS - 2, interval_s=interval_s)
    known = [value for value in values if value is not None]
    return plotted(values, GRAPH_ROWS, top or nice_top(max(known, default=0.0)), glyphs)


def _beside(left: Sequence[Line], right: Sequence[Line], cells: int, glyphs: Glyphs) -> list[Line]:
    lines: list[Line] = []
    for one, two in zip_longest(left, right, fillvalue=()):
        one = cut(one, cells)
        blanks = " " * (cells - width(plain(one)))
        lines.append((*one, (blanks, ""), (glyphs.wall, "dim"), *two))
    return lines


# ---- the device


def _device_title(device: Device | None, cells: int) -> Line:
    if device is None:
        return ((" no figures of a device", "dim"),)
    kind = device.kind.upper()
    return fit(
        [
            part(f"{kind}0" if kind == "GPU" else f"{kind} (the engine's process)", "head", gap=1),
            part(clip(device.name, 36), gap=1),
            part(f"util {words.percent(device.util_percent)}", rank=1),
        ],
        cells - 1,
    )


def _device_figures(now: Snapshot, device: Device | None, cells: int, glyphs: Glyphs) -> list[Line]:
    if device is None:
        return []
    share = used_share(device)
    memory = fit(
        [
            Part(
                (
                    ("mem ", "head"),
                    (
                        f"{words.gib(device.memory_used_bytes)}/{words.gib(device.memory_total_bytes)} GiB ",
                        "",
                    ),
                    *bar(share, _BAR, glyphs, "warn" if (share or 0) >= 95 else "bar"),
                ),
                gap=1,
            ),
            part(f"weights {words.gib(now.weight_bytes)}", rank=1),
            part(f"kv {words.gib(now.kv_bytes)}", rank=1),
            part(f"other {words.gib(other_bytes(now, device))}", rank=2),
            *computed(now, rank=3),
        ],
        cells - 1,
    )
    if device.kind == "cpu":
        return [memory]
    rest = [
        part(f"power {words.share(device.power_w, device.power_limit_w, 'W')}", gap=1),
        part(f"temp {words.unit(device.temperature_c, 'C')}", hot(device.temperature_c), rank=1),
        part(f"fan {words.percent(device.fan_percent)}", rank=3),
        part(words.clock(device.clock_mhz), rank=2),
        part(clip(device.driver, 20), "dim", rank=4),
    ]
    return [memory, fit(rest, cells - 1)]


def _other(device: Device, cells: int) -> Line:
    """One more GPU, in a line."""
    used, total = words.gib(device.memory_used_bytes), words.gib(device.memory_total_bytes)
    return fit(
        [
            part(clip(device.name, 24), "head", gap=1),
            part(f"util {words.percent(device.util_percent)}"),
            part(f"mem {used}/{total} GiB"),
            part(words.share(device.power_w, device.power_limit_w, "W"), rank=2),
            part(words.unit(device.temperature_c, "C"), hot(device.temperature_c), rank=1),
        ],
        cells - 1,
    )


# ---- the engine


def _throughput_title(now: Snapshot, cells: int) -> Line:
    return fit(
        [
            part("THROUGHPUT", "head", gap=1),
            part(f"out {words.rate(now.tok_s_out)} tok/s"),
            part(f"in {words.rate(now.tok_s_in)} tok/s"),
            part("(out, last 5 min)", "dim", rank=1),
        ],
        cells,
    )


def _latency(now: Snapshot, cells: int) -> Line:
    return fit(
        [
            part("LATENCY", "head", gap=1),
            part(f"TTFT p50 {words.seconds(now.ttft_p50_ms)} p95 {words.seconds(now.ttft_p95_ms)} s"),
            part(f"gap p50 {words.whole(now.gap_p50_ms)} p95 {words.whole(now.gap_p95_ms)} ms"),
        ],
        cells,
    )


def _queue(now: Snapshot, cells: int) -> Line:
    oldest = "" if now.oldest_wait_s is None else f", oldest {now.oldest_wait_s:.1f} s"
    return fit(
        [part("QUEUE", "head", gap=1), part(f"{now.waiting} waiting{oldest}", "warn" if now.waiting else "")],
        cells,
    )


def _kv_title(now: Snapshot, cells: int) -> Line:
    share = used_blocks(now.blocks)
    used = "n/a" if now.blocks is None else f"{now.blocks.used:,}/{now.blocks.total:,} blocks"
    return fit(
        [
            part("KV CACHE", "head", gap=1),
            part(used if share is None else f"{used} ({share:.0f}%)"),
            part(f"prefix hit {hit_rate(now)}", rank=2),
            part(f"preempt {now.preemptions}", "warn" if now.preemptions else "", rank=1),
            *host(now.blocks),
        ],
        cells - 1,
    )


def _kv_map(now: Snapshot, cells: int, glyphs: Glyphs) -> list[Line]:
    if now.blocks is None:
        return []
    found = kvmap.pieces(now.blocks, glyphs)
    lines = [((" ", ""), *line) for line in kvmap.drawn(found, cells - 3, GRAPH_ROWS - 1)]
    return [*lines, kvmap.legend(found, cells - 1)]


def _batch_title(now: Snapshot, cells: int) -> Line:
    computed = now.tok_s_in + now.tok_s_out
    return fit(
        [
            part("BATCH", "head", gap=1),
            part(f"{now.running}/{words.whole(now.max_running)} running"),
            part("step n/a" if now.step_ms is None else f"step {now.step_ms:.1f} ms"),
            part(f"prefill {100 * now.tok_s_in / computed:.0f}%" if computed else "prefill n/a", rank=1),
            part("(running)", "dim", rank=2),
        ],
        cells,
    )
