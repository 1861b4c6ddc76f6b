"""Which parts make a daemon, and which route leads where?

`build` puts the parts together for one model and one engine command; nothing runs yet. Every route exists twice, plain
and under `/k/{key}`, for software that cannot send headers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from homebox.config import Settings, size_bytes
from homebox.daemon.chats.exchange import Exchange
from homebox.daemon.chats.store import Chats
from homebox.daemon.door import door
from homebox.daemon.house import HOUSE, MAX_BODY_BYTES, House
from homebox.daemon.identity import Identity
from homebox.daemon.keys import Keys
from homebox.daemon.monitor import Monitor
from homebox.daemon.routes import chats as chat_routes
from homebox.daemon.routes import health, native, openai
from homebox.daemon.steplog import StepLog
from homebox.daemon.supervisor import WORKER, Patience, Supervisor
from homebox.daemon.turnbook import TurnBook
from homebox.library.store import Library
from homebox.text.tokens import Tokenizer
from homebox.wire import frames

ROUTES = (
    ("GET", "/health", health.health),
    ("GET", "/v1/models", openai.models),
    ("GET", "/v1/models/{model:.+}", openai.model),
    ("POST", "/v1/chat/completions", openai.chat_completions),
    ("POST", "/v1/completions", openai.completions),
    ("POST", "/homebox/ask", native.ask),
    ("GET", "/homebox/chats", chat_routes.list_chats),
    ("GET", "/homebox/chats/search", chat_routes.search),
    ("POST", "/homebox/chats/import", chat_routes.take),
    ("GET", "/homebox/chats/{chat}", chat_routes.show),
    ("PATCH", "/homebox/chats/{chat}", chat_routes.patch),
    ("DELETE", "/homebox/chats/{chat}", chat_routes.delete),
    ("POST", "/homebox/chats/{chat}/undelete", chat_routes.undelete),
    ("POST", "/homebox/chats/{chat}/turns", chat_routes.say),
    ("POST", "/homebox/chats/{chat}/regenerate", chat_routes.regenerate),
    ("POST", "/homebox/chats/{chat}/branch", chat_routes.branch),
    ("GET", "/homebox/chats/{chat}/export", chat_routes.export),
    ("GET", "/homebox/chats/{chat}/draft", chat_routes.draft),
    ("PUT", "/homebox/chats/{chat}/draft", chat_routes.put_draft),
    ("GET", "/homebox/draft", chat_routes.draft),
    ("PUT", "/homebox/draft", chat_routes.put_draft),
    ("POST", "/homebox/turns/{turn}/continue", chat_routes.go_on),
    ("GET", "/homebox/turns/{turn}/events", native.turn_events),
    ("DELETE", "/homebox/turns/{turn}", native.cancel_turn),
    ("GET", "/homebox/streams", native.streams),
    ("GET", "/homebox/monitor", native.monitor),
)


def build(
    settings: Settings, state: Path, *, command: Sequence[str] = WORKER, patience: Patience | None = None
) -> House:
    """Raises ModelNotFound or BadFile where the model cannot be used."""
    library = Library(state)
    manifest = library.read(settings.model)
    folder = library.path(settings.model)
    monitor = Monitor()
    start = frames.Start(
        model_dir=str(folder),
        device=settings.device,
        kv_bytes=size_bytes(settings.kv_memory),
        max_running=settings.max_running,
        max_chunk_tokens=settings.max_chunk_tokens,
        threads=settings.threads,
    )
    observers = [monitor.frame]
    if settings.step_log:
        observers.append(StepLog(Path(settings.step_log)).frame)
    supervisor = Supervisor(start, command=command, patience=patience, observers=observers)
    book = TurnBook(supervisor, Tokenizer.load(folder), manifest, settings, on_token=monitor.token)
    chats = Chats(state / "chats")
    return House(
        settings=settings,
        supervisor=supervisor,
        book=book,
        chats=chats,
        exchange=Exchange(chats, book, native.engine_ask),
        monitor=monitor,
        identity=Identity(Keys(state), settings.allowed_hosts),
    )


def application(house: House) -> web.Application:
    app = web.Application(middlewares=[door], client_max_size=MAX_BODY_BYTES)
    app[HOUSE] = house
    for method, path, handler in ROUTES:
        app.router.add_route(method, path, handler)
        app.router.add_route(method, "/k/{key}" + path, handler)
    return app
