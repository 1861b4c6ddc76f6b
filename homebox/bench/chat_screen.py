"""Does the whole chat screen keep up with a fast model, and what does it cost while nothing happens?

    python -m homebox.bench.chat_screen [--size 80x24,140x40] [--parts writing,stop,open,idle] [--markdown]

`homebox chat` in a process of its own on a pty, against a daemon in another with the scripted engine; so it runs from a
checkout. Shares of a core are processor time of all threads of the chat's process. Keys, stops and openings are wall
time at the other end of the pty: from the bytes of the key to the bytes that draw what it asks for. What a drawing costs
is measured inside: processor time of the screen's thread from an arrival until the painted lines are with the driver.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from homebox.bench import screen, scripted
from homebox.bench.figures import median, percentile
from homebox.bench.screen import Row, answer, fenced, listed, report, words
from homebox.bench.terminal import Terminal, running
from homebox.client.connection import Daemon
from homebox.wire.chats import EXPORT_VERSION, ExportedChat, ExportedMessage

COMMAND = [sys.executable, "-c", "from homebox.cli.main import main; main()", "chat"]
TIMED = [sys.executable, "-m", "homebox.bench.timed_chat"]
RATE = screen.TOKENS_S
KEYS = [chr(code) for code in range(0x100, 0x17F) if chr(code).isalpha()]  # that no answer says
KEY_EVERY_S = 0.15
LAST_WORDS = "This is the end of it."
OLD_MESSAGES, LAST_OF_OLD = 500, "the last of five hundred"
_BESIDE, _F2 = 130, b"\x1bOQ"
Size = tuple[int, int]


def writing(folder: Path, daemon: Daemon, size: Size, args: argparse.Namespace) -> list[Row]:
    """One answer at full speed, and somebody who types meanwhile."""
    text, figures = folder / "answer.md", folder / "figures.json"
    text.write_text(f"{answer(args.tokens)}\n\n{LAST_WORDS}\n")
    with running(
        [*TIMED, str(figures), *_chat(f"[[read={text}]][[rate={RATE}]]")], _socket(daemon), size
    ) as chat:
        chat.shows("writing")
        began, cpu, written = time.monotonic(), chat.cpu_s(), chat.size
        keys_ms = _type_until(chat, LAST_WORDS)
        seconds, share = time.monotonic() - began, (chat.cpu_s() - cpu) / (time.monotonic() - began)
        written = chat.size - written
        chat.wait(1.0)  # the answer's end is drawn
        chat.write(b"\x15\x04")  # nothing typed, and away
        chat.ends()
    made = json.loads(figures.read_text())
    drawings: list[float] = made["drawings_ms"]
    tenth = max(1, len(drawings) // 10)
    first, last = sum(drawings[:tenth]) / tenth, sum(drawings[-tenth:]) / tenth
    p50, p95, p99 = (percentile(drawings, q) for q in (0.5, 0.95, 0.99))
    key50, key95 = percentile(keys_ms, 0.5), percentile(keys_ms, 0.95)
    return [
        Row(f"one chat at {RATE} tok/s, {args.tokens} tokens, somebody types", "25 %", f"{share:.1%} of a core for {seconds:.0f} s", share <= 0.25),
        Row("a drawing, p95", "12 ms", f"{p95:.1f} ms (p50 {p50:.1f}, p99 {p99:.1f}, {len(drawings)} of them)", p95 <= 12),
        Row("its last tenth of drawings against its first", "2 x", f"{last / first:.2f} x ({first:.1f} to {last:.1f} ms)", last <= 2 * first),
        Row("key to painted character meanwhile, p95", "50 ms", f"{key95:.0f} ms (p50 {key50:.0f}, {len(keys_ms)} keys)", key95 <= 50),
        Row("bytes for the terminal", "", f"{written / 1024 / seconds:.0f} KiB/s"),
        Row("memory at its end", "", f"{made['resident_mib']:.0f} MiB"),
    ]  # fmt: skip


def _type_until(chat: Terminal, end: str) -> list[float]:
    """A key every now and then, until the answer is there. How long each took to its character."""
    keys_ms: list[float] = []
    number = 0
    while not chat.has_shown(end):
        key = KEYS[number % len(KEYS)]
        number += 1
        began = time.monotonic()
        chat.write(key.encode())
        while not chat.has_shown(key) and not chat.has_shown(end):
            chat.read(0.05)
            if time.monotonic() - began > 10:
                raise SystemExit(f"the key {key!r} was never painted")
        keys_ms.append((time.monotonic() - began) * 1e3)
        if number % 40 == 0:
            chat.write(b"\x15")  # the line is emptied
        if not chat.has_shown(end):
            chat.forget()
        chat.wait(KEY_EVERY_S)
    chat.forget()
    return keys_ms


def stopping(folder: Path, daemon: Daemon, size: Size, args: argparse.Namespace) -> list[Row]:
    """From the key to the words that say so."""
    stops_ms = []
    with running([*COMMAND], _socket(daemon), size) as chat:
        chat.shows("Ask something")
        for number in range(args.rounds):
            chat.write(f"[[forever]][[rate={RATE}]] {number}\r".encode())
            chat.shows("writing")
            chat.wait(0.7 + random.Random(number).random() / 2)
            chat.forget()
            began = time.monotonic()
            chat.write(b"\x1b")
            stops_ms.append((chat.shows("stopped by you") - began) * 1e3)
            chat.wait(0.3)
    p50, p95 = percentile(stops_ms, 0.5), percentile(stops_ms, 0.95)
    return [Row("Esc to `stopped by you` on the screen, p95", "150 ms", f"{p95:.0f} ms (p50 {p50:.0f}, {len(stops_ms)} times)", p95 <= 150)]  # fmt: skip


def opening(folder: Path, daemon: Daemon, size: Size, args: argparse.Namespace) -> list[Row]:
    """A long chat: from Enter in the list, and from the start of the process."""
    took_ms, cpu_ms = [], []
    with running([*COMMAND], _socket(daemon), size) as chat:
        chat.shows("Ask something")
        for _ in range(args.rounds):
            chat.wait(0.3)
            if size[0] >= _BESIDE:  # the list is there already: hide it, and have it back with the focus
                chat.write(_F2)
                chat.wait(0.3)
                chat.forget()
            chat.write(_F2)
            chat.shows("five hundred")
            chat.wait(0.3)
            began, cpu = time.monotonic(), chat.cpu_s()
            chat.write(b"\r")
            took_ms.append((chat.shows(LAST_OF_OLD) - began) * 1e3)
            chat.wait(0.5)
            cpu_ms.append((chat.cpu_s() - cpu) * 1e3)
            chat.write(b"/new\r")
            chat.shows("Ask something")
    starts_ms, starts_cpu = [], []
    for _ in range(args.starts):
        began = time.monotonic()
        with running([*COMMAND, "-c"], _socket(daemon), size) as chat:
            starts_ms.append((chat.shows(LAST_OF_OLD) - began) * 1e3)
            starts_cpu.append(chat.cpu_s() * 1e3)
    took = median(took_ms)
    return [
        Row(f"open a chat of {OLD_MESSAGES} messages: Enter to its last lines", "300 ms", f"{took:.0f} ms (best {min(took_ms):.0f}, {median(cpu_ms):.0f} CPU with what follows)", took <= 300),
        Row("`homebox chat -c`: process start to its last lines", "", f"{median(starts_ms):.0f} ms (best {min(starts_ms):.0f}, {median(starts_cpu):.0f} CPU)"),
    ]  # fmt: skip


def idling(folder: Path, daemon: Daemon, size: Size, args: argparse.Namespace) -> list[Row]:
    """A conversation is open, and nobody does anything."""
    with running([*COMMAND, "-c"], _socket(daemon), size) as chat:
        chat.shows(LAST_OF_OLD)
        chat.wait(4.0)
        began, cpu, written = time.monotonic(), chat.cpu_s(), chat.size
        chat.wait(args.seconds)
        took = time.monotonic() - began
        share, written, resident = (chat.cpu_s() - cpu) / took, chat.size - written, chat.resident_mib()
    return [
        Row("nothing happens", "0.5 %", f"{share:.2%} of a core for {took:.0f} s, {written / took:.0f} bytes/s", share <= 0.005),
        Row("memory meanwhile", "", f"{resident:.0f} MiB"),
    ]  # fmt: skip


PARTS: dict[str, Callable[[Path, Daemon, Size, argparse.Namespace], list[Row]]] = {
    "writing": writing,
    "stop": stopping,
    "open": opening,
    "idle": idling,
}


def _chat(first: str) -> list[str]:
    return ["--first", first]


def _socket(daemon: Daemon) -> Path:
    assert daemon.socket_path is not None
    return daemon.socket_path


def remember(daemon: Daemon) -> None:
    """A conversation of many messages, the newest there is."""
    said = []
    for number in range(OLD_MESSAGES):
        role, text = "user", words(6, number)
        if number % 2:
            role, text = "assistant", f"## Answer {number}\n\n{words(25, number)}\n\n{listed(4)}{fenced(8)}"
        if number == OLD_MESSAGES - 1:
            text += LAST_OF_OLD
        parent = f"old-{number - 1}" if number else None
        said.append(ExportedMessage(id=f"old-{number}", role=role, text=text, parent=parent, created=1e9 + number))  # type: ignore[arg-type]  # fmt: skip
    now = time.time()
    whole = ExportedChat(
        homebox_chat=EXPORT_VERSION, id="old", title="five hundred", titled=True, created=now, updated=now + 3600,
        head=said[-1].id, messages=said,
    )  # fmt: skip
    daemon.json("POST", "/homebox/chats/import", whole)


def measure(args: argparse.Namespace) -> list[Row]:
    rows = []
    wanted = args.parts.split(",") if args.parts else list(PARTS)
    with tempfile.TemporaryDirectory(prefix="homebox-bench-") as name:
        folder = Path(name)
        scripted.prepare(folder)
        with scripted.serving(folder) as (daemon, _):
            remember(daemon)
            for size in args.size.split(","):
                columns, _, lines = size.partition("x")
                for part in wanted:
                    for row in PARTS[part](folder, daemon, (int(columns), int(lines)), args):
                        rows.append(Row(f"{size}: {row.what}", row.budget, row.measured, row.kept))
    return rows


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="80x24,140x40", help="of the terminal, one measurement each")
    parser.add_argument("--parts", default="", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--tokens", type=int, default=4000, help="of the answer that is written")
    parser.add_argument("--rounds", type=int, default=20, help="of stopping and of opening")
    parser.add_argument("--starts", type=int, default=5, help="of the process")
    parser.add_argument("--seconds", type=float, default=30.0, help="in which nothing happens")
    parser.add_argument("--markdown", action="store_true", help="print the report as a Markdown table")
    return parser.parse_args(argv)


def main() -> None:
    args = arguments()
    print(report(measure(args), markdown=args.markdown))


if __name__ == "__main__":
    main()
