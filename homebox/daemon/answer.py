"""What text do these tokens make, and is it finished?

One `Answer` a choice: tokens go through the streaming detokeniser, the stop strings and the reasoning split, and come
out as pieces of text, beside the tokens whose text has been delivered. Pure: it knows no engine, clock or client.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from homebox.text.detokenise import Detokeniser
from homebox.text.reasoning import ReasoningSplitter
from homebox.text.stops import StopMatcher
from homebox.text.tokens import Tokenizer
from homebox.wire.frames import TokenLogprob


class Spoken(msgspec.Struct, frozen=True, gc=False):
    """One token of an answer; `start` is the character offset of its text in the answer as the model wrote it."""

    token: int
    start: int
    end: int
    logprob: TokenLogprob | None


@dataclass(slots=True)
class Delta:
    """What is new since the last look. `think` comes before `text`, within and between deltas."""

    think: str = ""
    text: str = ""
    spoken: list[Spoken] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.think or self.text or self.spoken)


class Answer:
    """Grows by `push`, is closed by `close`; `stopped` once a stop string was met. What follows a stop string is
    dropped: the engine was told to stop, and these tokens were on their way."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stops: Sequence[str] = (),
        min_tokens: int = 0,
        splitter: ReasoningSplitter | None = None,
    ) -> None:
        self._detokeniser = Detokeniser(tokenizer)
        self._stops = StopMatcher(stops)
        self._min_tokens = min_tokens
        self._splitter = splitter
        self._new = Delta()
        self._waiting: list[Spoken] = []  # their text is still held back
        self._delivered = 0  # characters past the stop strings
        self.tokens = 0
        self.text = ""
        self.think = ""
        self.stopped = False
        self.closed = False

    def push(self, token: int, logprob: TokenLogprob | None = None) -> None:
        if self.closed:
            return
        self.tokens += 1
        start = self._detokeniser.length
        text = self._detokeniser.push(token)
        self._waiting.append(Spoken(token, start, self._detokeniser.length, logprob))
        if self.tokens <= self._min_tokens:  # a stop string counts only in what comes after
            self._deliver(text)
            return
        out, stopped = self._stops.push(text)
        self._deliver(out)
        if stopped:
            self.stopped = True
            self._end()

    def close(self) -> None:
        """Nothing follows: let go of what was held back, but for a character that was cut in its middle."""
        if self.closed:
            return
        self._deliver(self._stops.flush())
        self._end()

    def take(self) -> Delta:
        """What came since the last call."""
        new, self._new = self._new, Delta()
        return new

    def _deliver(self, text: str) -> None:
        self._delivered += len(text)
        while self._waiting and self._waiting[0].end <= self._delivered:
            self._new.spoken.append(self._waiting.pop(0))
        if text:
            self._give(self._splitter.push(text) if self._splitter else (("text", text),))

    def _give(self, pieces: Iterable[tuple[str, str]]) -> None:
        for kind, text in pieces:
            if kind == "think":
                self.think += text
                self._new.think += text
            else:
                self.text += text
                self._new.text += text

    def _end(self) -> None:
        self.closed = True
        if self._splitter:
            self._give(self._splitter.flush())
        # A token that reaches into the stop string was spoken; one that lies wholly in it or behind it was not.
        self._new.spoken += [one for one in self._waiting if one.start < self._delivered or not self.stopped]
        self._waiting.clear()
