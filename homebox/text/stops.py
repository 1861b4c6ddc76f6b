"""Has the answer reached one of its stop strings, and which of its text is certain not to be part of one?

A stop string may span tokens, so text that could still turn into one is held back, and given out as soon as it cannot.
The result does not depend on how the text was cut into pieces: the stop that is complete first ends the answer, of
several complete at once the longest. Knows text only; the caller ends the request in the engine.
"""

from __future__ import annotations

from collections.abc import Iterable


class StopMatcher:
    """For one answer. `stops` are not empty strings; with none of them, all text goes straight through.

    One automaton a stop (Knuth, Morris, Pratt 1977), so that no character is compared twice.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self.stopped = False
        self._stops = [(stop, _borders(stop)) for stop in dict.fromkeys(stops)]
        self._matched = [0] * len(self._stops)  # how much of each stop the text so far ends with
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """More of the answer. Gives the text that can be delivered, and whether a stop is reached.

        From the stop on everything is dropped, the stop included; further pushes give nothing.
        """
        if self.stopped:
            return "", True
        if not self._stops:
            return text, False
        whole = self._held + text
        for place, char in enumerate(text, len(self._held) + 1):
            if length := self._step(char):
                self.stopped = True
                self._held = ""
                return whole[: place - length], True
        kept = len(whole) - max(self._matched)
        self._held = whole[kept:]
        return whole[:kept], False

    def flush(self) -> str:
        """At the end of the answer: what was held back and did not become a stop."""
        held, self._held = self._held, ""
        return held

    def _step(self, char: str) -> int:
        """One character on; the length of the longest stop that it completes, else 0."""
        complete = 0
        for which, (stop, borders) in enumerate(self._stops):
            matched = self._matched[which]
            while matched and stop[matched] != char:
                matched = borders[matched - 1]
            matched += stop[matched] == char
            if matched == len(stop):
                complete = max(complete, matched)
            self._matched[which] = matched
        return complete


def _borders(stop: str) -> list[int]:
    """For each prefix of `stop` the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(stop)
    matched = 0
    for place in range(1, len(stop)):
        while matched and stop[matched] != stop[place]:
            matched = borders[matched - 1]
        matched += stop[matched] == stop[place]
        borders[place] = matched
    return borders
