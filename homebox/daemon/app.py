"""Which parts make a daemon, and which route leads where?

`build` puts the parts together for one model and one engine command; nothing runs yet. Every route exists twice, plain
and under `/k/{key}`, for software that cannot send headers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from aiohttp import web

from homebox.config import Current, Settings, is_auto, size_bytes
from homebox.daemon.asked import say_id
from homebox.daemon.audit import Audit
from homebox.daemon.chats.exchange import Exchange
from homebox.daemon.chats.store import Chats
from homebox.daemon.door import door, mark
from homebox.daemon.engine_process import WORKER, EngineProcess
from homebox.daemon.house import HOUSE, House
from homebox.daemon.identity import Identity
from homebox.daemon.keys import Keys
from homebox.daemon.limits import Limits
from homebox.daemon.metrics import Metrics
from homebox.daemon.monitor import Monitor
from homebox.daemon.people import Household
from homebox.daemon.power import Power
from homebox.daemon.prompting import Prompts
from homebox.daemon.routes import chats as chat_routes
from homebox.daemon.routes import health, native, openai, operators, people, power
from homebox.daemon.steplog import StepLog
from homebox.daemon.supervisor import Patience, Supervisor
from homebox.daemon.text_process import TextProcess
from homebox.daemon.turnbook import TurnBook
from homebox.daemon.turns import Turn
from homebox.daemon.usage import Usage
from homebox.daemon.warden import Warden
from homebox.library.store import Library
from homebox.text.tokens import Tokenizer
from homebox.wire import frames
from homebox.wire.requests import MAX_BODY_BYTES

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
    ("DELETE", "/homebox/chats/{chat}/messages/{message}", chat_routes.delete_message),
    ("POST", "/homebox/chats/{chat}/messages/{message}/undelete", chat_routes.undelete_message),
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
    ("POST", "/homebox/pause", power.pause),
    ("POST", "/homebox/resume", power.resume),
    ("GET", "/homebox/me", people.me),
    ("GET", "/homebox/usage", people.usage),
    ("GET", "/homebox/people", people.everybody),
    ("PUT", "/homebox/people/{person}", people.set_person),
    ("DELETE", "/homebox/people/{person}", people.remove_person),
    ("GET", "/homebox/keys", people.keys),
    ("POST", "/homebox/keys", people.new_key),
    ("DELETE", "/homebox/keys/{id}", people.revoke_key),
    ("GET", "/homebox/audit", operators.audit),
    ("GET", "/homebox/config", operators.config),
    ("GET", "/metrics", operators.metrics),
)


def build(
    settings: Settings,
    state: Path,
    *,
    command: Sequence[str] = WORKER,
    early: EngineProcess | None = None,
    patience: Patience | None = None,
    clock: Callable[[], float] = time.time,
) -> House:
    """Raises ModelNotFound or BadFile where the model cannot be used."""
    library = Library(state)
    manifest = library.read(settings.model)
    folder = library.path(settings.model)
    monitor, audit, metrics = Monitor(), Audit(state), Metrics(people=settings.metrics_people)
    start = frames.Start(
        model_dir=str(folder),
        device=settings.device,
        kv_bytes=size_bytes(settings.kv_memory),
        kv_host_bytes=None if is_auto(settings.kv_host_memory) else size_bytes(settings.kv_host_memory),
        max_running=settings.max_running,
        max_chunk_tokens=settings.max_chunk_tokens,
        threads=settings.threads,
        kernels=settings.kernels,
        attention=settings.attention,
        quantize=settings.quantize,
        kv_type=settings.kv_type,
    )
    observers = [monitor.frame, metrics.frame]
    if settings.step_log:
        observers.append(StepLog(Path(settings.step_log)).frame)
    supervisor = Supervisor(start, command=command, early=early, patience=patience, observers=observers)
    current = Current(settings)
    keys, household = Keys(state), Household(state, settings.roles)
    usage = Usage(state, clock=clock)
    limits = Limits(usage, clock=clock)

    def on_token(turn: Turn, gap_ms: float | None) -> None:
        monitor.token(turn, gap_ms)
        metrics.token(turn, gap_ms)

    def on_end(turn: Turn) -> None:
        audit.answered(turn)
        metrics.ended(turn)
        monitor.ended(turn)

    tokenizer = Tokenizer.load(folder)
    prompts = Prompts(tokenizer, TextProcess(folder))
    book = TurnBook(supervisor, tokenizer, manifest, current, limits, on_token=on_token, on_end=on_end)
    metrics.watch(supervisor, book, monitor)
    chats = Chats(state / "chats")
    return House(
        current=current,
        supervisor=supervisor,
        book=book,
        chats=chats,
        prompts=prompts,
        exchange=Exchange(chats, book, prompts, native.engine_ask),
        monitor=monitor,
        power=Power(supervisor, state, current),
        identity=Identity(keys, household, settings.allowed_hosts, settings.allowed_origins, clock=clock),
        keys=keys,
        people=household,
        usage=usage,
        limits=limits,
        warden=Warden(keys, book, clock=clock),
        audit=audit,
        metrics=metrics,
    )


def application(house: House) -> web.Application:
    app = web.Application(middlewares=[door], client_max_size=MAX_BODY_BYTES)
    app[HOUSE] = house
    app.on_response_prepare.append(mark)
    app.on_response_prepare.append(say_id)
    for method, path, handler in ROUTES:
        app.router.add_route(method, path, handler)
        app.router.add_route(method, "/k/{key}" + path, handler)
    return app
