"""How does a moment of the box look as lines of text?

Pure functions from a `Snapshot` to lines at a given width, used by `top`, `status` and `streams`. An unknown figure is
`n/a` (in a table `-`), never 0. They know no daemon and no terminal.
"""

from __future__ import annotations

from collections.abc import Sequence

from homebox.client.sanitise import clean
from homebox.wire.events import Device, Snapshot, StreamRow

_GIB = 2**30
_BAR = 20
_COLUMNS = " USER     STATE    MODEL           IN   OUT TOK/S  TTFT KVBLK   AGE  ID"
_STATES = {"waiting": "wait"}


def screen(snapshot: Snapshot, *, width: int = 80) -> list[str]:
    """The whole monitor."""
    rule = "-" * width
    return [
        _fit(line, width)
        for line in [
            header(snapshot),
            *([f" {_inline(snapshot.engine_detail)}"] if snapshot.engine_detail else []),
            *(device_line(device, width=width) for device in snapshot.devices),
            blocks_line(snapshot),
            throughput_line(snapshot),
            batch_line(snapshot),
            rule,
            *table(snapshot.streams),
        ]
    ]


def header(snapshot: Snapshot) -> str:
    restarts = f"  engine restarts {snapshot.engine_restarts}" if snapshot.engine_restarts else ""
    model = _inline(snapshot.model or "no model")
    return (
        f" homebox {snapshot.version}  {model}  {snapshot.engine}  up {duration(snapshot.uptime_s)}{restarts}"
    )


def device_line(device: Device, *, width: int = 80) -> str:
    """CPU figures are of the engine's process, and the line says CPU. The name gives way to the figures."""
    used, total = _gib(device.memory_used_bytes), _gib(device.memory_total_bytes)
    figures = f"  util {bar(device.util_percent)} {_percent(device.util_percent)}  mem {used}/{total} GiB"
    if device.kind != "cpu":
        figures += f"  {_unit(device.power_w, 'W')}  {_unit(device.temperature_c, 'C')}"
    kind = f" {device.kind.upper():4}"
    return kind + _clip(device.name, max(8, width - len(kind) - len(figures))) + figures


def blocks_line(snapshot: Snapshot) -> str:
    hit = _percent(None if snapshot.prefix_hit_rate is None else 100 * snapshot.prefix_hit_rate)
    tail = f"prefix hit {hit}   preempt {snapshot.preemptions}"
    blocks = snapshot.blocks
    if blocks is None or not blocks.total:
        return f" KV  n/a   {tail}"
    share = 100 * blocks.used / blocks.total
    return f" KV  {blocks.used:,}/{blocks.total:,} blk {bar(share)} {share:.0f}%   {tail}"


def throughput_line(snapshot: Snapshot) -> str:
    step = f"   step {snapshot.step_ms:.0f} ms" if snapshot.step_ms is not None else ""
    return f" OUT {snapshot.tok_s_out:,.1f} tok/s   IN {snapshot.tok_s_in:,.1f} tok/s{step}"


def batch_line(snapshot: Snapshot) -> str:
    slots = "n/a" if snapshot.max_running is None else str(snapshot.max_running)
    waits = [row.age_s for row in snapshot.streams if row.state == "waiting"]
    oldest = f" (oldest {max(waits):.1f} s)" if waits else ""
    ttft = f"TTFT p50 {seconds(snapshot.ttft_p50_ms)} p95 {seconds(snapshot.ttft_p95_ms)}"
    gap = f"gap p50 {_ms(snapshot.gap_p50_ms)}"
    return f" BATCH {snapshot.running}/{slots}   QUEUE {snapshot.waiting}{oldest}   {ttft}   {gap}"


def table(rows: Sequence[StreamRow]) -> list[str]:
    """One line a stream, `*` before one's own."""
    if not rows:
        return [" nothing is running"]
    names = short_ids([row.id for row in rows])
    return [_COLUMNS, *(_row(row, names[row.id]) for row in rows)]


def short_ids(ids: Sequence[str]) -> dict[str, str]:
    """For each id the fewest characters, at least 6, that tell it from all others; its kind (`ask-`) is left out."""
    tails = {full: full.rpartition("-")[2] for full in ids}
    length = 6
    while len({tail[:length] for tail in tails.values()}) < len(tails) and length < max(
        map(len, tails.values())
    ):
        length += 1
    return {full: tail[:length] for full, tail in tails.items()}


def _row(row: StreamRow, name: str) -> str:
    state = _STATES.get(row.state, row.state)
    if row.state == "waiting" and row.position is not None:
        state = f"wait #{row.position}"
    speed = "-" if row.tok_s is None else f"{row.tok_s:.1f}"
    ttft = "-" if row.ttft_ms is None else f"{row.ttft_ms / 1000:.2f}"
    return (
        f"{'*' if row.mine else ' '}{_clip(row.person, 8):8} {state:8} {_clip(row.model, 12):12} {row.tokens_in:5}"
        f" {row.tokens_out:5} {speed:>5} {ttft:>5} {row.blocks:5} {age(row.age_s):>5}  {_inline(name)}"
    )


def bar(percent: float | None, width: int = _BAR) -> str:
    """`[############........]`; dots only where the figure is unknown, which the number beside it says."""
    filled = 0 if percent is None else round(min(100.0, max(0.0, percent)) / 100 * width)
    return "[" + "#" * filled + "." * (width - filled) + "]"


def duration(total_s: float) -> str:
    """`3d04h`, `2h05m`, `7m03s` or `12s`."""
    minutes, secs = divmod(int(total_s), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02}h"
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{secs:02}s" if minutes else f"{secs}s"


def age(total_s: float) -> str:
    return f"{total_s:.1f}" if total_s < 1000 else duration(total_s)


def seconds(ms: float | None) -> str:
    return "n/a" if ms is None else f"{ms / 1000:.2f}"


def _ms(ms: float | None) -> str:
    return "n/a" if ms is None else f"{ms:.0f} ms"


def _percent(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.0f}%"


def _unit(value: float | None, unit: str) -> str:
    return f"n/a {unit}" if value is None else f"{value:.0f} {unit}"


def _gib(size: int | None) -> str:
    return "n/a" if size is None else f"{size / _GIB:.1f}"


def _inline(text: str) -> str:
    """Words that came from elsewhere, fit to stand within a line."""
    return " ".join(clean(text).split())


def _clip(text: str, width: int) -> str:
    """A name that is too long ends in `~`, so that nobody takes it for the whole."""
    text = _inline(text)
    return text if len(text) <= width else text[: width - 1] + "~"


def _fit(line: str, width: int) -> str:
    line = line.rstrip()
    return line if len(line) <= width else line[: width - 1] + "~"
