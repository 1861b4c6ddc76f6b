"""How do streams look as a table, in as many columns as there is room for?

Columns have a fixed order and a rank: where the terminal is narrow, the highest rank is left out first. The same table
is the monitor's, and that of `top --once` and `streams list`. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from homebox.client import words
from homebox.client.lines import ASCII, Glyphs, Line, clip, inline, pad
from homebox.client.streams import STATES, Order
from homebox.wire.events import StreamRow

WIDE = 130


@dataclass(frozen=True)
class Column:
    """`name` is the one to sort by; `say` gets the row, its short id, and how many blocks the whole pool has."""

    name: str
    title: str
    cells: int
    rank: int
    say: Callable[[StreamRow, str, int], str]
    right: bool = True


def state(row: StreamRow) -> str:
    """`wait #2`, `prefill`, `decode`, or how it ended."""
    place = f" #{row.position}" if row.state == "waiting" and row.position is not None else ""
    return inline(STATES.get(row.state, row.state)) + place


def _tok_s(row: StreamRow, name: str, pool: int) -> str:
    return "-" if row.tok_s is None else f"{row.tok_s:.1f}"


def _ttft(row: StreamRow, name: str, pool: int) -> str:
    return "-" if row.ttft_ms is None else f"{row.ttft_ms / 1000:.2f}"


def _queue(row: StreamRow, name: str, pool: int) -> str:
    return "-" if row.queue_ms is None else words.age(row.queue_ms / 1000)


def _blocks(row: StreamRow, name: str, pool: int) -> str:
    return "-" if row.ended_s is not None else f"{row.blocks}"


def _share(row: StreamRow, name: str, pool: int) -> str:
    return "-" if row.ended_s is not None or not pool else f"{100 * row.blocks / pool:.0f}"


def _limit(row: StreamRow, name: str, pool: int) -> str:
    return "-" if row.max_tokens is None else f"{row.max_tokens}"


_ALL = (
    Column("user", "USER", 8, 0, lambda row, name, pool: row.person, right=False),
    Column("state", "STATE", 8, 0, lambda row, name, pool: state(row), right=False),
    Column("model", "MODEL", 11, 7, lambda row, name, pool: row.model, right=False),
    Column("in", "IN", 6, 4, lambda row, name, pool: f"{row.tokens_in}"),
    Column("cached", "CACHED", 6, 8, lambda row, name, pool: f"{row.cached}"),
    Column("out", "OUT", 6, 0, lambda row, name, pool: f"{row.tokens_out}"),
    Column("max", "MAX", 6, 10, _limit),
    Column("tok_s", "TOK/S", 6, 1, _tok_s),
    Column("ttft", "TTFT", 5, 5, _ttft),
    Column("queue", "QUEUED", 6, 9, _queue),
    Column("blocks", "KV BLK", 6, 6, _blocks),
    Column("share", "KV%", 3, 12, _share),
    Column("age", "AGE", 6, 2, lambda row, name, pool: words.age(row.age_s)),
    Column("client", "CLIENT", 6, 11, lambda row, name, pool: row.client or "-", right=False),
    Column("id", "ID", 6, 3, lambda row, name, pool: name, right=False),
)


def columns(cells: int, names: Sequence[str] = ()) -> list[Column]:
    """The columns for this width. `names`: the short ids, which are never cut. What is left over widens the names."""
    longest = max(map(len, names), default=6)
    kept = [_wider(column, longest - 6) if column.name == "id" else column for column in _ALL]
    while _width(kept) > cells and (worst := max(column.rank for column in kept)):
        kept = [column for column in kept if column.rank != worst]
    for name, most in (("model", 20), ("user", 16)):
        spare = min(cells - _width(kept), most)
        kept = [
            _wider(column, max(0, min(spare, most - column.cells))) if column.name == name else column
            for column in kept
        ]
    return kept


def _wider(column: Column, more: int) -> Column:
    return Column(
        column.name, column.title, column.cells + max(0, more), column.rank, column.say, column.right
    )


def _width(kept: Sequence[Column]) -> int:
    return sum(column.cells + 1 for column in kept)


def head(kept: Sequence[Column], order: Order | None = None, glyphs: Glyphs = ASCII) -> Line:
    """The titles; that of the order's column says which way it goes."""
    spans: list[tuple[str, str]] = []
    for column in kept:
        title = column.title
        chosen = order is not None and column.name == order.column
        if order is not None and chosen:
            title = clip(title, column.cells - 1) + (glyphs.falling if order.falling else glyphs.rising)
        spans.append((" " + pad(title, column.cells, right=column.right), "chosen" if chosen else "head"))
    return _trimmed(spans)


def line(kept: Sequence[Column], row: StreamRow, name: str, pool: int = 0) -> Line:
    """One stream, `*` before one's own. `pool`: the blocks of the whole pool, 0 where that is not known."""
    spans: list[tuple[str, str]] = []
    for index, column in enumerate(kept):
        before = "*" if row.mine and not index else " "
        spans.append(
            (before + pad(column.say(row, name, pool), column.cells, right=column.right), _style(row, column))
        )
    return _trimmed(spans)


_STATE_STYLES = {"decode": "good", "prefill": "busy", "waiting": "warn", "replay": "warn", "held": "warn"}


def _style(row: StreamRow, column: Column) -> str:
    if row.ended_s is not None:
        return "warn" if column.name == "state" and row.state == "error" else "dim"
    if column.name == "state":
        return _STATE_STYLES.get(row.state, "")
    return "mine" if column.name == "user" and row.mine else ""


def _trimmed(spans: list[tuple[str, str]]) -> Line:
    text, style = spans[-1]
    return (*spans[:-1], (text.rstrip(), style))


def short_ids(ids: Sequence[str]) -> Mapping[str, str]:
    """For each id the fewest characters, at least 6, that tell it from all others; its kind (`ask-`) is left out."""
    tails = {full: full.rpartition("-")[2] for full in ids}
    longest = max(map(len, tails.values()), default=0)
    length = 6
    while len({tail[:length] for tail in tails.values()}) < len(tails) and length < longest:
        length += 1
    return {full: tail[:length] for full, tail in tails.items()}
