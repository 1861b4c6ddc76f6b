"""Blocks as CommonMark has them, and where we differ on purpose."""

from __future__ import annotations

import pytest
from markdown_it import MarkdownIt

from homebox.tui.answer.blocks import Block, Item, Kind, Quote, cells
from homebox.tui.answer.scanner import LONG, Scanner


def blocks(text: str) -> list[Block]:
    scanner = Scanner()
    scanner.feed(text)
    scanner.finish()
    return scanner.blocks


def shape(text: str) -> list[tuple[str, ...]]:
    """Every leaf with what is around it: `("list", "quote", "prose")`."""
    return [
        (*("quote" if isinstance(part, Quote) else "item" for part in block.around), block.kind.name.lower())
        for block in blocks(text)
    ]


def reference(text: str) -> list[tuple[str, ...]]:
    """The same by markdown-it."""
    names = {
        "paragraph_open": "prose", "heading_open": "heading", "hr": "rule", "fence": "code", "code_block": "code",
        "table_open": "table",
    }  # fmt: skip
    found: list[tuple[str, ...]] = []
    around: list[str] = []
    in_table = False
    for token in MarkdownIt("commonmark", {"html": False}).enable("table").disable("html_block").parse(text):
        if token.type in ("blockquote_open", "list_item_open"):
            around.append("quote" if token.type.startswith("block") else "item")
        elif token.type in ("blockquote_close", "list_item_close"):
            around.pop()
        elif token.type in names and not in_table:
            found.append((*around, names[token.type]))
        in_table = (in_table or token.type == "table_open") and token.type != "table_close"
    return found


@pytest.mark.parametrize(
    "text",
    [
        "# a\nb\n# c #\n####### no\n#no",
        "a\n===\nb\nc\n---\n---\n***\n- - -",
        "- a\n- b\n\n  c\n- d\n  - e\n    - f\n- g",
        "1. a\n2. b\n   1. c\n      d\n10. e",
        "1) a\n\n   ```py\n   x\n   ```\n\n2) b",
        "> a\nlazy\n> b\n\n> c\n> > d\n> - e\n>   f",
        "```\na\n``\n````\nb",
        "~~~ x `y`\n```\n~~~\nc",
        "``` a`b\nno fence",
        "    a\n\n    b\n\nc\n    d",
        "- a\n\n      code in it\n\n  b",
        "- ```\n  a\n  ```\n- # b\n- > c",
        "| a | b |\n|---|:-:|\n| 1 | 2 |\nrow\n\nd",
        "a\n| b | c |\n|-|-|\n| 1 |\n> d",
        "| a | b |\n|---|\nno table",
        "a\n- b\nc\n1. d\n2. e\n\nf",
        "in the year\n1999. was\n- \ndone",
        "-\n  a\n-\tb\n\tc",
        "-   a\n    b\n\n    c\n-     d",
        "* a\n+ b\n- c\n***\n* * *",
        "> ```\n> a\nb",
        "<div>\n# a\n</div>",
        "- a\n> b\n- c",
        "  - a\n - b\n   - c\n- d",
        ">a\n>\n>b\n> # c\n>d",
    ],
)
def test_blocks_are_those_of_commonmark(text: str) -> None:
    assert shape(text) == reference(text)


def test_the_marks_around_a_block_are_told_once_each() -> None:
    first, second, third = blocks("- > a\n  >\n  > b\n- c")
    assert [first.shared, second.shared, third.shared] == [0, 2, 0]
    assert first.around == second.around and second.gap
    item = third.around[0]
    assert isinstance(item, Item) and (item.marker, item.indent, item.inside) == ("-", 0, 2)


def test_a_list_that_is_indented_too_little_to_be_nested_keeps_its_indent() -> None:
    assert [block.around[-1].indent for block in blocks("1. a\n  - b\n  - c") if isinstance(block.around[-1], Item)] == [0, 2, 2]  # fmt: skip


def test_code_is_exact() -> None:
    text = "- ```c++ x\n  a\t b  \n\n    c\n  ```\n\n    d\n\n\te\n"
    assert [block.code for block in blocks(text) if block.kind is Kind.CODE] == ["a\t b  \n\n  c"]
    assert [block.code for block in blocks("   ```\n   a\n  b\n c\n    d\n") if block.kind is Kind.CODE] == [
        "a\nb\nc\n d"
    ]


def test_everything_but_the_last_block_is_settled() -> None:
    scanner = Scanner()
    seen: list[tuple[Block, str, int]] = []
    for char in "# a\n\nb\nc\n- d\n- e\n\n| f | g |\n|-|-|\n| h | i |\n\n```\nj\n```\nk":
        scanner.feed(char)
        scanner.tail()
        for block, rest, lines in seen:
            assert (block.rest, len(block.lines)) == (rest, lines) and block in scanner.blocks
        seen = [(block, block.rest, len(block.lines)) for block in scanner.blocks[:-1]]


def test_a_line_without_end_is_shown_before_it_ends_and_still_means_the_same() -> None:
    for start in ("", "> - ", "# ", "| a | b ", "- - - "):
        text = start + "word " * LONG
        scanner = Scanner()
        for at in range(0, len(text), 100):
            scanner.feed(text[at : at + 100])
            assert len(scanner.tail().rest) < 2 * LONG
        assert sum(len(line) for block in scanner.blocks for line in block.lines) > LONG
        scanner.finish()
        expected = blocks(text)
        assert [(b.kind, b.lines, b.rest) for b in scanner.blocks] == [
            (b.kind, b.lines, b.rest) for b in expected
        ]


def test_hostile_nesting_and_marks_cost_no_more_than_their_length() -> None:
    text = (
        (">" * 3000 + "\n") * 20
        + "- " * 3000
        + "\n"
        + "#" * 5000
        + "\n"
        + "`" * 5000
        + "\n"
        + "|" * 5000
        + "\n|"
        + "-|" * 5000
    )
    scanner = Scanner()
    scanner.feed(text)
    scanner.finish()
    assert max(len(block.around) for block in scanner.blocks) <= 16
    assert len(scanner.blocks) < 30


def test_cells_of_a_row() -> None:
    assert cells("| a \\| b | c |") == ["a | b", "c"]
    assert cells("a|b") == ["a", "b"]
    assert cells("| |") == [""]


def test_a_long_line_of_code_stays_one_line_however_it_comes() -> None:
    for text in ("```\n" + "x" * 5000 + "\ny\n```\nz", "> ```\n> " + "x " * 3000 + "\n> y"):
        scanner = Scanner()
        for at in range(0, len(text), 300):
            scanner.feed(text[at : at + 300])
            assert all(len(line) <= LONG for line in scanner.tail().lines)
        scanner.finish()
        assert [block.code for block in scanner.blocks] == [block.code for block in blocks(text)]
        assert len(scanner.blocks[0].lines) == 2
