"""What do the screens of a household cost the daemon, and how quickly do they see what happens?

    python -m homebox.bench.attached [--parts work,stop,kill] [--state-dir DIR --model NAME]

Three parts, each a row or more of the budget table. `work`: the daemon's processor time while 16 answers are written at
200 tokens a second each, with four chats read along and one monitor open, and with nobody looking. `stop` (`stops.py`):
from the wish to stop to the end at the reader and to the free blocks. `kill` (`kills.py`): what a `kill -9` of the
daemon takes with it. With the scripted engine; `stop` also with a real one where a state directory is given.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from homebox.bench import kills, scripted, stops
from homebox.bench.figures import median, percentile
from homebox.bench.server import serving
from homebox.client import stream
from homebox.client.connection import Daemon, Reply
from homebox.errors import DaemonUnreachable
from homebox.wire import events

STREAMS, RATE, READERS = 16, 200, 4
TENFOLD = 10
MONITOR_EVERY_S = 2
PARTS = ("work", "stop", "kill")


@dataclass
class Row:
    """One line of the table."""

    what: str
    budget: str
    measured: str
    how: str


@dataclass
class Seen:
    """What one reader got."""

    events: int = 0
    texts: int = 0
    bytes: int = 0


@dataclass
class Phase:
    """One span of measuring. `core` is the share of one core that the daemon's process used."""

    core: float
    tokens_s: float
    seconds: float
    seen: list[Seen] = field(default_factory=list)


# ---- the daemon's work


def work(folder: Path, rounds: int, seconds: float) -> list[Row]:
    """Alone, as the budget has it, and with ten times as many attached, which bounds it from above: on a machine that
    does other things as well the difference of two spans is hardly more than what those do to it."""
    phases: dict[int, list[Phase]] = {0: [], 1: [], TENFOLD: []}
    with scripted.serving(folder) as (daemon, process):
        for _ in range(rounds):
            for times, kept in phases.items():
                kept.append(_phase(daemon, process.pid, seconds, times))
                print(
                    f"{times:2} times: {100 * kept[-1].core:5.1f}% of a core, {kept[-1].tokens_s:,.0f} tok/s"
                )
    cores = {times: [phase.core for phase in kept] for times, kept in phases.items()}
    alone, once, tenfold = (100 * median(cores[times]) for times in phases)
    texts = [seen.texts / phase.seconds for phase in phases[1] for seen in phase.seen]
    sizes = [seen.bytes / phase.seconds for phase in phases[1] for seen in phase.seen]
    rate = median([phase.tokens_s for kept in phases.values() for phase in kept])
    return [
        Row(
            f"{STREAMS} streams x {RATE} tok/s, {READERS} chats and a monitor attached: the daemon's work for them",
            "15% of a core",
            f"{once - alone:.1f}%; for {TENFOLD} times as many {tenfold - alone:.1f}%",
            f"processor time of the daemon's process, median of {rounds} times {seconds:g} s at {rate:,.0f} tok/s: "
            f"{alone:.1f}% of a core alone, {once:.1f}% with them, {tenfold:.1f}% with {TENFOLD} times as many",
        ),
        Row(
            "text events of one stream to one reader",
            "20 a second",
            f"{median(texts):.1f}, at most {max(texts):.1f}",
            f"counted at the reader; {median(sizes) / 1024:.1f} KiB/s",
        ),
    ]


def _phase(daemon: Daemon, pid: int, seconds: float, times: int) -> Phase:
    """One span with `times` as many attached as the budget has."""
    made = [scripted.say(daemon, f"{time.time_ns()}", f"[[forever]][[rate={RATE}]]") for _ in range(STREAMS)]
    scripted.until(lambda: len(_tokens(daemon)) == STREAMS and all(_tokens(daemon)))
    with contextlib.ExitStack() as attaching:
        read = [each.turn for each in made[:READERS]] * times
        seen = [attaching.enter_context(_reading(daemon, turn)) for turn in read]
        for _ in range(times):
            attaching.enter_context(_watching(daemon))
        scripted.until(lambda: all(each.texts for each in seen))
        process, before = psutil.Process(pid), [Seen(**vars(each)) for each in seen]
        began, used, tokens = time.monotonic(), process.cpu_times(), sum(_tokens(daemon))
        time.sleep(seconds)
        after, took, tokens_after = process.cpu_times(), time.monotonic() - began, sum(_tokens(daemon))
        grew = [
            Seen(now.events - was.events, now.texts - was.texts, now.bytes - was.bytes)
            for was, now in zip(before, seen, strict=True)
        ]
        for each in made:
            stream.cancel(daemon, each.turn)
    core = (after.user - used.user + after.system - used.system) / took
    return Phase(core, (tokens_after - tokens) / took, took, grew)


