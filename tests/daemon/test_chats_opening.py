"""What a screen is told when it opens a chat: its end first, what it uses of the context, and how it can be changed."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from homebox.client import chats, models
from homebox.client.connection import Daemon
from homebox.daemon.chats import looking, schema
from homebox.errors import ContextLengthExceeded, InvalidRequest, ModelNotFound, NotFound
from homebox.wire import events
from homebox.wire.chats import ChatView

from .box import Box, running, until
from .tiny_model import CONTEXT


@pytest.fixture(scope="module")
def shared(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    with running(model, tmp_path_factory.mktemp("box")) as box:
        yield box


@pytest.fixture
def daemon(shared: Box) -> Daemon:
    return Daemon(socket_path=Path(shared.socket))


def said(box: Box, chat: str, text: str, **fields: Any) -> dict[str, Any]:
    made = box.say(chat, text, secrets.token_hex(8), **fields)
    assert made.status_code == 200, made.text
    box.events(made.json()["turn"])
    return dict(made.json())


def prompt(box: Box, turn: str) -> str:
    return box.house.book.tokenizer.decode(box.house.book.turn(turn).choices[0].prompt, skip_special=False)


# ---- a part of it


def long_chat(messages: int) -> sqlite3.Connection:
    """A chat `c` of so many messages on one path, with a second answer to each question, and tokens as they grow."""
    db = schema.open_file(schema.MEMORY)
    db.execute("INSERT INTO chats (id, title, created, updated) VALUES ('c', 'long', 1, 1)")
    rows, parent = [], None
    for n in range(messages):
        role = "assistant" if n % 2 else "user"
        names = [f"m{n}b", f"m{n}"] if n % 2 else [f"m{n}"]
        for name in names:
            rows.append((name, "c", parent, role, f"text {n}", bytes(4 * 10 * n), b"abcd" * 200, n))
        parent = f"m{n}"
    db.executemany(
        """INSERT INTO messages (id, chat, parent, role, text, state, prompt, tokens, created)
           VALUES (?, ?, ?, ?, ?, 'done', ?, ?, ?)""",
        rows,
    )
    db.execute("UPDATE chats SET head = ? WHERE id = 'c'", (parent,))
    return db


def test_a_long_chat_is_read_from_its_end_a_window_at_a_time() -> None:
    db = long_chat(501)
    seen: list[str] = []
    shown = looking.view(db, "c", last=200)
    assert shown.earlier == 301 and len(shown.messages) == 200
    while True:
        seen = [each.id for each in shown.messages] + seen
        assert shown.earlier == 501 - len(seen)
        assert all(len(each.siblings) == (2 if each.role == "assistant" else 1) for each in shown.messages)
        if not shown.earlier:
            break
        shown = looking.view(db, "c", last=200, before=seen[0])
    assert seen == [f"m{n}" for n in range(501)]
    assert seen == [each.id for each in looking.view(db, "c").messages]
    assert looking.view(db, "c", before="m0").messages == [] and looking.view(db, "c", last=1000).earlier == 0
    other = looking.view(db, "c", last=3, before="m7b")
    assert [each.id for each in other.messages] == ["m4", "m5", "m6"], (
        "also of a path that is not the current one"
    )
    db.close()


def test_the_work_of_opening_a_chat_does_not_grow_with_the_square_of_its_length_nor_by_queries() -> None:
    def work(messages: int, last: int | None) -> tuple[int, int]:
        db = long_chat(messages)
        queries: list[str] = []
        steps = 0

        def step() -> None:
            nonlocal steps
            steps += 1

        db.set_trace_callback(lambda query: queries.append(query) if not query.startswith("--") else None)
        db.set_progress_handler(step, 100)
        looking.view(db, "c", last=last)
        db.close()
        return len(queries), steps

    small, large, window = work(100, None), work(1000, None), work(1000, 20)
    assert small[0] == large[0] == window[0] <= 6
    assert large[1] < 14 * small[1] and window[1] < large[1] / 2


def test_impossible_windows_are_refused(shared: Box, daemon: Daemon) -> None:
    one = said(shared, "w", "[[say=one]]")
    for query in ("last=0", "last=x", "last=1001", "last=", "all=1&last=3", f"all=1&before={one['answer']}"):
        assert shared.http.get(f"/homebox/chats/w?{query}").status_code == 400, query
    with pytest.raises(NotFound):
        chats.show(daemon, "w", before="m-nope")
    shown = chats.show(daemon, "w", last=1)
    assert [each.id for each in shown.messages] == [one["answer"]] and shown.earlier == 1
    assert [each.id for each in chats.show(daemon, "w", before=one["answer"]).messages] == [one["question"]]


# ---- how full it is


def used(view: ChatView) -> tuple[int | None, int | None]:
    return view.ctx_used, view.ctx_max


def test_how_full_the_context_is_is_known_without_a_turn(shared: Box, daemon: Daemon) -> None:
    turn = said(shared, "u", "[[say=hello_there]]")["turn"]
    stats = [event for event in shared.events(turn) if isinstance(event, events.Stats)]
    finished = shared.events(turn)[-1]
    assert isinstance(finished, events.Finished)
    total = finished.usage.prompt_tokens + finished.usage.completion_tokens
    assert used(chats.show(daemon, "u")) == (total, CONTEXT) == (stats[-1].ctx_used, stats[-1].ctx_max)
    growing = shared.say("u", "[[forever]][[pace=5]]", "g").json()["turn"]
    until(lambda: (chats.show(daemon, "u").ctx_used or 0) > total + 10)
    shared.http.delete(f"/homebox/turns/{growing}")
    kept = chats.show(daemon, "u")
    assert (
        kept.ctx_used == shared.house.book.turn(growing).tokens_in + kept.messages[-1].usage.completion_tokens
    )  # type: ignore[union-attr]


def test_how_full_it_is_is_counted_where_no_figures_were_kept_and_unknown_where_another_model_spoke() -> None:
    db = long_chat(4)
    db.execute("UPDATE messages SET kept = 5, model = 'tiny' WHERE id = 'm3'")
    assert looking.view(db, "c", model="tiny").ctx_used == 5 + 30 + 200
    assert looking.view(db, "c", model="other").ctx_used is None
    db.execute("UPDATE messages SET prompt = NULL WHERE id = 'm3'")
    assert looking.view(db, "c", model="tiny").ctx_used is None, "an imported answer"
    db.close()


def test_stats_tell_it_from_the_first_words_on(shared: Box) -> None:
    told = shared.ask("[[forever]][[pace=2]]", max_tokens=40)
    kinds = [type(event) for event in told]
    first = told[kinds.index(events.Stats)]
    assert kinds.index(events.Stats) == kinds.index(events.Text) + 1 and isinstance(first, events.Stats)
    last = told[-1]
    assert isinstance(last, events.Finished)
    assert first.ctx_used == last.usage.prompt_tokens + first.tokens and first.ctx_max == CONTEXT


def test_an_answer_that_filled_the_context_says_so_and_one_that_was_long_enough_does_not(
    shared: Box, daemon: Daemon
) -> None:
    full = said(shared, "f", "[[forever]]")
    finished = shared.events(full["turn"])[-1]
    assert isinstance(finished, events.Finished) and finished.reason == "length"
    assert finished.detail == "the context of 1,024 tokens is full"
    kept = chats.show(daemon, "f")
    assert (kept.messages[-1].state, kept.messages[-1].detail) == ("length", finished.detail)
    assert used(kept) == (CONTEXT, CONTEXT)
    short = said(shared, "s", "[[forever]]", options={"max_tokens": 5})
    finished = shared.events(short["turn"])[-1]
    assert isinstance(finished, events.Finished) and (finished.reason, finished.detail) == ("length", "")
    assert chats.show(daemon, "s").messages[-1].detail == ""


def test_an_engine_with_less_room_than_the_turn_was_told_of_is_named_with_its_room(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was still loading when the turn began."""
    loaded = tmp_path / "loaded"
    monkeypatch.setenv("HOMEBOX_SCRIPT_LOAD", f"wait:{loaded}")
    with running(model, tmp_path / "box", ready=False) as box:
        box.house.book.manifest = msgspec.structs.replace(box.house.book.manifest, context=4 * CONTEXT)
        turn = box.detach("[[forever]]")
        loaded.touch()
        finished = box.events(turn)[-1]
    assert isinstance(finished, events.Finished)
    assert (finished.reason, finished.detail) == ("length", "the context of 1,024 tokens is full")


