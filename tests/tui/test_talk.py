"""A conversation as a person leads it, against a real daemon: every wish, and nothing said is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from homebox.client import chats
from homebox.client.connection import Daemon
from homebox.errors import InvalidRequest
from homebox.tui.talk import Talk
from tests.client.fake_daemon import FakeDaemon
from tests.daemon.box import Box
from tests.daemon.test_serve import served

from .waiting import until


def led(daemon: Daemon, what: Callable[[Talk], Awaitable[Any]], **given: Any) -> Talk:
    """Run `what` with a new Talk."""

    async def run() -> Talk:
        talk = Talk(daemon, lambda: None, **given)
        try:
            await what(talk)
        finally:
            talk.close()
        return talk

    return asyncio.run(run())


def quiet(talk: Talk) -> bool:
    """The last answer has ended, and the daemon's word on it is here."""
    items = talk.now.items
    return (
        bool(items) and talk.now.growing is None and items[-1].message.state != "growing" and talk.now.known
    )


def texts(talk: Talk) -> list[str]:
    return [item.text for item in talk.now.items]


def test_a_question_is_there_at_once_and_its_answer_grows_to_the_end(daemon: Daemon) -> None:
    async def talk_about(talk: Talk) -> None:
        talk.say("[[say=hello_there]]")
        assert texts(talk) == ["[[say=hello_there]]", ""]
        await until(lambda: quiet(talk))
        assert texts(talk) == ["[[say=hello_there]]", "hello there"]
        assert talk.now.title
        assert talk.now.ctx_used is not None
        assert talk.now.ctx_max == 1024

    led(daemon, talk_about)


def test_a_stopped_answer_is_kept_and_goes_on(daemon: Daemon) -> None:
    async def stop_and_go_on(talk: Talk) -> None:
        talk.say("[[forever]][[pace=20]]")
        await until(lambda: len(texts(talk)[-1]) > 10)
        await talk.stop()
        await until(lambda: quiet(talk))
        kept = texts(talk)[-1]
        assert talk.now.items[-1].message.state == "stopped"
        assert talk.now.items[-1].message.turn in talk.stopped
        talk.go_on()
        await until(lambda: len(texts(talk)[-1]) > len(kept) + 10)
        await talk.stop()
        await until(lambda: quiet(talk))
        assert texts(talk)[-1].startswith(kept)
        assert len(talk.now.items) == 2

    led(daemon, stop_and_go_on)


def test_a_stop_before_the_daemon_has_answered_stops_it_as_soon_as_it_has(daemon: Daemon) -> None:
    async def stop_at_once(talk: Talk) -> None:
        talk.say("[[forever]][[pace=20]]")
        await talk.stop()
        await until(lambda: quiet(talk))
        assert talk.now.items[-1].message.state == "stopped"

    led(daemon, stop_at_once)


def test_answering_again_and_editing_are_branches_and_nothing_is_lost(daemon: Daemon) -> None:
    async def branch(talk: Talk) -> None:
        talk.say("[[say=one]]")
        await until(lambda: quiet(talk))
        first = talk.now.items[-1].message.id
        talk.regenerate(first)
        await until(lambda: quiet(talk) and talk.now.items[-1].message.id != first)
        assert len(talk.now.items[-1].message.siblings) == 2
        await talk.branch(talk.now.items[-1].message.id, -1)
        assert talk.now.items[-1].message.id == first
        await talk.branch(first, -1)  # there is none before
        assert talk.now.items[-1].message.id == first

        question = talk.now.items[0].message
        talk.say("[[say=two]]", parent=question.parent or "root")
        await until(lambda: quiet(talk) and texts(talk)[-1] == "two")
        assert len(talk.now.items) == 2
        await talk.branch(talk.now.items[0].message.id, -1)
        assert texts(talk) == ["[[say=one]]", "one"]

    led(daemon, branch)


def test_what_is_said_while_an_answer_is_written_follows_it_or_is_taken_back(daemon: Daemon) -> None:
    async def queue(talk: Talk) -> None:
        talk.say("[[forever]][[pace=20]]")
        await until(lambda: texts(talk)[-1])
        talk.say("[[say=next]]")
        talk.say("never mind")
        assert talk.now.queued == ("[[say=next]]", "never mind")
        assert talk.withdraw_queued() == "never mind"
        await talk.stop()
        await until(lambda: quiet(talk) and texts(talk)[-1] == "next")
        assert talk.now.queued == ()
        assert talk.withdraw_queued() is None
        talk.go_on()  # it had ended by itself
        await until(lambda: talk.now.error)
        assert texts(talk)[-1] == "next"

    led(daemon, queue)


def test_another_screen_shows_an_answer_that_is_being_written_from_its_start(daemon: Daemon) -> None:
    async def both(talk: Talk) -> None:
        talk.say("[[forever]][[pace=20]]")
        await until(lambda: len(texts(talk)[-1]) > 20)
        other = Talk(daemon, lambda: None)
        await other.open(talk.now.chat)
        await until(lambda: len(texts(other)[-1]) > 40)
        await talk.stop()
        await until(lambda: quiet(talk) and quiet(other))
        assert texts(other) == texts(talk)
        # ... and one that goes on, from what was there before.
        talk.go_on()
        await until(lambda: len(texts(talk)[-1]) > len(texts(other)[-1]) + 10)
        third = Talk(daemon, lambda: None)
        await third.open(talk.now.chat)
        await until(lambda: len(texts(third)[-1]) > len(texts(other)[-1]) + 20)
        await talk.stop()
        await until(lambda: quiet(talk) and quiet(third))
        assert texts(third) == texts(talk)
        other.close()
        third.close()

    led(daemon, both)


