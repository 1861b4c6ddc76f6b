"""Which key does what on the screens, and what has the person made of it?

One table. Every row has an id, so that `[keys]` in the person's configuration can give it other keys; help, footer and
palette are made of the same rows. Avoided on purpose: the prefixes of multiplexers (Ctrl-A, Ctrl-B), keys that terminals
take for others (Ctrl-H, Ctrl-I, Ctrl-M, Ctrl-[), flow control (Ctrl-S), F1 and F11. It knows no widgets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from textual.binding import Binding
from textual.keys import key_to_character

from homebox.errors import UsageError

Where = Literal["screen", "prompt", "message", "chats", "dialog", "monitor"]
_WORDS = {
    "escape": "Esc",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "slash": "/",
    "backslash": "\\",
    "at": "@",
    "minus": "-",
    "plus": "+",
    "underscore": "_",
}


@dataclass(frozen=True)
class Key:
    """`action` is the textual action it runs where it is bound; `short` is its word in the footer, if it has one."""

    id: str
    keys: str  # comma-separated, as textual names them
    action: str
    about: str
    short: str = ""
    priority: bool = False  # also while somebody types


TABLE: Mapping[Where, tuple[Key, ...]] = {
    "screen": (
        Key("palette", "ctrl+p", "app.command_palette", "everything that can be done", "palette", True),
        Key("new", "ctrl+n", "wish('/new')", "a new conversation", "new", True),
        Key("search", "ctrl+r", "wish('/search')", "search all conversations", "search", True),
        Key("chats", "f2", "wish('/chats')", "your conversations", "chats", True),
        Key("monitor", "f3", "wish('/top')", "watch the box", "monitor", True),
        Key("panel", "f4", "wish('/panel')", "figures of this conversation and the house", "", True),
        Key("model", "ctrl+t", "wish('/model')", "the model that answers", "", True),
        Key("thinking", "ctrl+o", "wish('/thinking')", "show or fold thoughts", "", True),
        Key("stop", "escape", "stop", "stop the answer and keep it, or withdraw the question"),
        Key(
            "interrupt",
            "ctrl+c",
            "interrupt",
            "copy what is selected, else stop, else clear, else leave",
            "",
            True,
        ),
        Key("bottom", "end", "bottom", "to the newest line"),
        Key("page-up", "pageup", "page_up", "a page up", "", True),
        Key("page-down", "pagedown", "page_down", "a page down", "", True),
        Key("help", "question_mark", "wish('/help')", "every key", "help"),
        Key("quit", "ctrl+q", "wish('/quit')", "leave; an answer that is being written goes on", "", True),
    ),
    "prompt": (
        Key("send", "enter", "send", "send"),
        Key("newline", "ctrl+j,shift+enter,alt+enter", "newline", "a new line"),
        Key("editor", "ctrl+g", "editor", "write in $EDITOR"),
        Key("prompt-undo", "ctrl+underscore", "undo", "take back what was typed last"),
        Key("prompt-redo", "ctrl+y", "redo", "have it again"),
        Key("leave", "ctrl+d", "leave_if_empty", "leave, where nothing is typed"),
    ),
    "message": (
        Key("message-down", "j,down", "screen.move(1)", "the next message"),
        Key("message-up", "k,up", "screen.move(-1)", "the message before"),
        Key("message-leave", "i,enter", "screen.to_prompt", "back to what you type"),
        Key("message-command", "slash", "screen.to_prompt('/')", "a command"),
        Key("message-first", "g", "screen.move(-100000)", "the first message"),
        Key("message-last", "G", "screen.move(100000)", "the last message"),
        Key("copy", "y", "want('copy')", "copy the message"),
        Key("copy-code", "Y", "want('copy_code')", "copy its code; again: the next block"),
        Key("edit", "e", "screen.from_message('edit')", "change the question, in a branch"),
        Key("regenerate", "r", "screen.from_message('regenerate')", "answer again, beside this answer"),
        Key("continue", "c", "screen.from_message('continue')", "go on with a cut-off answer"),
        Key("branch-left", "left_square_bracket", "want('branch', -1)", "the branch before"),
        Key("branch-right", "right_square_bracket", "want('branch', 1)", "the next branch"),
        Key("fold", "space", "want('fold')", "fold or unfold"),
        Key("delete", "d", "screen.from_message('delete')", "delete the message and what follows it"),
        Key("undo", "u", "want('undo')", "have it back"),
        Key("export", "x", "want('export')", "write the conversation to a file"),
        Key("branch-off", "b", "want('branch_off')", "go on from here in a conversation of its own"),
    ),
    "chats": (
        Key("chats-down", "j", "cursor_down", "the next conversation"),
        Key("chats-up", "k", "cursor_up", "the one before"),
        Key("chats-rename", "r", "rename", "give it a name"),
        Key("chats-delete", "d", "delete", "delete it; for seven days it can be had back"),
        Key("chats-undo", "u", "undo", "have back what was deleted last"),
        Key("chats-export", "x", "export", "write it to a file"),
        Key("chats-search", "slash", "search", "find by words"),
    ),
    "dialog": (
        Key("dialog-close", "escape", "close", "close what stands over the screen"),
        Key("dialog-yes", "y", "yes", "yes"),
        Key("dialog-no", "n", "no", "no"),
        Key("dialog-keep", "f8,ctrl+enter", "keep", "keep what was written"),
    ),
    "monitor": (
        Key("monitor-down", "j,down", "move(1)", "the next stream"),
        Key("monitor-up", "k,up", "move(-1)", "the stream before"),
        Key("monitor-page-down", "pagedown", "move(10)", "ten streams down"),
        Key("monitor-page-up", "pageup", "move(-10)", "ten streams up"),
        Key("monitor-first", "home", "move(-100000)", "the first stream"),
        Key("monitor-last", "end", "move(100000)", "the last stream"),
        Key("monitor-cancel", "x", "cancel", "stop this stream, after a question", "cancel"),
        Key("monitor-detail", "enter", "detail", "everything known of this stream", "detail"),
        Key("monitor-sort", "s", "sort", "sort by the next column", "sort"),
        Key("monitor-reverse", "S", "reverse", "sort the other way round"),
        Key("monitor-filter", "slash", "filter", "show only some: user=dad tok_s<10 state=decode", "filter"),
        Key("monitor-mine", "u", "mine", "only yours, or everybody's", "mine"),
        Key("monitor-pause", "p", "pause", "hold the picture, or go on", "pause"),
        Key("monitor-map", "m", "map", "who holds the KV memory", "kv map"),
        Key("monitor-graphs", "g", "graphs", "the last five minutes as graphs"),
        Key("monitor-slower", "plus", "interval(1)", "a new picture less often"),
        Key("monitor-faster", "minus", "interval(-1)", "a new picture more often"),
        Key("monitor-help", "question_mark", "help", "every key", "help"),
        Key("monitor-close", "escape", "close", "close what is open"),
        Key("monitor-back", "q", "back", "back", "back"),
    ),
}


def bindings(where: Where) -> list[Binding]:
    """The rows of one place as textual wants them, with their first keys."""
    return [
        Binding(
            key.keys,
            key.action,
            key.short or key.about,
            show=bool(key.short),
            id=key.id,
            priority=key.priority,
        )
        for key in TABLE[where]
    ]


def in_words(keys: str) -> str:
    """How the first of these keys is said to a person: `Ctrl-P`, `F2`, `?`."""
    *held, key = next(iter(_split(keys)), "").split("+")
    character = key_to_character(key) or ""
    word = _WORDS.get(key) or (character if character.strip() else key.capitalize())
    return "-".join(
        [*(each.capitalize() for each in held), word.upper() if held and len(word) == 1 else word]
    )


def checked(wanted: Mapping[str, str]) -> dict[str, str]:
    """A person's `[keys]` table. Raises UsageError for an id that nothing has, or one key for two things of a place."""
    known = {key.id for row in TABLE.values() for key in row}
    for name in wanted:
        if name not in known:
            raise UsageError(f"[keys]: there is no {name!r}", hint=f"There are: {', '.join(sorted(known))}.")
    for where, row in TABLE.items():
        taken: dict[str, str] = {}
        for key in row:
            for each in _split(wanted.get(key.id, key.keys)):
                if each in taken:
                    raise UsageError(
                        f"[keys]: {each} would be both {taken[each]} and {key.id} ({where})",
                        hint="Give one of them another key.",
                    )
                taken[each] = key.id
    return dict(wanted)


def _split(keys: str) -> Iterable[str]:
    return (each.strip() for each in keys.split(",") if each.strip())
