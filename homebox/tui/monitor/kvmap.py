"""Who holds the KV memory, what is shared, what is a cached prefix that the next question may find, and what is free?

A letter a person, in as many cells as their share of the pool is large; small letters are blocks that several streams of
theirs use at once. Figures to lines; it knows no widget.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass

from homebox.client.lines import Glyphs, Line, Part, clip, fit
from homebox.wire.events import Blocks

COLOURS = 6  # styles who0 ... who5, in turn


@dataclass(frozen=True)
class Piece:
    """A part of the pool: what it is drawn with, what it is called, and how many blocks it has."""

    mark: str
    style: str
    name: str
    blocks: int


def pieces(pool: Blocks, glyphs: Glyphs) -> list[Piece]:
    """All blocks of the pool, each in one piece, in the order in which they are drawn."""
    people = sorted(pool.people, key=lambda each: (-each.blocks, each.person))
    letters = _letters([each.person for each in people])
    found: list[Piece] = []
    for index, (each, letter) in enumerate(zip(people, letters, strict=True)):
        style = f"who{index % COLOURS}"
        found.append(Piece(letter, style, each.person, each.blocks - each.doubled))
        if each.doubled:
            found.append(Piece(letter.lower(), style, f"{each.person}, for several streams", each.doubled))
    told = sum(each.blocks for each in people) + pool.shared
    found += [
        Piece(glyphs.shared, "mine", "shared by several people", pool.shared),
        # Who holds what is told once a second, how many are used with every step.
        Piece(glyphs.leaving, "dim", "just taken or given back", max(0, pool.used - told)),
        Piece(glyphs.cached, "busy", "cached prefixes, to be found again", pool.cached),
        Piece(glyphs.free, "dim", "free", pool.free),
    ]
    return [piece for piece in found if piece.blocks > 0]


def drawn(found: Sequence[Piece], cells: int, rows: int) -> list[Line]:
    """The pool as `rows` lines of `cells`: what has any block has a cell, the rest is in proportion."""
    counts = _shares([piece.blocks for piece in found], cells * rows)
    marks = [
        (piece.mark, piece.style) for piece, count in zip(found, counts, strict=True) for _ in range(count)
    ]
    return [_runs(marks[row * cells : (row + 1) * cells]) for row in range(rows)]


def legend(found: Sequence[Piece], cells: int) -> Line:
    """What the marks mean, in one line; who has little is left out first."""
    order = sorted(found, key=lambda piece: -piece.blocks)
    return fit(
        [
            Part(
                ((piece.mark, piece.style), (f" {clip(piece.name.partition(',')[0], 24)}", "")),
                order.index(piece),
                1,
            )
            for piece in found
            if not piece.mark.islower()
        ],
        cells,
    )


def listed(found: Sequence[Piece], total: int, block_bytes: float | None, cells: int) -> list[Line]:
    """A line a piece, with its blocks, its part of the pool and its memory."""
    lines: list[Line] = []
    for piece in found:
        share = 100 * piece.blocks / total if total else 0.0
        memory = "" if block_bytes is None else f"{piece.blocks * block_bytes / 2**20:10,.1f} MiB"
        lines.append(
            (
                (f"  {piece.mark} ", piece.style),
                (f"{clip(piece.name, 36):36}{piece.blocks:10,}{share:6.1f}%{memory}"[: cells - 4], ""),
            )
        )
    return lines


def _letters(names: Sequence[str]) -> list[str]:
    """A capital for each: the first of its own letters that nobody has yet, else any that is left, else `?`."""
    taken: list[str] = []
    for name in names:
        own = [letter for letter in name.upper() if letter in string.ascii_uppercase]
        taken.append(next((each for each in [*own, *string.ascii_uppercase] if each not in taken), "?"))
    return taken


def _shares(blocks: Sequence[int], cells: int) -> list[int]:
    """`cells` among `blocks`, in proportion by largest remainder, at least one each where there are cells enough."""
    total = sum(blocks)
    if not total:
        return [0] * len(blocks)
    exact = [count * cells / total for count in blocks]
    given = [max(int(each), 1) for each in exact]
    while sum(given) > cells:
        given[max(range(len(given)), key=lambda i: (given[i] > 1, given[i] - exact[i], given[i]))] -= 1
    while sum(given) < cells:
        given[max(range(len(given)), key=lambda i: exact[i] - given[i])] += 1
    return given


def _runs(marks: Sequence[tuple[str, str]]) -> Line:
    line: list[tuple[str, str]] = []
    for mark, style in marks:
        if line and line[-1][1] == style:
            line[-1] = (line[-1][0] + mark, style)
        else:
            line.append((mark, style))
    return tuple(line)
