"""A person's own chats over HTTP: list, search, read, say, answer again, go on, branch, name, delete, drafts, files.

Everything is looked for in the caller's own file, so that somebody else's chat does not exist. Who speaks for another
person may ask for them and has no way to what they have said.
"""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from homebox.daemon.bodies import decode
from homebox.daemon.chats import deleting, looking, shelf, transfer, tree
from homebox.daemon.house import House, house_of, person_of
from homebox.daemon.identity import Person
from homebox.daemon.limits import check_model
from homebox.daemon.policy import check_import, check_instruction
from homebox.daemon.routes.plain import json_answer
from homebox.daemon.sampling import room
from homebox.errors import InvalidRequest, NotAllowed
from homebox.wire.chats import (
    BranchRequest,
    ChatMade,
    ChatPatch,
    ContinueRequest,
    Draft,
    ExportedChat,
    FoundList,
    RegenerateRequest,
)
from homebox.wire.requests import TurnRequest

MAX_LAST = 1000


async def list_chats(request: web.Request) -> web.Response:
    house, person = _own(request)
    limit = _count("limit", request.query.get("limit", "50"), shelf.MAX_ROWS)
    before, deleted = request.query.get("before"), _flag(request, "deleted")
    return json_answer(
        await house.chats.read(person.name, shelf.rows, limit=limit, before=before, deleted=deleted)
    )


async def search(request: web.Request) -> web.Response:
    house, person = _own(request)
    found = await house.chats.read(person.name, shelf.search, request.query.get("q", ""))
    return json_answer(FoundList(found=found))


async def show(request: web.Request) -> web.Response:
    """The messages of the current path: all of them, or the last ones with `last=N`, or those before a message with
    `before=MESSAGE`. With `all=1` every message of every path."""
    house, person = _own(request)
    last, before, whole = request.query.get("last"), request.query.get("before"), _flag(request, "all")
    if whole and (last or before):
        raise InvalidRequest("all=1 goes with neither last nor before", param="all")
    shown = await house.chats.read(
        person.name,
        looking.view,
        _chat(request),
        whole=whole,
        last=None if last is None else _count("last", last, MAX_LAST),
        before=before,
        model=house.book.manifest.name,
    )
    return json_answer(house.exchange.overlay(person.name, shown))


async def say(request: web.Request) -> web.Response:
    """Store what the person said and queue an answer; the same key again gives the same turn."""
    house, person = _own(request)
    body = decode(await request.read(), TurnRequest)
    return json_answer(await house.exchange.say(person, _chat(request), body))


async def regenerate(request: web.Request) -> web.Response:
    house, person = _own(request)
    body = decode(await request.read(), RegenerateRequest)
    return json_answer(await house.exchange.regenerate(person, _chat(request), body))


async def go_on(request: web.Request) -> web.Response:
    house, person = _own(request)
    body = decode(await request.read(), ContinueRequest)
    return json_answer(await house.exchange.go_on(person, request.match_info["turn"], body))


async def branch(request: web.Request) -> web.Response:
    house, person = _own(request)
    body = decode(await request.read(), BranchRequest)
    made = await house.chats.write(person.name, tree.branch, _chat(request), body.message)
    return json_answer(ChatMade(chat=made))


async def patch(request: web.Request) -> web.Response:
    """Another title, another current path, or how the next answers come about: all of it or nothing."""
    house, person = _own(request)
    body, chat = decode(await request.read(), ChatPatch), _chat(request)
    system = None if body.system is msgspec.UNSET else body.system
    check_instruction(person, system)
    if system:
        room(len(await house.prompts.of_text(system)), house.book.limits.context)
    if body.model is not None:
        house.book.check_model(body.model)
        check_model(person, house.book.manifest.name)

    def change(db: Any) -> None:
        if body.title is not None:
            shelf.rename(db, chat, body.title)
        if body.head is not None:
            tree.go_to(db, chat, body.head)
        if body.system is not msgspec.UNSET:
            shelf.instruct(db, chat, system)
        if body.model is not None:
            shelf.choose_model(db, chat, house.book.manifest.name)

    size = len((system or "").encode("utf-8", "surrogatepass"))
    await house.chats.write(person.name, change, needs_bytes=size)
    return json_answer(await house.chats.read(person.name, shelf.row, chat))


async def delete(request: web.Request) -> web.Response:
    house, person = _own(request)
    await house.exchange.delete(person, _chat(request))
    return json_answer({})


async def undelete(request: web.Request) -> web.Response:
    house, person = _own(request)
    await house.chats.write(person.name, deleting.undelete, _chat(request))
    return json_answer(await house.chats.read(person.name, shelf.row, _chat(request)))


async def delete_message(request: web.Request) -> web.Response:
    """A message and all that was said after it; what the chat is then."""
    house, person = _own(request)
    await house.exchange.delete_message(person, _chat(request), request.match_info["message"])
    return json_answer(await house.chats.read(person.name, shelf.row, _chat(request)))


async def undelete_message(request: web.Request) -> web.Response:
    house, person = _own(request)
    message = request.match_info["message"]
    await house.chats.write(person.name, deleting.undelete_message, _chat(request), message)
    return json_answer(await house.chats.read(person.name, shelf.row, _chat(request)))


async def draft(request: web.Request) -> web.Response:
    """Of a chat, or of none yet."""
    house, person = _own(request)
    return json_answer(await house.chats.read(person.name, shelf.draft, request.match_info.get("chat")))


async def put_draft(request: web.Request) -> web.Response:
    house, person = _own(request)
    text = decode(await request.read(), Draft).text
    await house.chats.write(
        person.name, shelf.put_draft, request.match_info.get("chat"), text, needs_bytes=len(text)
    )
    return json_answer({})


async def export(request: web.Request) -> web.Response:
    house, person = _own(request)
    form = request.query.get("format", "json")
    if form == "md":
        text = await house.chats.read(person.name, transfer.markdown, _chat(request))
        return web.Response(text=text, content_type="text/markdown", charset="utf-8")
    if form != "json":
        raise InvalidRequest(f"format is {form[:40]!r}; it must be md or json", param="format")
    return json_answer(await house.chats.read(person.name, transfer.export, _chat(request)))


async def take(request: web.Request) -> web.Response:
    """Add a chat that was exported, all of it or nothing."""
    house, person = _own(request)
    check_import(person)
    raw = await request.read()
    body = decode(raw, ExportedChat)
    return json_answer(
        ChatMade(chat=await house.chats.write(person.name, transfer.take, body, needs_bytes=3 * len(raw)))
    )


def _own(request: web.Request) -> tuple[House, Person]:
    """Raises NotAllowed for somebody who speaks for this person."""
    person = person_of(request)
    if person.spoken_by is not None:
        raise NotAllowed(
            f"{person.spoken_by} may ask for {person.name}, and not look at their chats",
            hint="Only they themselves can.",
        )
    return house_of(request), person


def _chat(request: web.Request) -> str:
    return request.match_info["chat"]


def _flag(request: web.Request, name: str) -> bool:
    return request.query.get(name, "") not in ("", "0", "false")


def _count(name: str, text: str, most: int) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= most:
        raise InvalidRequest(f"{name} is {text[:40]!r}; it must be 1 to {most}", param=name)
    return int(text)