def test_a_path_that_no_longer_fits_is_refused_with_the_numbers_and_nothing_is_cut(
    shared: Box, daemon: Daemon
) -> None:
    one = said(shared, "p", "[[say=one]]")
    with pytest.raises(ContextLengthExceeded) as refused:
        body = {"key": "k", "text": "word " * 1200}
        daemon.json("POST", "/homebox/chats/p/turns", body)
    numbers = refused.value.numbers
    assert numbers["ctx_max"] == CONTEXT and numbers["ctx_used"] > 1200 and refused.value.exit_code == 8
    shown = chats.show(daemon, "p")
    assert [each.id for each in shown.messages] == [one["question"], one["answer"]], "and it is not stored"
    full = said(shared, "q", "[[forever]]")
    body = {"key": "go"}
    with pytest.raises(ContextLengthExceeded) as refused:
        daemon.json("POST", f"/homebox/turns/{full['turn']}/continue", body)
    assert refused.value.numbers == {"ctx_used": CONTEXT, "ctx_max": CONTEXT}


# ---- instruction and model


def test_another_instruction_holds_from_the_next_answer_on_and_the_history_is_the_same(
    shared: Box, daemon: Daemon
) -> None:
    said(shared, "i", "[[spell=grüne_soup]] first", system="be brief")
    before = prompt(shared, said(shared, "i", "[[say=two]] second")["turn"])
    chats.set_system(daemon, "i", "tell it as a story about a small boat")
    after = prompt(shared, said(shared, "i", "[[say=three]] third")["turn"])
    history = before.removeprefix("<|im_start|>system\nbe brief<|im_end|>\n").removesuffix(
        "<|im_start|>assistant\n"
    )
    told = "<|im_start|>system\ntell it as a story about a small boat<|im_end|>\n"
    assert history.startswith("<|im_start|>user\n[[spell=grüne_soup]] first")
    assert after.startswith(
        told + history + "<|im_start|>assistant\ntwo<|im_end|>\n<|im_start|>user\n[[say=three]] third"
    )
    assert chats.show(daemon, "i").system == "tell it as a story about a small boat"
    chats.set_system(daemon, "i", None)
    bare = prompt(shared, said(shared, "i", "[[say=four]]")["turn"])
    assert bare.startswith(history) and "system" not in bare and "grüne soup" in bare
    assert said(shared, "i", "[[say=five]]", system=None)


