"""An answer on the screen: the same however it arrived, whole, and for work that grows with its length and no faster."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from rich.cells import cell_len

from homebox.client.sanitise import clean
from homebox.tui.answer.document import Document
from homebox.tui.answer.rows import copied_text
from homebox.tui.answer.wrap import _only_narrow
from tests.tui.model_outputs import Sample, Writer

SEEDS = range(300)


def at_once(text: str, width: int) -> Document:
    document = Document()
    document.feed(text)
    document.finish()
    document.lay_out(width)
    return document


def pieces(text: str, chance: random.Random) -> Iterator[str]:
    at = 0
    most = chance.choice((2, 7, 60, 900)) if len(text) < 1500 else 300
    while at < len(text):
        end = at + chance.randint(1, most)
        yield text[at:end]
        at = end


def in_pieces(text: str, width: int, chance: random.Random) -> Document:
    document = Document()
    for piece in pieces(text, chance):
        document.feed(piece)
        if chance.random() < 0.7:
            document.lay_out(width if chance.random() < 0.95 else chance.randint(10, 100))
    document.finish()
    document.lay_out(width)
    return document


def sampled(seed: int) -> tuple[Sample, str, random.Random]:
    sample = Writer(seed).write()
    return sample, clean(sample.text), random.Random(seed)


@pytest.mark.parametrize("tens", range(0, len(SEEDS), 50))
def test_the_text_on_the_screen_does_not_depend_on_how_the_answer_was_cut(tens: int) -> None:
    for seed in SEEDS[tens : tens + 50]:
        _, text, chance = sampled(seed)
        width = chance.choice((20, 40, 60, 80, 120))
        assert in_pieces(text, width, chance).text() == at_once(text, width).text(), f"seed {seed}"


@pytest.mark.parametrize("tens", range(0, len(SEEDS), 100))
def test_no_word_of_an_answer_is_lost_doubled_or_moved(tens: int) -> None:
    for seed in SEEDS[tens : tens + 100]:
        sample, text, chance = sampled(seed)
        document = at_once(text, chance.choice((40, 60, 80, 120)))
        shown = copied_text((document.row(y), (0, -1)) for y in range(document.height))
        at = 0
        for word in sample.words:
            found = shown.find(word, at)
            assert found >= 0, f"seed {seed}: {word!r} after {shown[max(0, at - 40) : at]!r}"
            at = found + len(word)
        for word in sample.table_words:
            assert word in shown, f"seed {seed}: {word!r}"


def test_no_row_is_wider_than_the_screen() -> None:
    for seed in SEEDS[:60]:
        _, text, chance = sampled(seed)
        width = chance.choice((12, 20, 40, 80))
        document = at_once(text, width)
        for y in range(document.height):
            assert cell_len(document.row(y).text) <= width, f"seed {seed}, row {y}"


def test_what_counts_as_narrow_is_one_cell_wide() -> None:
    assert [
        char for char in map(chr, range(0x20, 0x3000)) if _only_narrow(char) and cell_len(char) != 1
    ] == []
