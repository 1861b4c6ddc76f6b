"""What does each command of a plain conversation do?

The words and what they are for come from `client/commands.py`; here is one function for each of those that need no screen.
They change the conversation or say something about it; what fails is raised and said by `plain.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from homebox.cli import prompt as prompts
from homebox.cli.answer import stats_line
from homebox.client import chats, commands
from homebox.client.sanitise import clean, safe_json
from homebox.errors import InvalidRequest, UsageError

if TYPE_CHECKING:
    from homebox.cli.plain import Conversation, Stop

QUIT = "/quit"
LISTED = 10
_SNIPPET = 80


def _help(it: Conversation, rest: str, stop: Stop) -> None:
    for command in commands.known(on_screen=False):
        it.status(f"{f'{command.name} {command.takes}'.rstrip():16} {command.about}")
    it.status("every other line is sent; Ctrl-C stops an answer and keeps it, Ctrl-D leaves")


def _new(it: Conversation, rest: str, stop: Stop) -> None:
    it.begin_new()
    it.status("a new conversation")


def _list(it: Conversation, rest: str, stop: Stop) -> None:
    """The latest, or with an id: go on with that one."""
    if rest:
        it.go_to(chats.find(it.daemon, rest).id)
        return
    found = 0
    for row, _ in zip(chats.rows(it.daemon, page=LISTED), range(LISTED), strict=False):
        it.status(f"{row.id}  {row.title}")
        found += 1
    it.status("/chats ID goes on with one of them" if found else "there is no conversation yet")


def _search(it: Conversation, rest: str, stop: Stop) -> None:
    found = chats.search(it.daemon, _needed(rest, "/search WORDS"))[:LISTED]
    for hit in found:
        snippet = " ".join(hit.snippet.split())[:_SNIPPET]
        it.status(f"{hit.chat}  {hit.title}: {snippet}" if hit.message else f"{hit.chat}  {hit.title}")
    it.status("/chats ID goes on with one of them" if found else "nothing was found")


def _title(it: Conversation, rest: str, stop: Stop) -> None:
    it.need_words()
    chats.change(it.daemon, it.chat, title=_needed(rest, "/title TEXT"))
    it.status(f"this conversation is called: {rest}")


def _system(it: Conversation, rest: str, stop: Stop) -> None:
    """Without a text: no instruction."""
    if it.begun:
        chats.change(it.daemon, it.chat, system=rest or None)
        it.status("from the next answer on: " + (rest or "no instruction"))
    else:
        it.system = rest or None
        it.status(f"this conversation begins with: {rest}" if rest else "no instruction")


def _model(it: Conversation, rest: str, stop: Stop) -> None:
    if rest:
        it.daemon.json("GET", f"/v1/models/{quote(rest, safe='')}")  # refuses one that is not served
        it.use_model(rest)
        it.status(f"the next answer is by {rest}")
        return
    for model in it.daemon.json("GET", "/v1/models")["data"]:
        it.status(str(model["id"]))
    it.status("/model NAME lets one of them answer")


def _branch(it: Conversation, rest: str, stop: Stop) -> None:
    last = it.last_message()
    made = it.daemon.json("POST", chats.path(it.chat, "branch"), {"message": last.id})
    it.go_to(str(made["chat"]))


def _summarise(it: Conversation, rest: str, stop: Stop) -> None:
    it.need_words()
    summary = importlib.import_module("homebox.client.summary")  # only here, and it asks the model
    text = summary.summarise(it.daemon, chats.show(it.daemon, it.chat), on_progress=it.status)
    it.begin_new()
    it.documents.append(text)
    it.paragraph("homebox", text)
    it.status("a new conversation; this summary goes with your next message")


def _attach(it: Conversation, rest: str, stop: Stop) -> None:
    text = prompts.text_or_file("@" + _needed(rest, "/attach FILE"))
    it.documents.append(f"[{rest}]\n{text}")
    it.status(f"{rest} ({len(text)} characters) goes with your next message")


def _export(it: Conversation, rest: str, stop: Stop) -> None:
    """Markdown, or JSON with every branch where the name ends so. What is there is not written over."""
    it.need_words()
    file = Path(_needed(rest, "/export FILE.md or /export FILE.json")).expanduser()
    form = "json" if file.suffix == ".json" else "md"
    with it.daemon.open("GET", chats.path(it.chat, f"export?format={form}")) as reply:
        text = reply.read().decode()
    try:
        with file.open("x", encoding="utf-8", newline="") as target:
            target.write(safe_json(text) if form == "json" else clean(text))
    except FileExistsError:
        raise UsageError(f"{file} is there already", hint="Name another file.") from None
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}") from None
    it.status(f"written to {file}")


def _delete(it: Conversation, rest: str, stop: Stop) -> None:
    it.need_words()
    it.daemon.json("DELETE", chats.path(it.chat))
    it.deleted = it.chat
    it.begin_new()
    it.status("deleted, and a new conversation begun; /undo has the old one back")


def _undo(it: Conversation, rest: str, stop: Stop) -> None:
    if it.deleted is None:
        raise InvalidRequest(
            "nothing was deleted here", hint="homebox chats list --deleted shows what can be had back."
        )
    it.daemon.json("POST", chats.path(it.deleted, "undelete"), {})
    chat, it.deleted = it.deleted, None
    it.go_to(chat)


def _thinking(it: Conversation, rest: str, stop: Stop) -> None:
    it.status("thoughts are shown" if it.show_thoughts() else "thoughts are folded to one line")


def _stats(it: Conversation, rest: str, stop: Stop) -> None:
    it.status(stats_line(it.last) if it.last else "nothing has been answered yet")


def _needed(rest: str, usage: str) -> str:
    if not rest:
        raise InvalidRequest(f"write it like: {usage}")
    return rest


DO: dict[str, Callable[[Conversation, str, Stop], None]] = {
    "/help": _help,
    "/new": _new,
    "/chats": _list,
    "/search": _search,
    "/title": _title,
    "/system": _system,
    "/model": _model,
    "/regenerate": lambda it, rest, stop: it.regenerate(stop),
    "/continue": lambda it, rest, stop: it.go_on(stop),
    "/branch": _branch,
    "/summarise": _summarise,
    "/attach": _attach,
    "/export": _export,
    "/delete": _delete,
    "/undo": _undo,
    "/thinking": _thinking,
    "/stats": _stats,
}
