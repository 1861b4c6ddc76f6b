"""Which part of an answer is the model thinking, and which is the answer?

Models that reason write `<think>`, their thoughts, `</think>`, then the answer; some templates write the opening mark
themselves, at the end of the prompt. The marks may be cut anywhere across pieces of text. Only a mark that the answer
begins with opens a thought: later on it is text, for instance in an answer about such marks. A thought that is never
closed is a thought to its end.
"""

from __future__ import annotations

from typing import Literal

Kind = Literal["think", "text"]
Piece = tuple[Kind, str]

OPEN = "<think>"
CLOSE = "</think>"


def opens_thought(prompt: str, mark: str = OPEN) -> bool:
    """Whether a rendered prompt (its last few tokens are enough) ends with the mark, so that the answer is a thought."""
    return prompt.rstrip().endswith(mark)


class ReasoningSplitter:
    """For one answer. `thinking` says that it begins inside a thought.

    The marks are not delivered, nor the white space around the opening one and after the closing one, which is
    layout. Everything else comes out in order, whole.
    """

    def __init__(self, *, thinking: bool = False, opening: str = OPEN, closing: str = CLOSE) -> None:
        self._opening = opening
        self._closing = closing
        self._state: Literal["begin", "after mark", "think", "after thought", "text"]
        self._state = "after mark" if thinking else "begin"
        self._held = ""

    def push(self, text: str) -> list[Piece]:
        """More of the answer: the pieces that are certain now, none of them empty."""
        self._held += text
        pieces: list[Piece] = []
        while self._advance(pieces):
            pass
        return pieces

    def flush(self) -> list[Piece]:
        """At the end of the answer: what was held back, as what it turned out to be."""
        held, self._held = self._held, ""
        if not held or self._state in ("after mark", "after thought"):
            return []
        return [("think" if self._state == "think" else "text", held)]

    def _advance(self, pieces: list[Piece]) -> bool:
        """One step of the state machine; False when more text is needed."""
        if self._state == "begin":
            return self._begin()
        if self._state in ("after mark", "after thought"):
            self._held = self._held.lstrip()
            if self._held:
                self._state = "think" if self._state == "after mark" else "text"
            return bool(self._held)
        if self._state == "text":
            _give(pieces, "text", self._held)
            self._held = ""
            return False
        thought, mark, rest = self._held.partition(self._closing)
        if mark:
            _give(pieces, "think", thought)
            self._held, self._state = rest, "after thought"
            return True
        certain = len(self._held) - _overlap(self._held, self._closing)
        _give(pieces, "think", self._held[:certain])
        self._held = self._held[certain:]
        return False

    def _begin(self) -> bool:
        start = self._held.lstrip()
        if start.startswith(self._opening):
            self._held, self._state = start[len(self._opening) :], "after mark"
            return True
        if self._opening.startswith(start):  # nothing but white space so far, or a part of the mark
            return False
        self._state = "text"
        return True


def _give(pieces: list[Piece], kind: Kind, text: str) -> None:
    if text:
        pieces.append((kind, text))


def _overlap(text: str, mark: str) -> int:
    """How many characters at the end of `text` may be the beginning of `mark`."""
    return next(
        (size for size in range(min(len(text), len(mark) - 1), 0, -1) if mark.startswith(text[-size:])), 0
    )
