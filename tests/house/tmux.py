"""Real terminals with shells in them, for tests that do what a person does: press keys, and look until something is there.

One tmux server of its own per `Terminals`, with no configuration and no environment but what is given. What is looked
for is waited for; nothing sleeps for a time that should be enough.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

DEADLINE_S = 240.0
LOOK_S = 0.05


class Pane:
    """One terminal. `screen` is what stands on it now."""

    def __init__(self, tmux: Callable[..., str], name: str) -> None:
        self._tmux, self._name, self._ran = tmux, name, 0

    def press(self, *keys: str) -> None:
        """By tmux's names, one after the other: an Escape with a key right behind it would be another key."""
        for key in keys:
            self._tmux("send-keys", "-t", self._name, key)
            if key == "Escape":
                time.sleep(0.2)  # no hand is faster; programs take what comes within half of it for one key

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-t", self._name, "-l", text)

    def says(self, text: str) -> None:
        """Type it, and Enter once it stands there: the terminal is asked, and not believed to be quick."""
        self.type(text)
        self.sees(text[-20:])
        self.press("Enter")

    def runs(self, command: str) -> None:
        """A line for the shell, and its prompt again."""
        self._ran += 1
        self.type(f"clear; {command}; echo done-{self._ran}-$?")
        self.press("Enter")
        self.until(lambda: f"done-{self._ran}-0" in self.screen.splitlines(), "the command's end")

    def paste(self, text: str, folder: Path) -> None:
        """As a terminal pastes: between the marks of a bracketed paste."""
        file = folder / "paste.txt"
        file.write_text(text, encoding="utf-8")
        self._tmux("load-buffer", "-b", "test", str(file))
        self._tmux("paste-buffer", "-p", "-d", "-b", "test", "-t", self._name)

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-t", self._name, "-x", str(width), "-y", str(height))

    @property
    def screen(self) -> str:
        return self._tmux("capture-pane", "-p", "-t", self._name)

    @property
    def escapes(self) -> str:
        """The same with its colours."""
        return self._tmux("capture-pane", "-p", "-e", "-t", self._name)

    @property
    def pid(self) -> int:
        """Of the shell."""
        return int(self._tmux("display-message", "-p", "-t", self._name, "#{pane_pid}"))

    def sees(self, *words: str, within_s: float = DEADLINE_S) -> str:
        """The screen as soon as all of these stand on it, on one line or on several."""
        return self.until(
            lambda: all(_on(self.screen, each) for each in words), " and ".join(words), within_s
        )

    def misses(self, words: str) -> str:
        """The screen as soon as these are gone."""
        return self.until(lambda: not _on(self.screen, words), f"{words} to go")

    def until(self, condition: Callable[[], object], what: str, within_s: float = DEADLINE_S) -> str:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"waited for {what}; the screen is\n{self.screen}"
            time.sleep(LOOK_S)
        return self.screen


def _on(screen: str, words: str) -> bool:
    return words in screen or words in " ".join(screen.split())


class Terminals:
    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._socket, self._environ, self._count = folder / "tmux", dict(environ), 0

    def open(self, width: int = 80, height: int = 24, **environ: str) -> Pane:
        """A new one, with a shell that knows jobs. `environ` comes on top."""
        self._count += 1
        name = f"p{self._count}"
        shell = ["bash", "--norc", "--noprofile", "-i"]
        given = [f"{key}={value}" for key, value in environ.items()]
        size = ["-x", str(width), "-y", str(height)]
        self.tmux("new-session", "-d", "-s", name, *size, "env", *given, *shell)
        pane = Pane(self.tmux, name)
        pane.sees("$")
        return pane

    def tmux(self, *words: str) -> str:
        command = ["tmux", "-S", str(self._socket), "-f", os.devnull, *words]
        done = subprocess.run(command, capture_output=True, text=True, env=self._environ, timeout=60)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def close(self) -> None:
        subprocess.run(
            ["tmux", "-S", str(self._socket), "kill-server"], capture_output=True, env=self._environ
        )


@contextmanager
def terminals(environ: Mapping[str, str]) -> Iterator[Terminals]:
    folder = Path(tempfile.mkdtemp(prefix="homebox-"))  # short: the name of a socket must be
    found = Terminals(folder, environ)
    try:
        yield found
    finally:
        found.close()
        shutil.rmtree(folder, ignore_errors=True)
