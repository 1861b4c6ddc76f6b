"""How does a text reach the clipboard of the person who looks at this terminal, and how did it?

The tool of the desktop where there is one, tmux where it holds the terminal, else the terminal itself by its escape
sequence (OSC 52), else a file. What was done is said in words, since nobody can see a clipboard. It draws nothing; what
goes to the terminal goes through the function that is given.
"""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import platformdirs

from homebox.client import documents
from homebox.client.sanitise import clean

MAX_OSC_BYTES = 74 * 1024  # of text: terminals and multiplexers take some 100,000 characters of base64
_TOOL_S = 2.0  # a display that is gone lets its tool wait for ever
_SCREEN_PIECE = 512  # screen takes 768 bytes in one control string
_WITHOUT_OSC = ("dumb", "linux", "")


async def copy(
    text: str,
    write: Callable[[str], None],
    *,
    environ: Mapping[str, str] = os.environ,
    platform: str = sys.platform,
    folder: Path | None = None,
) -> str:
    """Copy, and say how. `write` writes to the terminal, as the driver of the screen does; never raises."""
    text = clean(text)
    for words, *command in _tools(environ, platform):
        if await _fed(command, text, environ):
            return f"copied {words}"
    size = len(text.encode())
    if size > MAX_OSC_BYTES:
        why = f"{documents.in_words(size)} are more than a terminal takes"
    elif environ.get("TERM", "") in _WITHOUT_OSC:
        why = "this terminal has no clipboard"
    else:
        write(_osc52(text, environ))
        return f"copied {_route(environ)}"
    return _into_file(text, why, folder or platformdirs.user_cache_path("homebox"))


def _tools(environ: Mapping[str, str], platform: str) -> list[tuple[str, ...]]:
    """What may hand it on, the best first: how that is said, then the command. Over ssh only a display that was
    forwarded is the person's; the machine's own is somebody else's, or nobody's."""
    away = bool(environ.get("SSH_CONNECTION") or environ.get("SSH_TTY"))
    display = environ.get("DISPLAY", "")
    tools: list[tuple[str, ...]] = []
    if environ.get("WAYLAND_DISPLAY") and not away:
        tools.append(("with wl-copy", "wl-copy"))
    if display and (not away or not display.startswith(":")):
        tools.append(("with xclip", "xclip", "-selection", "clipboard", "-in"))
        tools.append(("with xsel", "xsel", "--clipboard", "--input"))
    if platform == "darwin" and not away:
        tools.append(("with pbcopy", "pbcopy"))
    if environ.get("TMUX"):
        # -w hands it on to the terminal, as tmux's own copying does; tmux before 3.2 refuses it, and passes OSC 52 on.
        tools.append(("to tmux, and by it to the terminal (set-clipboard)", "tmux", "load-buffer", "-w", "-"))
    there = [(tool, shutil.which(tool[1], path=environ.get("PATH"))) for tool in tools]
    return [(tool[0], program, *tool[2:]) for tool, program in there if program]


async def _fed(command: list[str], text: str, environ: Mapping[str, str]) -> bool:
    """Whether the command took the text and ended well. Its output goes nowhere: what xclip leaves running to serve the
    clipboard would keep a pipe open for as long."""
    nowhere = asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=nowhere, stderr=nowhere, env=dict(environ)
        )
    except OSError:
        return False
    try:
        await asyncio.wait_for(process.communicate(text.encode()), _TOOL_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        return False
    except OSError:  # it ended before it had read all
        return False
    return process.returncode == 0


def _osc52(text: str, environ: Mapping[str, str]) -> str:
    """The sequence that asks the terminal, wrapped so that a multiplexer lets it through."""
    sequence = f"\x1b]52;c;{base64.b64encode(text.encode()).decode()}\x07"
    if environ.get("TMUX"):
        return "\x1bPtmux;" + sequence.replace("\x1b", "\x1b\x1b") + "\x1b\\"
    if environ.get("STY"):
        pieces = (sequence[at : at + _SCREEN_PIECE] for at in range(0, len(sequence), _SCREEN_PIECE))
        return "".join(f"\x1bP{piece}\x1b\\" for piece in pieces)
    return sequence


def _route(environ: Mapping[str, str]) -> str:
    if environ.get("TMUX"):
        return (
            "by the terminal (OSC 52) through tmux; if it does not arrive: tmux set -g allow-passthrough on"
        )
    return "by the terminal (OSC 52)" + (" through screen" if environ.get("STY") else "")


def _into_file(text: str, why: str, folder: Path) -> str:
    """In the person's cache, readable for nobody else, and only the last one."""
    file = folder / "copied.txt"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder)  # mode 0600
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as out:
            out.write(text)
        Path(name).replace(file)
    except OSError as error:
        return f"not copied: {why}, and {file} cannot be written ({error.strerror or error})"
    return f"saved to {file}: {why}"
