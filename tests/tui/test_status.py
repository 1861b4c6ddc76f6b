"""One line says what is going on, always in exactly the width of the screen, and never a figure that is not known."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from homebox.client.conversation import Conversation, Item
from homebox.client.state import ChatState, ConnectionLost, Phase
from homebox.errors import Busy
from homebox.tui.chat.status import fitted, line
from homebox.tui.chat.title import words
from homebox.wire import events
from homebox.wire.chats import MessageView
from homebox.wire.pause import Pause

STATS = events.Stats(tokens=418, tok_s=62.2, ttft_ms=412.0, ctx_used=500, ctx_max=1000)
USAGE = events.Usage(prompt_tokens=5, completion_tokens=418)
TIMING = events.Timing(ttft_ms=412.0, total_ms=9200.0, tok_s=62.2)


def growing(**fields: object) -> Conversation:
    message = MessageView(id="a", role="assistant", content="", created=100.0, turn="t")
    return Conversation(chat="c", items=(Item(message, ChatState(**fields)),))  # type: ignore[arg-type]


def ended(reason: str, **fields: object) -> Conversation:
    finished = events.Finished(reason=reason, usage=USAGE, timing=TIMING, **fields)  # type: ignore[arg-type]
    return growing(phase=Phase.DONE, finished=finished)


def stored(state: str, detail: str = "") -> Conversation:
    message = MessageView(id="a", role="assistant", content="x", state=state, detail=detail)  # type: ignore[arg-type]
    return Conversation(chat="c", items=(Item(message),))


def full() -> Conversation:
    return Conversation(chat="c", items=stored("done").items, ctx_used=7500, ctx_max=8192)


QUEUED = events.Queued(position=3, waiting=5, ahead=("dad", "anna", "dad"), eta_s=8.0)
LINES = [
    (growing(), {}, " [~] sent  9.2 s", "Esc withdraw"),
    (growing(phase=Phase.WAITING, queue=QUEUED), {}, " [~] waiting: place 3 of 5 - ahead: dad, you - about 8 s", "Esc withdraw"),
    (growing(phase=Phase.WAITING), {"health": {"state": "loading", "progress": {"stage": "weights", "done": 1, "total": 4}}}, " [~] the model is loading (weights 25%)  9.2 s", "Esc withdraw"),
    (growing(phase=Phase.READING, prefill=events.Prefill(done=512, total=7400)), {}, " [~] reading 512 of 7,400 tok  9.2 s", "Esc stop"),
    (growing(phase=Phase.THINKING, stats=STATS), {}, " [#] thinking  418 tok  62 tok/s  TTFT 0.41 s  9.2 s", "Esc stop"),
    (growing(phase=Phase.WRITING, stats=STATS), {}, " [#] writing  418 tok  62 tok/s  TTFT 0.41 s  9.2 s", "Esc stop"),
    (growing(phase=Phase.WRITING), {}, " [#] writing  n/a tok  9.2 s", "Esc stop"),
    (growing(stats=STATS, connection_lost=ConnectionLost(2.0)), {}, " [!] daemon restarting - 418 tok safe - retry in 2 s", ""),
    (growing(engine_lost=events.EngineLost(safe_tokens=418)), {}, " [!] engine restarting - 418 tok safe, the answer goes on", "Esc stop"),
    (growing(paused=events.Paused(pause=Pause(by="dad", since=0.0, reason="games", until=None), safe_tokens=4)), {}, " [!] paused by dad", "Esc stop"),
    (growing(notice=events.Notice(code="no_space", message="the disk is full")), {}, " [!] the disk is full", "Esc stop"),
    (ended("cancelled"), {"stopped": True}, " [=] stopped by you at 418 tok - kept", "r redo  c continue"),
    (ended("cancelled", detail="daemon restarted"), {}, " [=] daemon restarted at 418 tok - kept", "r redo  c continue"),
    (ended("stop"), {}, "     418 tok  62 tok/s  TTFT 0.41 s  9.2 s", ""),
    (ended("length"), {}, " [=] the answer ended here: its limit of 418 tok", "c continue"),
    (ended("error", error={"code": "engine_failed", "message": "the logits are not numbers"}), {}, " [!] the logits are not numbers - 418 tok kept", "r redo"),
    (stored("stopped", "daemon restarted"), {}, " [=] daemon restarted - kept", "r redo  c continue"),
    (stored("done"), {}, "     ", ""),
    (full(), {}, " [=] context 92% full - /summarise goes on", "/summarise"),
    (Conversation(chat="c"), {"away": ConnectionLost(5.0)}, " [!] the daemon does not answer - trying again in 5 s", ""),
    (Conversation(chat="c", error=Busy("the queue is full", hint="Wait.")), {}, " [!] the queue is full", "Wait."),
    (growing(), {"note": "copied"}, " [i] copied", ""),
]  # fmt: skip


@pytest.mark.parametrize(("now", "known", "words", "hint"), LINES, ids=[row[2].strip() for row in LINES])
def test_every_state_has_its_line(now: Conversation, known: dict[str, object], words: str, hint: str) -> None:
    found = line(now, me="anna", at=109.2, **known)  # type: ignore[arg-type]
    [wide] = fitted(found, 200)
    assert wide.rstrip().startswith(words.rstrip())
    assert hint in wide
    for width in (200, 80, 60, 40, 12):
        lines = fitted(found, width)
        assert [cell_len(each) for each in lines] == [width] * len(lines)
        assert len(lines) == 1 or found.kind == "error"


def test_why_a_wish_was_refused_is_never_cut() -> None:
    words = "the prompt has 9,214 tokens; this model reads at most 8,192 of them at a time"
    hint = "Leave something out, or begin a new conversation with /new."
    lines = fitted(line(Conversation(chat="c", error=Busy(words, hint=hint))), 40)
    assert " ".join(" ".join(lines).split()) == f"[!] {words}. {hint}"


def test_what_a_model_or_a_daemon_says_drives_no_terminal() -> None:
    nasty = "x\x1b]52;c;AAAA\x07\x1b[2J\u202ey"
    for now in (
        stored("stopped", nasty),
        ended("cancelled", detail=nasty),
        growing(queue=events.Queued(position=1, waiting=1, ahead=(nasty,))),
        Conversation(chat="c", error=Busy(nasty, hint=nasty)),
    ):
        shown = fitted(line(now), 120)[0]
        assert "\x1b" not in shown
        assert "\x07" not in shown
        assert "\u202e" not in shown


def test_the_title_gives_way_before_the_figures_and_fills_the_width() -> None:
    now = Conversation(
        chat="c", title="東京への旅 and a very long title of a trip " * 3, ctx_used=310, ctx_max=1000
    )
    box = events.Snapshot(
        at=0,
        version="",
        uptime_s=1,
        engine="ready",
        devices=(events.Device(kind="gpu", name="g"),),
        running=4,
    )
    for width in (140, 100, 80, 60, 40, 20):
        shown = words(now, box, model="smollm2-135m", me="anna", width=width)
        assert cell_len(shown) == width
    assert "GPU n/a" in words(now, box, model="m", me="anna", width=80)
    assert "ctx 31%" in words(now, box, model="m", me="anna", width=80)
    assert "4 running" in words(now, box, model="m", me="anna", width=140)
