"""What does each command of a plain conversation do?

The words and what they are for come from `client/commands.py`; here is one function for each of those that need no screen.
They change the conversation or say something about it; what fails is raised and said by `plain.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from homebox.client import chats, commands, documents, models
from homebox.client.phrases import stats_line
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
        chats.set_system(it.daemon, it.chat, rest or None)
        it.status("from the next answer on: " + (rest or "no instruction"))
    else:
        it.system = rest or None
        it.status(f"this conversation begins with: {rest}" if rest else "no instruction")


def _model(it: Conversation, rest: str, stop: Stop) -> None:
    if not rest:
        for model in models.served(it.daemon):
            it.status(model.name)
        it.status("/model NAME lets one of them answer")
        return
    it.daemon.json("GET", f"/v1/models/{quote(rest, safe='')}")  # refuses one that is not served
    if it.begun:
        chats.set_model(it.daemon, it.chat, rest)
    it.use_model(rest)
    it.status(f"the next answer is by {rest}")


def _branch(it: Conversation, rest: str, stop: Stop) -> None:
    it.go_to(chats.branch(it.daemon, it.chat, it.last_message().id))


def _summarise(it: Conversation, rest: str, stop: Stop) -> None:
    from homebox.client import summary

    it.need_words()
    view = chats.show(it.daemon, it.chat)
    told = 0

    def tell(progress: summary.Progress) -> None:
        nonlocal told
        if progress.part > told:
            told = progress.part
            it.status(f"summarising: piece {progress.part} of {progress.parts}")

    text = summary.summarise(it.daemon, view, on_progress=tell)
    it.begin_new()
    it.documents.append(summary.first_message(view.title, text))
    it.paragraph("homebox", text)
    it.status("a new conversation; this summary goes with your next message")


def _attach(it: Conversation, rest: str, stop: Stop) -> None:
    taken = sum(documents.weight_bytes(each) for each in it.documents)
    found = documents.attach(_needed(rest, "/attach FILE"), taken_bytes=taken)
    it.documents.append(documents.fenced(found.name, found.text))
    it.status(f"{rest} ({documents.in_words(found.size_bytes)}) goes with your next message")


def _export(it: Conversation, rest: str, stop: Stop) -> None:
    """Markdown, or JSON with every branch where the name ends so. What is there is not written over."""
    it.need_words()
    file = Path(_needed(rest, "/export FILE.md or /export FILE.json")).expanduser()
    form: Literal["md", "json"] = "json" if file.suffix == ".json" else "md"
    text = chats.export_text(it.daemon, it.chat, form)
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
    chats.delete(it.daemon, it.chat)
    it.deleted = it.chat
    it.begin_new()
    it.status("deleted, and a new conversation begun; /undo has the old one back")


def _undo(it: Conversation, rest: str, stop: Stop) -> None:
    if it.deleted is None:
        raise InvalidRequest(
            "nothing was deleted here", hint="homebox chats list --deleted shows what can be had back."
        )
    chats.undelete(it.daemon, it.deleted)
    chat, it.deleted = it.deleted, None
    it.go_to(chat)


def _thinking(it: Conversation, rest: str, stop: Stop) -> None:
    it.status("thoughts are shown" if it.show_thoughts() else "thoughts are folded to one line")


def _stats(it: Conversation, rest: str, stop: Stop) -> None:
    it.status(stats_line(it.last).replace(" - ", "; ") if it.last else "nothing has been answered yet")


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
