"""What does a `kill -9` of the daemon take with it? A part of `attached.py`.

The scripted engine says the time of day, again and again; so the last time that is in the chat afterwards says how much
of the answer is lost. The reader is one of our own, comes back by itself, and must have seen every time once.
"""

from __future__ import annotations

import random
import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from homebox.bench import scripted
from homebox.client import chats, stream
from homebox.client.connection import Daemon
from homebox.client.state import ChatState

RATE = 50
OTHERS = 3
BACK_EVERY_S = 0.05
_ORDER = f"[[forever]][[clock]][[rate={RATE}]]"
_TIMES = re.compile(r"(\d{16}) ")  # microseconds


@dataclass
class Kill:
    lost_ms: float
    wrong: str  # what is not as it should be


def one(folder: Path, number: int) -> Kill:
    """Kill a daemon at any moment of an answer, start another one on the same state, and look."""
    chat = f"kill-{number}"
    seen = [ChatState()]
    with scripted.serving(folder) as (daemon, process):
        turn = scripted.say(daemon, chat, _ORDER).turn
        for other in range(OTHERS):
            scripted.say(daemon, f"{chat}-{other}", f"[[forever]][[rate={RATE}]]")
        reader = threading.Thread(target=_follow, args=(daemon, turn, seen))
        reader.start()
        scripted.until(lambda: seen[0].text)
        time.sleep(0.5 + random.Random(number).random())
        killed_us = time.time_ns() // 1000
        scripted.kill(process)
    with scripted.serving(folder) as (daemon, _):
        reader.join(scripted.WITHIN_S)
        kept = chats.show(daemon, chat).messages[-1]
    times = [int(found) for found in _TIMES.findall(kept.content)]
    return Kill((killed_us - times[-1]) / 1000, _wrong(kept.content, seen[0], (kept.state, kept.detail)))


def _follow(daemon: Daemon, turn: str, seen: list[ChatState]) -> None:
    for state, _ in stream.follow(
        daemon, turn, delays=(BACK_EVERY_S,) * int(scripted.WITHIN_S / BACK_EVERY_S)
    ):
        seen[0] = state


def _wrong(kept: str, read: ChatState, how: tuple[str, str]) -> str:
    if how != ("stopped", "daemon restarted"):
        return f"it says {how}"
    if read.finished is None or read.finished.detail != "daemon restarted":
        return "the reader was not told"
    if not (read.text.startswith(kept) or kept.startswith(read.text)):
        return "the reader has seen something else than what is kept"
    for text in (kept, read.text):
        times = _TIMES.findall(text)
        if times != sorted(set(times)) or not f"{''.join(f'{each} ' for each in times)}".startswith(
            text[:-13]
        ):
            return "something is there twice, or in pieces"
    return ""