def _tokens(daemon: Daemon) -> list[int]:
    return [row["tokens_out"] for row in daemon.json("GET", "/homebox/streams")["streams"]]


@contextlib.contextmanager
def _reading(daemon: Daemon, turn: str) -> Iterator[Seen]:
    """A chat screen's connection: every event of a turn from its first on."""
    seen = Seen()

    def count(line: bytes) -> None:
        seen.events += 1
        seen.bytes += len(line) + 1
        seen.texts += isinstance(stream.parse(line), events.Text | events.Think)

    with _lines(daemon, f"/homebox/turns/{turn}/events", count):
        yield seen


@contextlib.contextmanager
def _watching(daemon: Daemon) -> Iterator[None]:
    """A monitor's connection."""

    def read(line: bytes) -> None:
        events.decode_snapshot(line)

    with _lines(daemon, f"/homebox/monitor?interval={MONITOR_EVERY_S}&history=1", read):
        yield


@contextlib.contextmanager
def _lines(daemon: Daemon, path: str, each: Callable[[bytes], None]) -> Iterator[None]:
    reply = daemon.open("GET", path)
    thread = threading.Thread(target=_take, args=(reply, each), daemon=True)
    thread.start()
    try:
        yield
    finally:
        reply.hang_up()
        thread.join()
        reply.close()


def _take(reply: Reply, each: Callable[[bytes], None]) -> None:
    with contextlib.suppress(DaemonUnreachable):  # hung up
        for line in reply.lines():
            each(line)


# ---- the other parts


def stop(daemon: Daemon, rounds: int, engine: str, text: str) -> list[Row]:
    found = [stops.one(daemon, text) for _ in range(rounds)]

    def row(what: str, budget: str, values: list[float]) -> Row:
        measured = f"median {median(values):.0f} ms, p95 {percentile(values, 0.95):.0f} ms"
        steps = f"steps of {median([each.step_ms for each in found]):.0f} ms"
        return Row(
            what, budget, measured, f"{rounds} times, beside {stops.OTHERS} other answers, {engine}, {steps}"
        )

    return [
        row("Esc to the end at the reader", "150 ms", [each.told_ms for each in found]),
        row("Esc to the blocks free in the monitor", "300 ms", [each.freed_ms for each in found]),
    ]


def kill(folder: Path, rounds: int) -> list[Row]:
    found = []
    for number in range(rounds):
        found.append(kills.one(folder, number))
        print(f"kill {number + 1}: {found[-1]}")
    lost = [each.lost_ms for each in found]
    wrong = [each for each in found if each.wrong]
    return [
        Row(
            "kill -9 of the daemon in mid-answer: text lost",
            "250 ms",
            f"median {median(lost):.0f} ms, most {max(lost):.0f} ms",
            f"{rounds} kills; the text is the time of day, {kills.RATE} times a second, beside {kills.OTHERS} other answers",
        ),
        Row(
            "what is left is there once, and says `stopped (daemon restarted)`",
            "always",
            f"{rounds - len(wrong)} of {rounds}",
            "at the reader who came back by itself, and in the chat",
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--rounds", type=int, default=3, help="of `work`, three spans each")
    parser.add_argument("--seconds", type=float, default=10.0, help="of one span")
    parser.add_argument("--stops", type=int, default=40)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--state-dir", type=Path, help="where the library of models is")
    parser.add_argument("--model", default="smollm2-135m")
    args = parser.parse_args()
    parts = args.parts.split(",")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="homebox-bench-") as name:
        folder = Path(name)
        scripted.prepare(folder)
        if "work" in parts:
            rows += work(folder, args.rounds, args.seconds)
        if "stop" in parts:
            with scripted.serving(folder) as (daemon, _):
                rows += stop(daemon, args.stops, "scripted engine", f"[[forever]][[rate={RATE}]]")
        if "kill" in parts:
            rows += kill(folder, args.kills)
    if "stop" in parts and args.state_dir:
        with serving(args.state_dir, args.model) as server:
            daemon = Daemon(socket_path=server.socket)
            rows += stop(daemon, args.stops, f"{args.model} on this machine", stops.STORY)
    print("\n| what | budget | measured | how |\n|---|---|---|---|")
    for row in rows:
        print(f"| {row.what} | {row.budget} | {row.measured} | {row.how} |")


if __name__ == "__main__":
    main()
