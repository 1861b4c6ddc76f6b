"""How long until a paste of a megabyte stands in the prompt, and how long does the next key take?

    python -m homebox.bench.prompt_paste [--bytes 1048576] [--rounds 5]

The prompt runs on a pty of its own, with the driver that people have; measured at the other end of it: from the first
byte of a bracketed paste to the painted chip, and from a key after it to the painted letter. Medians of the rounds.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence

from homebox.bench.figures import median

DEADLINE_S = 60.0
_LINE = "a line of an ordinary document, pasted\r"
_CHILD = """
from textual.app import App
from homebox.tui import pasted
from homebox.tui.prompt.prompt import Prompt
class Only(App):
    def compose(self):
        yield Prompt()
    def on_mount(self):
        self.query_one(Prompt).focus()
pasted.install()
Only().run()
"""


def painted(master: int, data: bytes, sign: str) -> float:
    """Write `data`, and the seconds until `sign` was written back."""
    begun, seen = time.perf_counter(), ""
    while sign not in seen:
        if time.perf_counter() - begun > DEADLINE_S:
            raise SystemExit(f"{sign!r} did not come")
        readable, writable, _ = select.select([master], [master] if data else [], [], 0.1)
        if readable:
            seen += os.read(master, 65536).decode(errors="replace")
        if writable and data:
            data = data[os.write(master, data[:4096]) :]
    return time.perf_counter() - begun


def one_round(size: int) -> tuple[float, float]:
    """Seconds for the paste and for the key after it."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD], stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    )
    try:
        painted(master, b"", "\x1b[?2004h")  # it asks for bracketed pastes
        painted(master, b"q", "q")
        text = (_LINE * (size // len(_LINE) + 1))[:size]
        paste = painted(master, f"\x1b[200~{text}\x1b[201~".encode(), "pasted ")
        return paste, painted(master, b"Z", "Z")
    finally:
        child.kill()
        child.wait()
        os.close(slave)
        os.close(master)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bytes", type=int, default=1 << 20)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args(argv)
    pastes, keys = zip(*(one_round(args.bytes) for _ in range(args.rounds)), strict=True)
    print(
        f"paste of {args.bytes:,} bytes: {median(list(pastes)) * 1e3:.0f} ms (worst {max(pastes) * 1e3:.0f} ms)"
    )
    print(f"the key after it: {median(list(keys)) * 1e3:.0f} ms (worst {max(keys) * 1e3:.0f} ms)")


if __name__ == "__main__":
    main()