def test_a_change_is_all_of_it_or_nothing(shared: Box, daemon: Daemon) -> None:
    said(shared, "n", "[[say=one]]", system="be brief")
    with pytest.raises(ModelNotFound, match="nope"):
        chats.change(daemon, "n", system="be long", model="nope")
    with pytest.raises(NotFound):
        chats.change(daemon, "n", system="be long", head="m-nope")
    with pytest.raises(ContextLengthExceeded):
        chats.set_system(daemon, "n", "word " * 2000)
    with pytest.raises(InvalidRequest):
        chats.change(daemon, "n", system=5)
    assert chats.show(daemon, "n").system == "be brief"
    with pytest.raises(NotFound):
        chats.set_system(daemon, "no-such-chat", "x")
    chats.set_model(daemon, "n", "tiny:latest")
    assert chats.show(daemon, "n").model == "tiny" and [model.name for model in models.served(daemon)] == [
        "tiny"
    ]


# ---- the rest of what a client asks


def test_our_client_keeps_drafts_branches_and_takes_back_a_deleted_chat(shared: Box, daemon: Daemon) -> None:
    one = said(shared, "d", "[[say=one]]")
    said(shared, "d", "[[say=two]]")
    for chat in (None, "d"):
        assert chats.draft(daemon, chat) == ""
        chats.put_draft(daemon, chat, f"half of {chat}")
        assert chats.draft(daemon, chat) == f"half of {chat}"
    chats.put_draft(daemon, None, "")
    made = chats.branch(daemon, "d", one["answer"])
    assert [each.content for each in chats.show(daemon, made).messages] == ["[[say=one]]", "one"]
    chats.delete(daemon, "d")
    with pytest.raises(NotFound):
        chats.show(daemon, "d")
    assert chats.undelete(daemon, "d").messages == 4
    assert "## homebox\n\ntwo" in chats.export_text(daemon, "d", "md")
