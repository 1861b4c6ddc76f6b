"""What might a model write? Sampled texts that mix everything Markdown has, well formed or not, and the words in them.

Every word occurs once, so that a test can tell whether one was lost, doubled or moved. Words of tables are kept apart:
a table that does not fit is told in another order.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

_SCRIPTS = ("abcdefghij", "äöüßéñ", "日本語漢字", "한국어글", "שלוםעב", "مرحبال", "ГДЕЖЗ")
_EMOJI = ("👩‍👩‍👧", "👍🏽", "🦊", "❤️", "🇵🇹")
_WEIRD = (
    "**",
    "``",
    "***",
    "|",
    "\\",
    "![",
    "](",
    "<b>",
    "&amp",
    "* *",
    "_",
    "~~",
    "1)",
    "=",
    "<!-- -->",
    "[ ]",
)
_CODE = (
    "",
    "    if W:\t# W",
    "- W | W",
    "MARK W",
    "W = 'W'",
    '"""W',
    "/* W **W**",
    "   W",
    "W" * 40,
    "# W\\",
)


@dataclass
class Sample:
    text: str = ""
    words: list[str] = field(default_factory=list)
    table_words: list[str] = field(default_factory=list)


class Writer:
    """One sample from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.sample = Sample()
        self.in_table = False
        self.count = 0

    def write(self) -> Sample:
        end = "\r\n" if self.random.random() < 0.1 else "\n"
        blocks = [self.block(0) for _ in range(self.random.randint(1, 9))]
        if self.random.random() < 0.2:
            blocks.append(self.fence(closed=False))
        text = "".join(
            "\n".join(lines) + self.random.choice(("\n", "\n\n", "\n\n\n")) for lines in blocks if lines
        )
        if self.random.random() < 0.5:
            text = text.rstrip("\n")
        self.sample.text = text.replace("\n", end)
        return self.sample

    def word(self) -> str:
        """A word that nothing else in the sample contains."""
        self.count += 1
        letters = "".join(self.random.choices(self.random.choice(_SCRIPTS), k=self.random.randint(1, 2)))
        word = f"{letters}{self.count}x"
        (self.sample.table_words if self.in_table else self.sample.words).append(word)
        return word

    def phrase(self, most: int = 12) -> str:
        parts = []
        for _ in range(self.random.randint(1, most)):
            kind = self.random.random()
            if kind < 0.6:
                parts.append(self.word())
            elif kind < 0.85:
                left, right = self.random.choice(
                    (
                        ("**", "**"), ("*", "*"), ("`", "`"), ("~~", "~~"), ("[", "](http://a.b)"), ("<i>", "</i>"),
                        ("![", "](p.png)"), ("***", "***"), ("__", "__"), ("(", "),"), ('"', '"'),
                    )
                )  # fmt: skip
                parts.append(f"{left}{self.word()} {self.word()}{right}")
            elif kind < 0.93:
                parts.append(self.random.choice(_EMOJI))
            else:
                parts.append(self.random.choice(_WEIRD))
        return " ".join(parts)

    def block(self, depth: int) -> list[str]:
        kinds = [self.paragraph] * 4 + [
            self.heading,
            self.fence,
            self.table,
            self.rule,
            self.indented,
            self.long,
        ]
        if depth < 3:
            kinds += [lambda: self.items(depth), lambda: self.items(depth), lambda: self.quote(depth)]
        return self.random.choice(kinds)()

    def paragraph(self) -> list[str]:
        return [f"{self.word()} {self.phrase()}" for _ in range(self.random.randint(1, 3))]

    def long(self) -> list[str]:
        if self.random.random() < 0.8:
            return self.paragraph()
        glue = self.random.choice((" ", " ", ""))
        return [glue.join(f"{self.word()}{self.random.choice(('', ' **', '` '))}" for _ in range(250))]

    def heading(self) -> list[str]:
        if self.random.random() < 0.3:
            return [f"{self.word()} {self.phrase(3)}", self.random.choice("=-") * self.random.randint(2, 9)]
        return [f"{'#' * self.random.randint(1, 6)} {self.word()} {self.phrase(3)}"]

    def rule(self) -> list[str]:
        return ["", self.random.choice(("---", "***", "_ _ _", "- - -")), ""]

    def indented(self) -> list[str]:
        return ["", *(f"    {self.word()}  {self.word()}" for _ in range(2)), ""]

    def fence(self, closed: bool = True) -> list[str]:
        mark = self.random.choice("`~") * self.random.randint(3, 6)
        lines = [mark + self.random.choice(("", "python", " c++ title=x", "nosuchlanguage"))]
        for _ in range(self.random.randint(0, 6)):
            line = self.random.choice(_CODE).replace("MARK", mark)
            while "W" in line:
                line = line.replace("W", self.word(), 1)
            lines.append(line)
        return [*lines, mark] if closed else lines

    def table(self) -> list[str]:
        columns = self.random.randint(1, 5)
        self.in_table = True

        def row(width: int) -> str:
            return "| " + " | ".join(self.word() for _ in range(width)) + " |"

        borders = (self.random.choice((":--", "--:", ":-:", "---")) for _ in range(columns))
        lines = [row(columns), f"|{'|'.join(borders)}|"]
        for _ in range(self.random.randint(0, 5)):
            lines.append(row(max(1, columns + self.random.choice((0, 0, 0, -1, 1)))))
        self.in_table = False
        return ["", *lines, ""]

    def quote(self, depth: int) -> list[str]:
        lines = ["> " + line for line in self.block(depth + 1)]
        if self.random.random() < 0.3:
            lines.append(f"{self.word()} lazy")
            self.sample.words.append("lazy")
        return lines

    def items(self, depth: int) -> list[str]:
        marker = self.random.choice(("-", "*", "+", "1.", "1)", "10."))
        tab = self.random.random() < 0.1
        lines: list[str] = []
        for number in range(self.random.randint(1, 4)):
            mark = marker
            if marker[0].isdigit():
                mark = f"{int(marker[:-1]) + number}{marker[-1]}"
            inner = self.block(depth + 1) if self.random.random() < 0.4 else [self.phrase(6)]
            pad = " " * (len(mark) + 1)
            for at, line in enumerate(inner):
                lead = (f"{mark}\t" if tab else f"{mark} ") if not at else pad
                lines.append(lead + line if line else "")
            if self.random.random() < 0.2:
                lines.append("")
        return lines
