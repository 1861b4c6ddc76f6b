"""What does a household gain when four people ask at once, on this machine and this model?

Run as `python -m homebox.bench.household` against a running daemon, by somebody who may speak for others. Four people
ask different things at the same moment; their answers stream in labelled lines. Then the same prompts are asked one
after the other, and a table shows both side by side. All is greedy and equally long, so both runs compute the same
tokens; the second time by other names, since a person's prompt would else be found in the prefix cache.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from homebox.client import stream
from homebox.client.connection import Daemon, Reply, from_environment
from homebox.client.phrases import notice
from homebox.client.sanitise import Sanitiser
from homebox.client.state import ChatState, fresh_text
from homebox.errors import EngineFailed, HomeboxError, from_dict
from homebox.wire import events
from homebox.wire.requests import AskRequest, Message, Options

QUESTIONS = {
    "anna": "Write a short, friendly note to our neighbours: we have a garden party on Saturday.",
    "ben": "Explain to a ten-year-old why the sky is blue.",
    "mia": "Plan a rainy Sunday with two children. Give three ideas.",
    "leo": "How do I cook pasta for four people? List the steps.",
}
MAX_TOKENS = 120
SAMPLE_EVERY_S = 0.25
_WIDTH = 96


@dataclass
class Told:
    """One person's answer and what it took."""

    person: str
    text: str = ""
    finished: events.Finished | None = None
    error: HomeboxError | None = None

    @property
    def tokens(self) -> int:
        return self.finished.usage.completion_tokens if self.finished else 0


@dataclass
class Run:
    """All answers of one way of asking; `wall_s` from the first question to the last word."""

    told: list[Told]
    wall_s: float
    occupancy: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(told.tokens for told in self.told)

    @property
    def tok_s(self) -> float:
        return self.tokens / self.wall_s


