"""What can be opened in the monitor: all of one stream, the KV map, the graphs, the keys?

Each is made of figures, or of the table of keys, into lines; it knows no widget.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from homebox.client import words
from homebox.client.lines import Glyphs, Line, inline, nice_top, pad
from homebox.client.past import Past
from homebox.client.table import state
from homebox.tui.keys import TABLE
from homebox.tui.monitor import kvmap, wide
from homebox.wire.events import Snapshot, StreamRow

_NAMES = {"question_mark": "?", "slash": "/", "plus": "+", "minus": "-", "pagedown": "PgDn", "pageup": "PgUp"}


def spoken(key: str) -> str:
    """A key as it is printed on it."""
    return _NAMES.get(key, key if len(key) == 1 else key.replace("ctrl+", "^").capitalize())


# ---- one stream


def detail(row: StreamRow | None, now: Snapshot, cells: int) -> list[Line]:
    """Everything that is known of one stream; what is too long for a line goes on in the next."""
    if row is None:
        return [((" no stream is chosen", "dim"),)]
    own = " (you)" if row.mine else ""
    facts = [
        ("stream", inline(row.id)),
        (
            "person",
            f"{inline(row.person)}{own}   class {inline(row.klass)}   came by {inline(row.client) or 'n/a'}",
        ),
        ("state", _state(row)),
        ("model", inline(row.model)),
        ("prompt", _prompt(row)),
        ("answer", _answer(row)),
        ("times", _times(row)),
        ("memory", _memory(row, now)),
    ]
    return [
        ((f" {name if not place else '':9}", "head"), (said, ""))
        for name, whole in facts
        for place, said in enumerate(textwrap.wrap(whole, max(20, cells - 11)))
    ]


def _state(row: StreamRow) -> str:
    if row.ended_s is not None:
        return f"{state(row)} {words.age(row.ended_s)} s ago, after {words.age(row.age_s)} s"
    return f"{state(row)}   {words.age(row.age_s)} s old"


def _prompt(row: StreamRow) -> str:
    read = f", {row.prefilled:,} read" if row.ended_s is None else ""
    return f"{row.tokens_in:,} tokens, {row.cached:,} found in the cache{read}"


def _answer(row: StreamRow) -> str:
    most = "" if row.max_tokens is None else f" of at most {row.max_tokens:,}"
    speed = "n/a" if row.tok_s is None else f"{row.tok_s:.1f}"
    return f"{row.tokens_out:,} tokens{most}, {speed} tok/s"


def _times(row: StreamRow) -> str:
    return f"waited {words.seconds(row.queue_ms)} s, first token after {words.seconds(row.ttft_ms)} s"


def _memory(row: StreamRow, now: Snapshot) -> str:
    if row.ended_s is not None:
        return "given back"
    pool = now.blocks
    share = f" ({100 * row.blocks / pool.total:.1f}% of the pool)" if pool and pool.total else ""
    size = _block_bytes(now)
    memory = "" if size is None else f", {row.blocks * size / 2**20:,.1f} MiB"
    return f"{row.blocks:,} KV blocks{share}{memory}"


def _block_bytes(now: Snapshot) -> float | None:
    return now.kv_bytes / now.blocks.total if now.kv_bytes and now.blocks and now.blocks.total else None


# ---- the KV map


def kv_map(now: Snapshot, cells: int, rows: int, glyphs: Glyphs) -> list[Line]:
    """The whole pool, and below it a line for each who holds some of it."""
    if now.blocks is None:
        return [((" the KV memory is unknown while there is no engine", "dim"),)]
    pool = now.blocks
    found = kvmap.pieces(pool, glyphs)
    listed = kvmap.listed(found, pool.total, _block_bytes(now), cells)
    map_rows = max(1, min(8, rows - len(listed) - len(_host(now)) - 1))
    return [
        *(((" ", ""), *line) for line in kvmap.drawn(found, cells - 2, map_rows)),
        ((f" {pool.total:,} blocks of {pool.block_size} tokens", "head"),),
        *listed,
        *_host(now),
    ]


def _host(now: Snapshot) -> list[Line]:
    if now.blocks is None or not now.blocks.host_total:
        return []
    kept = f" {now.blocks.host_used:,} of {now.blocks.host_total:,} blocks of host memory keep what rests"
    return [((f"{kept}; {now.host_hit_tokens:,} tokens came back from there", "dim"),)]


# ---- the graphs


_GRAPHS = (
    ("util", "UTILISATION %", 100.0),
    ("out", "TOKENS OUT / s", None),
    ("running", "BATCH", None),
    ("ttft", "TIME TO FIRST TOKEN s", None),
    ("step", "STEP ms", None),
    ("waiting", "QUEUE", None),
)


def graphs(past: Past, cells: int, rows: int, glyphs: Glyphs, interval_s: float) -> list[Line]:
    """As many graphs of the last five minutes as there is room for, each with its axis."""
    shown = max(1, min(len(_GRAPHS), rows // 3))
    height = max(1, min(6, rows // shown - 1))
    lines: list[Line] = []
    for name, title, fixed in _GRAPHS[:shown]:
        values = past.series(name, cells - wide.AXIS - 2, interval_s=interval_s)
        known = [value for value in values if value is not None]
        newest = known[-1] if known else None
        said = "n/a" if newest is None else f"{newest:.3g}" if newest < 100 else f"{newest:,.0f}"
        lines.append(((f" {title}", "head"), (f"  {said}", ""), ("   last 5 min", "dim")))
        lines += wide.plotted(values, height, fixed or nice_top(max(known, default=0.0)), glyphs)
    return lines


# ---- the keys


def help_lines(keys: Mapping[str, str], cells: int) -> list[Line]:
    """`keys`: for each id the keys that it has now."""
    rows = [(keys.get(key.id, key.keys), key.about) for key in TABLE["monitor"]]
    return [
        ((f" {pad(' '.join(map(spoken, said.split(','))), 10)}", "key"), (f" {about}"[: cells - 11], ""))
        for said, about in rows
    ]


def key_line(keys: Mapping[str, str], ids: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of key and word for the foot."""
    by_id = {key.id: key for key in TABLE["monitor"]}
    return [(spoken(keys.get(name, by_id[name].keys).split(",")[0]), by_id[name].short) for name in ids]
