"""How is a line typed on a terminal, while answers are written to the same terminal?

The terminal is ours from the first prompt to the last: a thread reads it all the time, so that Ctrl-C always gets
through, nothing that is typed while an answer is written is lost, and none of it shows up in the answer. Editing is by
`Line`; a paste of several lines is one item of the line and waits for Enter like the rest. It knows no conversation.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import queue
import select
import shutil
import signal
import sys
import termios
import threading
import time
from collections import deque
from itertools import takewhile
from types import FrameType
from typing import Any

from homebox.cli.columns import cells
from homebox.cli.keys import PASTE_OFF, PASTE_ON, QUIET_S, Key, Keys, Paste
from homebox.cli.terminal import is_dumb
from homebox.client.sanitise import clean
from homebox.errors import UsageError

HANG_UP = "hang-up"  # the terminal is gone


class Line:
    """What stands behind the prompt: items of one character, or of one paste of several lines."""

    def __init__(self) -> None:
        self.items: list[str] = []
        self.cursor = 0

    @property
    def text(self) -> str:
        return "".join(self.items)

    def shown(self, end: int | None = None) -> str:
        """The line as it is drawn, without a newline; up to item `end`."""
        return "".join(_shown(item) for item in self.items[:end])

    def paste(self, text: str) -> None:
        text = text.strip("\n")
        self.insert([text] if "\n" in text else list(text))

    def insert(self, items: list[str]) -> None:
        self.items[self.cursor : self.cursor] = items
        self.cursor += len(items)

    def replace(self, items: list[str]) -> None:
        self.items, self.cursor = list(items), len(items)

    def press(self, key: str) -> None:
        """Edit as the key says; one that means nothing here changes nothing."""
        at, end = self.cursor, len(self.items)
        if key == "backspace":
            self._cut(at - 1, at)
        elif key == "delete":
            self._cut(at, at + 1)
        elif key == "kill-line":
            self._cut(0, at)
        elif key == "kill-word":
            before = self._text_before().rstrip()
            self._cut(len(before) - len(before.rpartition(" ")[2]), at)
        elif key in ("left", "right", "home", "end"):
            self.cursor = {"left": max(0, at - 1), "right": min(end, at + 1), "home": 0, "end": end}[key]
        elif len(key) == 1 and (key == "\t" or key >= " "):
            self.insert([key])

    def _text_before(self) -> str:
        """One character an item, so that places in it are places in the line."""
        return "".join(item if len(item) == 1 else "#" for item in self.items[: self.cursor])

    def _cut(self, begin: int, end: int) -> None:
        begin = max(0, begin)
        del self.items[begin:end]
        self.cursor = min(begin, len(self.items))


class Keyboard:
    """Use as a context for the whole conversation. `read_line` gives a line; Ctrl-C there is a KeyboardInterrupt."""

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno()
        self._plain = is_dumb()  # no cursor movement: editing at the end only
        self._pieces: queue.SimpleQueue[tuple[bytes, float] | None] = queue.SimpleQueue()
        # What is typed has the terminal's encoding; UTF-8 holds ASCII, so it does where the locale says nothing.
        encoding = codecs.lookup(sys.stdin.encoding).name
        self._encoding = "utf-8" if encoding == "ascii" else encoding
        self._keys = Keys(self._encoding)
        self._pending: deque[Key] = deque()
        self._history: list[list[str]] = []
        self._browsing = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Keyboard:
        self._modes = termios.tcgetattr(self._fd)
        self._wake_read, self._wake_write = os.pipe()
        handlers = {
            signal.SIGINT: self._on_interrupt,
            signal.SIGTSTP: self._on_suspend,
            signal.SIGCONT: self._on_continue,
        }
        self._before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        self._take()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._wake_write)
        self._thread.join()
        os.close(self._wake_read)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._give_back()

    def read_line(self, prompt: str, *, offer: bool = False) -> str | None:
        """A line, None at the end of input. What was typed before counts; with `offer` it only stands there, to be
        sent or taken back. Raises UsageError for a line that is not text."""
        line, drawing = Line(), _Drawing(prompt, plain=self._plain)
        if offer:
            self._offer(line)
        drawing.draw(line)
        self._browsing = len(self._history)
        while (key := self._next(line, drawing)) != "enter":
            if key == HANG_UP or (key == "end-of-input" and not line.items):
                _put("\n")
                return None
            if key == "redraw":
                drawing.begin_again()
            else:
                self._apply(key, line)
        line.cursor = len(line.items)
        drawing.draw(line)
        _put("\n")
        if line.items and line.items not in self._history[-1:]:
            self._history.append(line.items)
        if any("\ud800" <= char <= "\udfff" for char in line.text):
            raise UsageError(f"that line is not {self._encoding} text and was not sent")
        return line.text

    def _apply(self, key: Key, line: Line) -> None:
        if isinstance(key, Paste):
            line.paste(clean(key.text))
        elif key in ("up", "down"):
            step = 1 if key == "down" else -1
            self._browsing = min(max(self._browsing + step, 0), len(self._history))
            line.replace(self._history[self._browsing] if self._browsing < len(self._history) else [])
        elif key == "end-of-input":
            line.press("delete")
        elif not self._plain or key not in ("left", "right", "home", "end"):
            line.press(key)

    def _offer(self, line: Line) -> None:
        """Put what was typed until now into the line, several lines as one paste."""
        while not self._pieces.empty():
            if (piece := self._pieces.get()) is not None:
                self._pending += self._keys.feed(*piece) if piece[0] else [HANG_UP]
        self._pending += self._keys.pause()
        while self._pending and self._pending[0] != HANG_UP:
            key = self._pending.popleft()
            if key == "enter":
                line.insert(["\n"])
            elif isinstance(key, Paste):
                line.insert(list(clean(key.text)))
            elif key not in ("up", "down", "end-of-input"):
                line.press(key)
        text = line.text
        line.replace([])
        line.paste(text)

    def _next(self, line: Line, drawing: _Drawing) -> Key:
        """The next key; the line is drawn before it is waited for. Raises KeyboardInterrupt at a Ctrl-C."""
        while not self._pending:
            if self._pieces.empty():
                drawing.draw(line)
            try:
                piece = self._pieces.get(timeout=QUIET_S if self._keys.in_burst else None)
            except queue.Empty:
                self._pending += self._keys.pause()
                continue
            if piece is None:  # Ctrl-C
                self._keys.interrupt()
                raise KeyboardInterrupt
            self._pending += self._keys.feed(*piece) if piece[0] else [HANG_UP]
        return self._pending.popleft()

    def _listen(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, self._before)  # they are the main thread's
        with contextlib.suppress(OSError):
            while self._wake_read not in select.select([self._fd, self._wake_read], [], [])[0]:
                if not (data := os.read(self._fd, 65536)):
                    break
                self._pieces.put((data, time.monotonic()))
        self._pieces.put((b"", 0.0))

    def _take(self) -> None:
        """Keys one by one and unseen; Ctrl-C and Ctrl-Z still signal, and throw nothing away."""
        modes = termios.tcgetattr(self._fd)
        modes[0] &= ~termios.ICRNL
        modes[3] = modes[3] & ~(termios.ICANON | termios.ECHO | termios.IEXTEN) | termios.NOFLSH
        modes[6][termios.VMIN], modes[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self._fd, termios.TCSADRAIN, modes)
        if not self._plain:
            _tell(PASTE_ON)

    def _give_back(self) -> None:
        with contextlib.suppress(OSError, termios.error):  # the terminal is gone
            if not self._plain:
                _tell(PASTE_OFF)
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._modes)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        self._pieces.put(None)

    def _on_suspend(self, number: int, frame: FrameType | None) -> None:
        self._give_back()
        signal.raise_signal(signal.SIGSTOP)

    def _on_continue(self, number: int, frame: FrameType | None) -> None:
        self._take()
        self._pieces.put((b"\x0c", time.monotonic()))


class _Drawing:
    """The prompt and the line on the screen. What grows at its end is only written on; the rest is drawn again."""

    def __init__(self, prompt: str, *, plain: bool) -> None:
        self._prompt = prompt
        self._plain = plain
        self._drawn = ""
        self._cursor = ""  # what stands before the cursor

    def begin_again(self) -> None:
        _put("\n" if self._plain else "\r\x1b[J")
        self._drawn = self._cursor = ""

    def draw(self, line: Line) -> None:
        whole, before = self._prompt + line.shown(), self._prompt + line.shown(line.cursor)
        if (whole, before) == (self._drawn, self._cursor):
            return
        columns = shutil.get_terminal_size((80, 24)).columns or 80
        if self._cursor == self._drawn and before == whole and whole.startswith(self._drawn):
            _put(whole[len(self._drawn) :] + _wrap(whole, columns))
        elif self._plain:
            same = sum(
                1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(whole, self._drawn, strict=False))
            )
            _put("\b \b" * _place(self._drawn[same:], 1 << 30)[1] + whole[same:])
        else:
            _put(_up(_place(self._cursor, columns)[0]) + "\r\x1b[J" + whole + _wrap(whole, columns))
            row, column = _place(before, columns)
            _put(_up(_place(whole, columns)[0] - row) + "\r" + (f"\x1b[{column}C" if column else ""))
        self._drawn, self._cursor = whole, before


def _shown(item: str) -> str:
    if "\n" in item:
        return f"[{item.count(chr(10)) + 1} lines pasted]"
    return " " if item == "\t" else clean(item)


def _place(text: str, columns: int) -> tuple[int, int]:
    """Row and column behind `text`, which began at the left edge."""
    row = column = 0
    for char in text:
        wide = cells(char)
        if column + wide > columns:
            row, column = row + 1, 0
        column += wide
    return (row + 1, 0) if column >= columns else (row, column)


def _wrap(text: str, columns: int) -> str:
    """A terminal waits with the next row until something is written there; do it now."""
    return "\n" if text and _place(text, columns)[1] == 0 else ""


def _up(rows: int) -> str:
    return f"\x1b[{rows}A" if rows else ""


def _tell(sequence: str) -> None:
    """To the terminal, past what is buffered: a signal may come in the middle of writing that."""
    os.write(sys.stdout.fileno(), sequence.encode("ascii"))


def _put(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
