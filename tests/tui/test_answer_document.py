"""An answer on the screen: the same however it arrived, whole, and for work that grows with its length and no faster."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from pygments.lexer import Lexer
from rich.cells import cell_len

from homebox.client.sanitise import clean
from homebox.tui.answer import code
from homebox.tui.answer.document import Document
from homebox.tui.answer.inline import inline
from homebox.tui.answer.rows import copied_text
from homebox.tui.answer.wrap import _only_narrow, wrap
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


def listed(count: int) -> str:
    return "".join(
        f"{n}. item {n}: **some** words about it\n   - and one below\n" for n in range(1, count + 1)
    )


def tabled(count: int) -> str:
    return "| n | name |\n|--:|---|\n" + "".join(f"| {n} | name {n} of many |\n" for n in range(count))


def fenced(count: int) -> str:
    return "```python\n" + "".join(f"value_{n} = compute({n}, 'text')\n" for n in range(count))


def flowing(count: int) -> str:
    return "one long paragraph, without any end, of many words, " * count


def bare(count: int) -> str:
    return "```\n" + "unbroken" * count * 8


SHAPES = {"list": listed, "table": tabled, "fence": fenced, "paragraph": flowing, "line of code": bare}


def work(text: str) -> int:
    """Characters looked at and cells of rows made while the text grows by fifteen tokens at a time."""
    document = Document()
    for at in range(0, len(text), 60):
        document.feed(text[at : at + 60])
        document.lay_out(80)
    document.finish()
    document.lay_out(80)
    return document.scanned + 80 * document.built


@pytest.mark.parametrize("shape", SHAPES)
def test_the_work_for_an_answer_grows_with_its_length(shape: str) -> None:
    once, twice = (work(SHAPES[shape](count)) for count in (90, 180))
    assert twice < 2.6 * once


def test_a_line_of_code_is_read_once_for_its_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(lexer: Lexer, text: str, stack: list[str]) -> object:
        read.append(text)
        return tokens(lexer, text, stack)

    read: list[str] = []
    tokens = code._tokens
    monkeypatch.setattr(code, "_tokens", counted)
    document = Document()
    lines = fenced(100).splitlines(keepends=True)
    for line in lines:
        document.feed(line)
        document.lay_out(80)
        spans = [document.row(y).body.spans for y in range(document.height)]
    assert read == lines[1:]
    document.feed("```\n")
    document.finish()
    document.lay_out(80)
    assert [document.row(y).body.spans for y in range(document.height)] == spans
    assert read == lines[1:]


def test_colours_of_code_are_those_of_the_whole_once_it_is_closed() -> None:
    inner = 'x = """\nreturn\n"""\nreturn 1\n'
    text = f"```python\n{inner}```\n\n```c\n/* a\nreturn */\nreturn 0;\n```\n"
    chance = random.Random(5)
    grown, whole = in_pieces(text, 60, chance), at_once(text, 60)
    rows = [(row.text, row.body.spans) for row in map(grown.row, range(grown.height))]
    assert rows == [(row.text, row.body.spans) for row in map(whole.row, range(whole.height))]
    styles = {text.strip("│ "): {span.style for span in spans} for text, spans in rows}
    assert styles["return"] == {"string"} and styles["return 1"] == {"keyword", "number"}
    assert styles["return */"] == {"comment"} and styles["return 0;"] == {"keyword", "number"}


def test_colours_hold_across_lines_while_code_still_grows() -> None:
    document = Document()
    document.feed('```python\nx = """\nreturn\n"""\nreturn\n')
    document.lay_out(60)
    inside, outside = document.row(2).body.spans, document.row(4).body.spans
    assert [span.style for span in inside] == ["string"] and [span.style for span in outside] == ["keyword"]


@pytest.mark.parametrize(
    "language", ["html", "php", "jsx", "yaml", "bash", "rust", "diff", "json", "console", "{.x}", "∞"]
)
def test_code_of_every_language_is_drawn_as_it_was_written(language: str) -> None:
    lines = [
        "<?php echo 'a'; ?>",
        "$ ls | wc",
        "- key: [1, {a: b}]",
        "+ fn main() { /* x",
        "*/ let y = `a ${b}`; }",
        "\\u0000 \t '",
    ]
    document = Document()
    document.feed(f"```{language}\n" + "\n".join(lines) + "\n")
    document.lay_out(80)
    for y in range(1, document.height - 1):
        body = document.row(y).body
        assert all(0 <= start < end <= len(body.plain) for start, end, _ in body.spans)
    assert document.codes() == ["\n".join(lines)]


def test_a_long_paragraph_breaks_where_it_would_if_it_were_short() -> None:
    text = " ".join(f"word{n} **bold {n}**" for n in range(300))
    document = in_pieces(text, 50, random.Random(1))
    body = inline(text)
    assert document.text().split("\n") == [body.plain[start:end] for start, end, _ in wrap(body.plain, 50)]
    bold = [
        document.row(y).body.plain[max(span.start, row.start) : min(span.end, row.end)]
        for y in range(document.height)
        for row in [document.row(y)]
        for span in row.body.spans
        if span.start < row.end and span.end > row.start
    ]
    assert " ".join(bold) == " ".join(f"bold {n}" for n in range(300))
