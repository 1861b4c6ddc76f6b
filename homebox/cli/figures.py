"""How does a moment of the box look as lines of plain text?

For `top --once` and `streams list`: the monitor's own lines, without its colours. They know no daemon and no terminal.
"""

from __future__ import annotations

from collections.abc import Sequence

from homebox.client import glance
from homebox.client import table as streams
from homebox.client.lines import plain
from homebox.wire.events import Snapshot, StreamRow


def screen(now: Snapshot, *, width: int = 80) -> list[str]:
    """The whole monitor."""
    lines = [
        glance.header(now, cells=width, title=f"homebox {now.version}"),
        *glance.detail(now, width),
        *glance.figures(now, cells=width),
    ]
    return [
        *(plain(line).rstrip() for line in lines),
        "-" * width,
        *table(now.streams, width=width, pool=now.blocks.total if now.blocks else 0),
    ]


def table(rows: Sequence[StreamRow], *, width: int = 80, pool: int = 0) -> list[str]:
    """One line a stream below its titles, `*` before one's own; `pool` as `client.table.line` has it."""
    if not rows:
        return [" nothing is running"]
    names = streams.short_ids([row.id for row in rows])
    kept = streams.columns(width, list(names.values()))
    return [plain(streams.head(kept)), *(plain(streams.line(kept, row, names[row.id], pool)) for row in rows)]
