"""What stands on the monitor's screen right now?

All of its state: the newest snapshot, or the one that is held, the past, what somebody wants to see, the stream that is
chosen, what is open, what has become of the connection. It makes lines of them for a size; it knows no widget and no
socket, and changes only when the screen tells it something.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from homebox.client import glance
from homebox.client import table as streams
from homebox.client.lines import Glyphs, Line, Part, cut, fit, inline, part
from homebox.client.past import Past
from homebox.client.streams import COLUMNS, Order, View
from homebox.errors import HomeboxError
from homebox.tui.monitor import panes, wide
from homebox.wire.events import Snapshot, StreamRow
from homebox.wire.people import PersonRow

LEAST_CELLS, LEAST_ROWS = 40, 10
SHORT_ROWS = 16  # below, lines give way to rows of the table
WIDE_ROWS = 30
INTERVALS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_KEYS = ("cancel", "detail", "sort", "filter", "mine", "pause", "map", "help")


class Pane(StrEnum):
    """What stands below the figures."""

    TABLE = "table"
    DETAIL = "detail"
    MAP = "map"
    GRAPHS = "graphs"
    HELP = "help"


@dataclass
class Board:
    glyphs: Glyphs
    interval_s: float = 2.0
    view: View = field(default_factory=View)
    readonly: bool = False
    latest: Snapshot | None = None
    held: Snapshot | None = None  # while paused
    away: tuple[HomeboxError, float] | None = None
    me: PersonRow | None = None
    pane: Pane = Pane.TABLE
    spread: bool = True  # graphs above the table, where there is room
    chosen: str | None = None
    notice: str = ""
    scrolled: int = 0  # lines of the keys that are above the screen
    past: Past = field(default_factory=Past)

    # ---- what is told

    def arrived(self, now: Snapshot) -> None:
        self.past.add(now)
        if not now.past:
            self.latest, self.away = now, None

    @property
    def now(self) -> Snapshot | None:
        return self.held or self.latest

    # ---- the streams

    @property
    def rows(self) -> list[StreamRow]:
        """Those that are wanted, in their order; what has ended comes after what has not."""
        if self.now is None:
            return []
        return [*self.view(self.now.streams), *self.view(self.now.ended)]

    def place(self, rows: list[StreamRow]) -> int | None:
        """Where the chosen stream is; the first where it is gone."""
        if not rows:
            return None
        ids = [row.id for row in rows]
        return ids.index(self.chosen) if self.chosen in ids else 0

    def row(self) -> StreamRow | None:
        rows = self.rows
        place = self.place(rows)
        return None if place is None else rows[place]

    def move(self, step: int) -> None:
        """To another stream; where the keys are open, through them."""
        if self.pane is Pane.HELP:
            self.scrolled = max(0, self.scrolled + step)
            return
        rows = self.rows
        place = self.place(rows)
        if place is not None:
            self.chosen = rows[max(0, min(len(rows) - 1, place + step))].id

    def name(self, row: StreamRow) -> str:
        """What the table calls it."""
        return inline(streams.short_ids([each.id for each in self.rows]).get(row.id, row.id))

    def may_not_cancel(self, row: StreamRow) -> str:
        """Why this stream may not be stopped from here; nothing if it may."""
        if self.readonly:
            return "this monitor only looks (--readonly)"
        if row.ended_s is not None:
            return f"{self.name(row)} has ended"
        if not row.mine and not (self.me and self.me.admin):
            return f"{self.name(row)} is {row.person}'s; only administrators may stop what is not theirs"
        return ""

    def slower(self, step: int) -> bool:
        """Another interval; False at either end."""
        near = min(range(len(INTERVALS_S)), key=lambda i: abs(INTERVALS_S[i] - self.interval_s))
        place = max(0, min(len(INTERVALS_S) - 1, near + step))
        before, self.interval_s = self.interval_s, INTERVALS_S[place]
        return before != self.interval_s

    # ---- as lines

    def too_small(self, cells: int, rows: int) -> list[Line]:
        if cells >= LEAST_CELLS and rows >= LEAST_ROWS:
            return []
        said = [
            f"{cells}x{rows} is too small",
            f"for the monitor ({LEAST_CELLS}x{LEAST_ROWS}).",
            "Use: homebox top --once",
        ]
        return [cut(((line, ""),), cells) for line in said]

    def is_wide(self, cells: int, rows: int) -> bool:
        return cells >= streams.WIDE and rows >= WIDE_ROWS and self.spread

    def top(self, cells: int, rows: int) -> list[Line]:
        """Header and figures."""
        now = self.now
        if now is None:
            return [fit([part("homebox top", "title", gap=1)], cells), *self._connection(cells)]
        head = glance.header(now, cells=cells, every=self._every, who=self._who)
        trouble = self._connection(cells)
        if self.pane is Pane.HELP:
            return [head, *trouble]
        detail = glance.detail(now, cells) if now.engine != "ready" or rows >= WIDE_ROWS else []
        rule: list[Line] = [((self.glyphs.rule * cells, "dim"),)]
        if self.is_wide(cells, rows):
            figures = wide.top(now, self.past, cells=cells, glyphs=self.glyphs, interval_s=self.interval_s)
            return [head, *trouble, *detail, *rule, *figures, *rule]
        short = rows < SHORT_ROWS
        out = self.past.series("out", glance.graph_room(now, cells), interval_s=self.interval_s)
        figures = glance.figures(now, cells=cells, glyphs=self.glyphs, short=short, out=out)
        return [head, *trouble, *detail, *figures, *([] if short else rule)]

    @property
    def _every(self) -> str:
        if self.held is not None:
            return f"paused at {_clock(self.held.at)}"
        return f"every {self.interval_s:g} s"

    @property
    def _who(self) -> str:
        if self.me is None:
            return ""
        return f"{self.me.name} (admin)" if self.me.admin else self.me.name

    def _connection(self, cells: int) -> list[Line]:
        if self.away is None:
            return [] if self.latest else [((" waiting for the daemon", "dim"),)]
        error, retry_s = self.away
        old = f"; this is from {_clock(self.latest.at)}" if self.latest else ""
        lines: list[Line] = [((f" AWAY: again in {retry_s:g} s{old}: {inline(error.message)}", "warn"),)]
        if self.latest is None and error.hint:
            lines.append(((f" {inline(error.hint)}", ""),))
        return [cut(line, cells) for line in lines]

    def head(self, cells: int) -> list[Line]:
        return [streams.head(self._columns(cells, self.rows), self.view.order, self.glyphs)]

    def table(self, cells: int) -> list[Line]:
        rows = self.rows
        if not rows:
            return [] if self.now is None else [((f" {self._empty(self.now)}", "dim"),)]
        names = streams.short_ids([row.id for row in rows])
        kept = self._columns(cells, rows)
        pool = self.now.blocks.total if self.now and self.now.blocks else 0
        return [streams.line(kept, row, names[row.id], pool) for row in rows]

    def _empty(self, now: Snapshot) -> str:
        if now.streams or now.ended:
            return "no stream fits: Esc takes the filter away, u shows everybody's"
        return "nothing is running"

    def _columns(self, cells: int, rows: list[StreamRow]) -> list[streams.Column]:
        return streams.columns(cells, list(streams.short_ids([row.id for row in rows]).values()))

    def next_order(self, cells: int) -> None:
        """By the next of the columns that are shown."""
        names = [each.name for each in self._columns(cells, self.rows) if each.name in COLUMNS]
        place = names.index(self.view.order.column) + 1 if self.view.order.column in names else 0
        self.view = View(Order(names[place % len(names)]), self.view.filter, self.view.mine)

    def pane_lines(self, cells: int, rows: int, keys: Mapping[str, str]) -> list[Line]:
        """What is open instead of the table, or below it."""
        now = self.now
        if self.pane is Pane.HELP:
            lines = panes.help_lines(keys, cells)
            self.scrolled = min(self.scrolled, max(0, len(lines) - rows))
            return lines[self.scrolled :]
        if now is None or self.pane is Pane.TABLE:
            return []
        if self.pane is Pane.MAP:
            return panes.kv_map(now, cells, rows, self.glyphs)
        if self.pane is Pane.GRAPHS:
            return panes.graphs(self.past, cells, rows, self.glyphs, self.interval_s)
        return panes.detail(self.row(), now, cells)

    def foot(self, cells: int, rows: int, keys: Mapping[str, str]) -> list[Line]:
        """What can be done, and how the table is arranged, or what has just happened."""
        rule: list[Line] = [] if rows < SHORT_ROWS else [((self.glyphs.rule * cells, "dim"),)]
        status = fit(self._status(keys), cells)
        if self.notice:
            status = cut(((f" {inline(self.notice)}", "warn"),), cells)
        if rows < SHORT_ROWS:
            return [
                status
                if self.notice
                else fit([*self._keys_line(keys, ("help", "cancel")), *self._status(keys)], cells)
            ]
        return [*rule, fit(self._keys_line(keys, _KEYS), cells), status]

    def _keys_line(self, keys: Mapping[str, str], names: Sequence[str]) -> list[Part]:
        """The first keys are the last to give way, but for the one that leads to all others."""
        pairs = panes.key_line(keys, [f"monitor-{name}" for name in names])
        return [
            _key(key, word, 0 if word == "help" else place + 1, gap=2 if place else 1)
            for place, (key, word) in enumerate(pairs)
        ]

    def _status(self, keys: Mapping[str, str]) -> list[Part]:
        ((key, word),) = panes.key_line(keys, ["monitor-back"])
        order = self.view.order
        now = self.now
        live, ended = (len(now.streams), len(now.ended)) if now else (0, 0)
        arrow = self.glyphs.falling if order.falling else self.glyphs.rising
        counted = f"{live} stream{'' if live == 1 else 's'}" + (f", {ended} finished" if ended else "")
        return [
            _key(key, word, 5, gap=1),
            part(f"sorted by {order.column} {arrow}", rank=4),
            *(
                [part(f"filter: {inline(self.view.filter.text)}", "chosen", rank=1)]
                if self.view.filter.text
                else []
            ),
            *([part("only mine", "chosen", rank=2)] if self.view.mine else []),
            *([part("only looking", "dim", rank=6)] if self.readonly else []),
            *([part(counted, rank=3)] if now else []),
        ]

    def has_room_below(self, cells: int, rows: int) -> bool:
        """Whether a pane may stand below the table."""
        return rows >= WIDE_ROWS and self.pane in (Pane.DETAIL, Pane.MAP)


def _key(key: str, word: str, rank: int, *, gap: int) -> Part:
    return Part(((key, "key"), (f" {word}", "")), rank, gap)


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))