class Lines:
    """Labelled lines on standard output, each whole, from several threads."""

    def __init__(self, people: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._label_width = max(map(len, people))

    def put(self, person: str, text: str) -> None:
        for line in textwrap.wrap(text, _WIDTH - self._label_width - 3) or [""]:
            with self._lock:
                sys.stdout.write(f"{person:{self._label_width}} | {line}\n")
                sys.stdout.flush()


class _Paragraphs:
    """One person's text as it grows, handed on whenever there is a whole line of it."""

    def __init__(self, put: Callable[[str], None]) -> None:
        self._put = put
        self._sanitiser = Sanitiser()
        self._pending = ""

    def feed(self, text: str) -> None:
        self._pending += self._sanitiser.feed(text)
        *whole, self._pending = self._pending.split("\n")
        for line in whole:
            self._put(line)
        if len(self._pending) > _WIDTH - 12 and " " in self._pending:
            line, _, self._pending = self._pending.rpartition(" ")
            self._put(line)

    def end(self) -> None:
        if self._pending:
            self._put(self._pending)
        self._pending = ""


def ask(person: str, max_tokens: int, put: Callable[[str], None], *, name: str | None = None) -> Told:
    """One person's question, asked by `name`, to its end; lines go to `put`. A failure is told in the result."""
    told = Told(person)
    request = AskRequest(
        messages=[Message("user", QUESTIONS[person])],
        options=Options(max_tokens=max_tokens, temperature=0.0, seed=0),
    )
    lines = _Paragraphs(put)
    try:
        with stream.ask(from_environment(speak_as=name or person), request) as reply:
            before = ChatState()
            for state, event, _ in stream.read(reply):
                if said := notice(event):
                    put(f"({said})")
                lines.feed(fresh_text(before, state))
                before = state
    except HomeboxError as error:
        told.error = error
        return told
    lines.end()
    told.text, told.finished = before.text, before.finished
    if told.finished is not None and told.finished.reason not in ("stop", "length"):
        told.error = (
            from_dict(told.finished.error)
            if told.finished.error
            else EngineFailed(told.finished.detail or "stopped")
        )
    return told


def together(daemon: Daemon, max_tokens: int, lines: Lines) -> Run:
    """Everybody at once."""
    told: dict[str, Told] = {}

    def one(person: str) -> None:
        told[person] = ask(person, max_tokens, lambda line: lines.put(person, line))

    with _Occupancy(daemon) as occupancy:
        began = time.monotonic()
        threads = [threading.Thread(target=one, args=(person,), daemon=True) for person in QUESTIONS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wall_s = time.monotonic() - began
    return Run([told[person] for person in QUESTIONS], wall_s, occupancy.samples)


def one_at_a_time(max_tokens: int) -> Run:
    """The same questions, each after the last one's answer. Their text is the same and not shown again."""
    began = time.monotonic()
    told = [ask(person, max_tokens, lambda line: None, name=f"{person}-alone") for person in QUESTIONS]
    return Run(told, time.monotonic() - began)


class _Occupancy:
    """How many streams the batch holds, sampled from the monitor while the context is open."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._reply: Reply | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self.samples: list[int] = []

    def __enter__(self) -> _Occupancy:
        self._reply = self._daemon.open("GET", f"/homebox/monitor?interval={SAMPLE_EVERY_S}")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._reply is not None:
            self._reply.hang_up()
            self._thread.join()
            self._reply.close()

    def _read(self) -> None:
        assert self._reply is not None
        with contextlib.suppress(HomeboxError):  # hung up by us, or the daemon left: the answers say so
            for line in self._reply.lines():
                if running := events.decode_snapshot(line).running:
                    self.samples.append(running)


def table(both: Run, alone: Run) -> list[str]:
    """The two ways side by side."""
    lines = [
        f"{'':8} {'together':^34} | {'one at a time':^25}",
        f"{'person':8} {'tokens':>7} {'queue s':>8} {'TTFT s':>8} {'tok/s':>8} | {'tokens':>7} {'TTFT s':>8} {'tok/s':>8}",
    ]
    for left, right in zip(both.told, alone.told, strict=True):
        lines.append(
            f"{left.person:8} {left.tokens:7} {_seconds(left, 'queue_ms'):>8} {_seconds(left, 'ttft_ms'):>8} {_speed(left):>8}"
            f" | {right.tokens:7} {_seconds(right, 'ttft_ms'):>8} {_speed(right):>8}"
        )
    lines.append(
        f"{'all':8} {both.tokens:7} {'in ' + format(both.wall_s, '.1f') + ' s':>17} {both.tok_s:8.1f}"
        f" | {alone.tokens:7} {'in ' + format(alone.wall_s, '.1f') + ' s':>8} {alone.tok_s:8.1f}"
    )
    occupancy = both.occupancy
    batch = (
        f"{sum(occupancy) / len(occupancy):.1f} on average, {max(occupancy)} at most" if occupancy else "n/a"
    )
    lines.append(f"answers written at once: {batch}")
    lines.append(f"together / one at a time: {both.tok_s / alone.tok_s:.2f} times the tokens per second")
    differing = [
        left.person for left, right in zip(both.told, alone.told, strict=True) if left.text != right.text
    ]
    if differing:
        lines.append(f"not the same text both times: {', '.join(differing)}")
    return lines


def _seconds(told: Told, name: str) -> str:
    value = getattr(told.finished.timing, name) if told.finished else None
    return "n/a" if value is None else f"{value / 1000:.2f}"


def _speed(told: Told) -> str:
    value = told.finished.timing.tok_s if told.finished else None
    return "n/a" if value is None else f"{value:.1f}"


def run(max_tokens: int) -> int:
    """The whole demonstration on standard output. Raises what kept anybody from an answer."""
    daemon = from_environment()
    width = max(map(len, QUESTIONS))
    print("Four people ask at once:\n")
    for person, question in QUESTIONS.items():
        print(f"{person:{width}} > {question}")
    print(flush=True)
    both = together(daemon, max_tokens, Lines(list(QUESTIONS)))
    _raise_first(both)
    print("\nThe same questions one at a time ...", flush=True)
    alone = one_at_a_time(max_tokens)
    _raise_first(alone)
    print("\n" + "\n".join(table(both, alone)), flush=True)
    return 0


def _raise_first(done: Run) -> None:
    for told in done.told:
        if told.error is not None:
            raise told.error


def _main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m homebox.bench.household", description="Four people ask at once."
    )
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS, help="the length of each answer")
    return run(parser.parse_args().max_tokens)


if __name__ == "__main__":
    from homebox.cli.main import guard

    guard(_main)
