"""How does one question become part of a stored conversation, or read it and leave nothing there?

An answer in a chat lives in the daemon, so closing the connection does not end it: who leaves has to say so. Imported only
where a conversation was named. It writes nothing.
"""

from __future__ import annotations

import contextlib
import secrets

from homebox.client import chats, stream
from homebox.client.connection import Daemon, Reply
from homebox.errors import HomeboxError
from homebox.wire.requests import AskRequest, Message, TurnCreated, TurnRequest


def meant(daemon: Daemon, name: str | None) -> str:
    """The id of the chat that begins so, or of the newest. Raises NotFound, UsageError."""
    return chats.last(daemon) if name is None else chats.find(daemon, name).id


def with_its_past(daemon: Daemon, chat: str, request: AskRequest) -> AskRequest:
    """The same question, below everything on the chat's current path; nothing of it will be kept."""
    shown = chats.show(daemon, chat)
    before = [Message("system", shown.system)] if shown.system else []
    before += [Message(each.role, each.content) for each in shown.messages]
    return AskRequest(messages=[*before, *request.messages], options=request.options, detach=request.detach)


class InChat:
    """One question in a chat, whose answer ends with us."""

    def __init__(self, daemon: Daemon, chat: str, request: AskRequest) -> None:
        self._daemon, self._chat = daemon, chat
        self._request = TurnRequest(
            key=secrets.token_hex(16), text=request.messages[-1].content, options=request.options
        )
        self._turn = ""

    def submit(self) -> TurnCreated:
        """Raises what refuses it."""
        path = chats.path(self._chat, "turns")
        made = stream.begin(self._daemon, path, self._request, on_retry=lambda lost: None, delays=())
        self._turn = made.turn
        return made

    def begin(self, *, timeout_s: float) -> Reply:
        self.submit()
        return self._daemon.open("GET", f"/homebox/turns/{self._turn}/events?after=0", timeout_s=timeout_s)

    def leave(self) -> None:
        """Stop it; what is there is kept in the chat."""
        with contextlib.suppress(HomeboxError):  # it ended by itself, or the daemon is away
            if self._turn:
                stream.cancel(self._daemon, self._turn)
