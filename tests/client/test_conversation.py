"""One conversation as a value: what was wanted and refused leaves no trace, and the daemon's word counts."""

from __future__ import annotations

from homebox.client.conversation import (
    ANSWERING,
    SAID,
    Conversation,
    answered_again,
    asked,
    begun,
    goes_on,
    heard,
    older,
    opened,
    refused,
)
from homebox.client.state import ChatState, Phase
from homebox.errors import Busy
from homebox.wire import events
from homebox.wire.chats import ChatView, MessageView
from homebox.wire.requests import TurnCreated

CREATED = TurnCreated(turn="t-1", chat="c", question="q1", answer="a1")
DONE = events.Finished(reason="stop", usage=events.Usage(1, 1), timing=events.Timing())


def view(*messages: MessageView, **fields: object) -> ChatView:
    return ChatView(id="c", title="T", created=1.0, updated=2.0, messages=list(messages), **fields)  # type: ignore[arg-type]


def message(name: str, role: str, content: str, **fields: object) -> MessageView:
    return MessageView(id=name, role=role, content=content, **fields)  # type: ignore[arg-type]


Q1, A1 = message("q1", "user", "hello"), message("a1", "assistant", "hi", turn="t-1")


def names(now: Conversation) -> list[str]:
    return [item.message.id for item in now.items]


def test_what_is_said_gets_its_ids_when_the_daemon_has_it() -> None:
    now = asked(Conversation(chat="c"), "hello", 5.0)
    assert names(now) == [SAID, ANSWERING]
    assert now.growing is not None
    now = begun(now, CREATED)
    assert names(now) == ["q1", "a1"]
    assert now.known
    assert now.growing is not None
    assert now.growing.message.turn == "t-1"


def test_what_is_refused_leaves_everything_as_it_was_but_what_waits_to_be_sent() -> None:
    before = opened(Conversation(chat="c"), view(Q1, A1))
    error = Busy("the queue is full")
    wanted = asked(before, "more", 5.0)
    after = refused(Conversation(chat="c", items=wanted.items, queued=("next",)), before, error)
    assert names(after) == ["q1", "a1"]
    assert after.error is error
    assert after.queued == ("next",)


def test_answers_that_are_still_the_same_keep_what_is_known_of_them() -> None:
    now = begun(asked(Conversation(chat="c"), "hello", 5.0), CREATED)
    finished = ChatState(text="hi", phase=Phase.DONE, finished=DONE)
    now = heard(now, "a1", finished)
    assert opened(now, view(Q1, A1)).items[1].answer is finished
    changed = opened(now, view(Q1, message("a1", "assistant", "hi there")))
    assert changed.items[1].answer is None
    assert changed.items[1].text == "hi there"


def test_an_answer_that_is_written_elsewhere_is_growing_here() -> None:
    now = opened(Conversation(chat="c"), view(Q1, A1, turns={"a1": "t-1"}))
    assert now.growing is not None
    assert now.growing.text == "hi"


def test_another_answer_takes_the_place_of_the_old_one_and_what_followed_it() -> None:
    now = opened(
        Conversation(chat="c"), view(Q1, A1, message("q2", "user", "and?"), message("a2", "assistant", "so"))
    )
    assert names(answered_again(now, "a1", 1.0)) == ["q1", ANSWERING]
    assert names(answered_again(now, "q2", 1.0)) == ["q1", "a1", "q2", ANSWERING]
    assert names(asked(now, "else", 1.0, parent="a1")) == ["q1", "a1", SAID, ANSWERING]
    assert names(asked(now, "anew", 1.0, parent="root")) == [SAID, ANSWERING]


def test_an_answer_that_goes_on_begins_with_what_there_is() -> None:
    now = goes_on(opened(Conversation(chat="c"), view(Q1, A1)), 1234.5)
    assert now.growing is not None
    assert (now.growing.text, now.growing.since) == ("hi", 1234.5)


def test_older_messages_come_before_those_that_are_here() -> None:
    now = opened(Conversation(chat="c"), view(message("q2", "user", "and?"), earlier=2))
    assert now.earlier == 2
    now = older(now, view(Q1, A1, earlier=0))
    assert names(now) == ["q1", "a1", "q2"]
    assert now.earlier == 0


def test_the_question_of_a_message_is_the_last_one_before_it() -> None:
    now = opened(Conversation(chat="c"), view(Q1, A1, message("q2", "user", "and?")))
    assert [item and item.message.id for item in map(now.question_of, ("q1", "a1", "q2", "x"))] == [
        "q1",
        "q1",
        "q2",
        None,
    ]


def test_the_context_meter_follows_the_answer() -> None:
    now = begun(asked(Conversation(chat="c"), "hello", 5.0), CREATED)
    stats = events.Stats(tokens=3, tok_s=None, ttft_ms=None, ctx_used=40, ctx_max=1024)
    now = heard(now, "a1", ChatState(text="h", stats=stats))
    assert (now.ctx_used, now.ctx_max) == (40, 1024)
    assert opened(now, view(Q1, A1)).ctx_used == 40
    assert opened(now, view(Q1, A1, ctx_used=41, ctx_max=1024)).ctx_used == 41


def test_a_branch_is_counted_as_soon_as_it_is_asked_for() -> None:
    now = answered_again(opened(Conversation(chat="c"), view(Q1, A1)), "a1", 1.0)
    assert now.items[-1].message.siblings == ["a1", ANSWERING]
    now = begun(now, TurnCreated(turn="t-2", chat="c", answer="a2"))
    assert now.items[-1].message.siblings == ["a1", "a2"]
    now = asked(opened(Conversation(chat="c"), view(Q1, A1)), "else", 1.0, parent="root")
    assert now.items[0].message.siblings == ["q1", SAID]
    assert asked(now, "more", 1.0).items[-2].message.siblings == []