def test_leaving_a_conversation_leaves_its_answer_to_the_daemon(daemon: Daemon, box: Box) -> None:
    async def leave(talk: Talk) -> None:
        talk.say("[[forever]][[pace=20]]")
        await until(lambda: texts(talk)[-1])
        chat, turn = talk.now.chat, talk.now.items[-1].message.turn
        talk.new()
        assert talk.now.items == ()
        assert not talk.now.known
        have = box.tokens(turn or "")
        await until(lambda: box.tokens(turn or "") > have + 3)
        await talk.open(chat)
        await talk.stop()
        await until(lambda: quiet(talk))

    led(daemon, leave)


def test_a_long_conversation_is_read_from_its_end_and_on_request_further_back(daemon: Daemon) -> None:
    async def read_back(talk: Talk) -> None:
        for number in range(4):
            talk.say(f"[[say={number}]]")
            await until(lambda: quiet(talk) and len(talk.now.items) == 2 * (number + 1))  # noqa: B023
        other = Talk(daemon, lambda: None, window=2)
        await other.open(talk.now.chat)
        assert texts(other) == ["[[say=3]]", "3"]
        assert other.now.earlier == 6
        while other.now.earlier:
            await other.older()
        assert texts(other) == texts(talk)
        await other.open(talk.now.chat, at=talk.now.items[1].message.id)
        other.close()

    led(daemon, read_back)


def test_a_message_that_is_refused_is_given_back_and_everything_is_as_before(daemon: Daemon) -> None:
    back: list[str] = []

    async def refused(talk: Talk) -> None:
        talk.say("word " * 3000)
        await until(lambda: talk.now.error)
        assert talk.now.items == ()
        assert not talk.now.known
        assert back == ["word " * 3000]
        assert talk.now.error is not None
        assert "1,024" in str(talk.now.error) or "1024" in str(talk.now.error)

    led(daemon, refused, unsent=back.append)


def test_what_had_arrived_is_kept_when_the_daemon_is_killed_and_the_conversation_goes_on(
    model: Path, tmp_path: Path
) -> None:
    async def killed(talk: Talk) -> None:
        with served(model, tmp_path) as process:
            talk.say("[[forever]][[pace=20]]")
            await until(lambda: len(texts(talk)[-1]) > 40)
            process.process.kill()
            await until(lambda: talk.now.items[-1].answer and talk.now.items[-1].answer.connection_lost)
            seen = texts(talk)[-1]
        with served(model, tmp_path):
            await until(lambda: quiet(talk))
            answer = talk.now.items[-1]
            assert seen.startswith(answer.message.content)  # on disk at most 250 ms behind
            assert answer.message.state == "stopped"
            assert answer.message.detail == "daemon restarted"
            talk.say("[[say=still_here]]")
            await until(lambda: quiet(talk) and texts(talk)[-1] == "still here")

    led(Daemon(socket_path=tmp_path / "run" / "api.sock"), killed)


def test_a_daemon_that_is_away_is_asked_again_and_the_message_is_said_once(tmp_path: Path) -> None:
    fake = FakeDaemon(tmp_path / "s")
    daemon = Daemon(socket_path=tmp_path / "s")

    async def away(talk: Talk) -> None:
        talk.say("hello")
        await until(lambda: talk.away)
        assert texts(talk) == ["hello", ""]
        fake.when(
            "POST",
            "/homebox/chats",
            lambda exchange: exchange.json({"turn": "t-1", "chat": "c", "question": "q", "answer": "a"}),
        )
        fake.start()
        await until(lambda: talk.now.known)
        assert talk.away is None
        assert [item.message.id for item in talk.now.items] == ["q", "a"]
        assert len([asked for asked in fake.requests("/homebox/chats") if asked.method == "POST"]) == 1

    try:
        led(daemon, away)
    finally:
        fake.stop()


def test_a_title_and_an_instruction_are_the_conversations(daemon: Daemon) -> None:
    async def name(talk: Talk) -> None:
        with pytest.raises(InvalidRequest, match="nothing has been said"):
            await talk.title("too early")
        talk.say("[[say=hello]]")
        await until(lambda: quiet(talk))
        await talk.title("Trip to Lisbon")
        assert chats.show(daemon, talk.now.chat).title == "Trip to Lisbon"
        assert talk.now.title == "Trip to Lisbon"

    led(daemon, name)


def test_a_message_that_nobody_takes_can_be_given_up_and_is_had_back(tmp_path: Path) -> None:
    back: list[str] = []

    async def give_up(talk: Talk) -> None:
        talk.say("hello")
        await until(lambda: talk.away)
        await talk.stop()
        await until(lambda: back)
        assert back == ["hello"]
        assert (talk.now.items, talk.now.error, talk.away) == ((), None, None)
        talk.say("again")  # giving up was about that one
        await until(lambda: talk.away)
        assert texts(talk)[0] == "again"

    led(Daemon(socket_path=tmp_path / "nobody"), give_up, unsent=back.append)
