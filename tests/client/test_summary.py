"""A conversation that is as long as its context can be summed up, all of it, and what went wrong is said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homebox.client import chats, models
from homebox.client.connection import Daemon
from homebox.client.summary import Progress, first_message, needs_room, pieces, summarise, transcript
from homebox.errors import Busy, ContextLengthExceeded, EngineFailed, InvalidRequest, Unavailable
from homebox.wire.chats import ChatView, MessageView
from homebox.wire.events import Usage
from tests.client.fake_daemon import Exchange, FakeDaemon, answer
from tests.daemon.box import running
from tests.daemon.tiny_model import build


def view(*said: str, **more: Any) -> ChatView:
    messages = [
        MessageView(id=f"m{n}", role="assistant" if n % 2 else "user", content=text)
        for n, text in enumerate(said)
    ]
    return ChatView(
        **{"id": "c", "title": "Trip", "created": 0.0, "updated": 0.0, "messages": messages} | more
    )


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeDaemon]:
    with FakeDaemon(tmp_path / "s") as running_fake:
        serves(running_fake, 2000)
        running_fake.answers("a summary")
        yield running_fake


def serves(fake: FakeDaemon, context: int | None) -> None:
    row = {"id": "m"} | ({"max_model_len": context} if context else {})
    fake.when("GET", "/v1/models", lambda exchange: exchange.json({"object": "list", "data": [row]}))
    fake.when("GET", "/health", lambda exchange: exchange.json({"state": "loading", "model": "m"}, 503))


def daemon_of(fake: FakeDaemon) -> Daemon:
    return Daemon(socket_path=fake.path)


def asked(fake: FakeDaemon) -> list[str]:
    return [each.body["messages"][1]["content"] for each in fake.requests("/homebox/ask")]


def nothing(progress: Progress) -> None:
    return


def test_at_nine_tenths_it_is_time() -> None:
    assert [needs_room(used, 1000) for used in (0, 899, 900, 1000)] == [False, False, True, True]
    assert not needs_room(5, 0)


@given(st.text(st.sampled_from("ab \n語"), max_size=400), st.integers(1, 60))
def test_pieces_are_small_enough_and_together_they_are_all_of_it(text: str, most: int) -> None:
    made = pieces(text, most)
    assert "".join(made) == text
    assert all(0 < len(each) <= most for each in made)


def test_a_short_conversation_is_one_question_with_all_that_was_said(fake: FakeDaemon) -> None:
    seen: list[Progress] = []
    said = view("Plan a trip", "To Lisbon")
    assert summarise(daemon_of(fake), said, on_progress=seen.append) == "a summary"
    (prompt,) = asked(fake)
    assert "Person: Plan a trip\n\nModel: To Lisbon" in prompt
    assert fake.requests("/homebox/ask")[0].body["options"]["model"] == "m"
    assert {(each.part, each.parts) for each in seen} == {(1, 1)}
    assert seen[-1].state.done


def test_a_long_one_is_read_in_pieces_each_with_the_summary_so_far_and_none_left_out(
    fake: FakeDaemon,
) -> None:
    turns = iter(range(100))
    fake.when("POST", "/homebox/ask", lambda exchange: exchange.stream(answer(f"summary {next(turns)}")))
    said = view(*(f"number{n} " * 60 for n in range(20)))
    assert summarise(daemon_of(fake), said, on_progress=nothing) == f"summary {len(asked(fake)) - 1}"
    prompts = asked(fake)
    assert len(prompts) > 2
    assert all(f"The summary so far:\n\nsummary {n}" in prompt for n, prompt in enumerate(prompts[1:]))
    assert sum(prompt.split().count("number7") for prompt in prompts) == 60


def test_pieces_are_sized_by_the_tokens_that_were_counted(fake: FakeDaemon) -> None:
    said = view("word " * 400, "word " * 400)
    counted = MessageView(
        id="x", role="assistant", content="end", usage=Usage(prompt_tokens=400, completion_tokens=2)
    )
    many = view(messages=[*said.messages, counted])
    summarise(daemon_of(fake), said, on_progress=nothing)
    by_guess = len(asked(fake))
    summarise(daemon_of(fake), many, on_progress=nothing)
    assert len(asked(fake)) - by_guess < by_guess


def test_a_piece_that_is_too_long_after_all_is_cut_in_two_and_read_whole(fake: FakeDaemon) -> None:
    def measured(exchange: Exchange) -> None:
        prompt = exchange.asked.body["messages"][1]["content"]
        if len(prompt) > 1200:
            exchange.error(ContextLengthExceeded("too long", numbers={"prompt_tokens": 9}))
        else:
            exchange.stream(answer("s"))

    fake.when("POST", "/homebox/ask", measured)
    summarise(daemon_of(fake), view(" ".join(f"w{n}" for n in range(600))), on_progress=nothing)
    read = " ".join(prompt for prompt in asked(fake) if len(prompt) <= 1200)
    assert all(f"w{n}" in read.split() for n in range(600))


def test_an_answer_that_the_context_ended_is_not_taken_for_a_summary(fake: FakeDaemon) -> None:
    serves(fake, 2000)

    def tight(exchange: Exchange) -> None:
        full = len(exchange.asked.body["messages"][1]["content"]) > 900
        usage = (
            Usage(prompt_tokens=1990, completion_tokens=10)
            if full
            else Usage(prompt_tokens=5, completion_tokens=5)
        )
        events = answer("s", reason="length" if full else "stop")
        exchange.stream(
            [
                *events[:-1],
                type(events[-1])(
                    **{name: getattr(events[-1], name) for name in events[-1].__struct_fields__}
                    | {"usage": usage}
                ),
            ]
        )

    fake.when("POST", "/homebox/ask", tight)
    assert summarise(daemon_of(fake), view("word " * 300), on_progress=nothing) == "s"
    assert len(asked(fake)) > 2


def test_a_summary_that_reached_its_limit_says_so(fake: FakeDaemon) -> None:
    fake.answers("a long sum", reason="length")
    assert summarise(daemon_of(fake), view("hi"), on_progress=nothing) == (
        "a long sum\n\n(This summary reached its limit and was cut off there, 1 of 1 times.)"
    )


def test_what_goes_wrong_is_said_and_never_makes_a_summary(fake: FakeDaemon) -> None:
    daemon = daemon_of(fake)
    with pytest.raises(Busy, match="still being written"):
        summarise(daemon, view("hi", turns={"m1": "t"}), on_progress=nothing)
    with pytest.raises(InvalidRequest, match="nothing was said"):
        summarise(daemon, view(" "), on_progress=nothing)
    assert asked(fake) == []
    fake.answers(" ")
    with pytest.raises(EngineFailed, match="empty"):
        summarise(daemon, view("hi"), on_progress=nothing)
    fake.answers("half", reason="error", error=EngineFailed("it broke").as_dict())
    with pytest.raises(EngineFailed, match="it broke"):
        summarise(daemon, view("hi"), on_progress=nothing)
    fake.answers("half", reason="cancelled", detail="by mum")
    with pytest.raises(EngineFailed, match="by mum"):
        summarise(daemon, view("hi"), on_progress=nothing)
    serves(fake, 300)
    with pytest.raises(ContextLengthExceeded, match="300 tokens"):
        summarise(daemon, view("hi"), on_progress=nothing)
    serves(fake, None)
    with pytest.raises(Unavailable, match="not known"):
        summarise(daemon, view("hi"), on_progress=nothing)


def test_stopping_it_hangs_up(fake: FakeDaemon) -> None:
    def slow(exchange: Exchange) -> None:
        exchange.begin()
        exchange.say(answer("x")[:-1])
        exchange.wait_for_hang_up()

    def stop(progress: Progress) -> None:
        if progress.state.text:
            raise KeyboardInterrupt

    fake.when("POST", "/homebox/ask", slow)
    with pytest.raises(KeyboardInterrupt):
        summarise(daemon_of(fake), view("hi"), on_progress=stop)
    assert fake.requests("/homebox/ask")[0].hung_up.wait(10)


def test_the_first_message_says_what_it_is() -> None:
    assert first_message("Trip\n x", " They go. ") == (
        'We have spoken before about "Trip x". This is a summary of what was said:\n\nThey go.\n\nGo on from there.\n\n'
    )
    assert first_message("", "S").startswith("We have spoken before. ")
    assert transcript(view("a", "", "b")) == "Person: a\n\nPerson: b"


def test_with_a_real_daemon_a_conversation_longer_than_the_context_is_summed_up(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with running(build(tmp_path / "made"), tmp_path / "state") as box:
        daemon = Daemon(socket_path=Path(box.socket))
        (model,) = models.served(daemon)
        assert model.loaded
        assert model.context
        said = view(*("words about apples and pears " * 40 for _ in range(6)))
        seen: list[Progress] = []
        assert summarise(daemon, said, on_progress=seen.append)
        assert seen[-1].part == seen[-1].parts > 2
        assert box.idle()
        for n in range(3):
            box.say(f"c{n}", f"[[say=yes]] {n}", f"k{n}").raise_for_status()
        first = chats.page_of(daemon, limit=2)
        assert [len(first.chats), len(chats.page_of(daemon, before=first.next, limit=2).chats)] == [2, 1]
