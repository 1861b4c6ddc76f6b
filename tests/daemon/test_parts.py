"""The daemon's pure parts: a turn's log and its readers, an answer's text, a chat's history."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from homebox.daemon.answer import Answer
from homebox.daemon.chats.history import alternating
from homebox.daemon.eventlog import BEHIND_LIMIT_BYTES, EventLog, Reader
from homebox.text.reasoning import ReasoningSplitter
from homebox.text.tokens import Tokenizer
from homebox.wire import events
from homebox.wire.requests import Message

FINISHED = events.Finished(reason="stop", usage=events.Usage(1, 1), timing=events.Timing())


class Written:
    """A log with an answer that grows in it."""

    def __init__(self, limit_bytes: int = 1 << 20) -> None:
        self.text = ""
        self.log = EventLog(lambda: self.text, limit_bytes)

    def write(self, text: str) -> None:
        self.log.append(events.Text(text=text, offset=len(self.text)))
        self.text += text

    def finish(self) -> None:
        self.log.append(FINISHED)
        self.log.close()


def heard(reader: Reader) -> list[events.Event]:
    return [events.decode_event(line) for line in reader.take().splitlines()]


def test_readers_get_every_line_once_from_where_they_ask() -> None:
    written = Written()
    first = written.log.read()
    for word in ("a", "b", "c"):
        written.write(word)
    second = written.log.read(after=2)
    written.finish()
    assert [event.seq for event in heard(first)] == [1, 2, 3, 4] and heard(first) == []
    assert [event.seq for event in heard(second)] == [3, 4]
    assert first.finished and second.finished


def test_a_reader_who_falls_behind_gets_the_answer_whole_and_its_end() -> None:
    written = Written()
    slow = written.log.read()
    written.write("begin ")
    assert len(heard(slow)) == 1
    for _ in range(8):
        written.write("x" * (BEHIND_LIMIT_BYTES // 7))
    resync, *rest = heard(slow)
    assert isinstance(resync, events.Resync) and resync.text == written.text and resync.seq == 9 and not rest
    written.write("end")
    assert [type(event) for event in heard(slow)] == [events.Text]
    late = written.log.read(after=9)
    for _ in range(8):
        written.write("y" * (BEHIND_LIMIT_BYTES // 7))
    written.finish()
    resync, last = heard(late)
    assert isinstance(resync, events.Resync) and resync.text == written.text
    assert isinstance(last, events.Finished) and last.seq == resync.seq + 1 and late.finished


def test_lines_that_were_let_go_are_made_up_for() -> None:
    written = Written(limit_bytes=2000)
    for _ in range(100):
        written.write("some words ")
    written.finish()
    assert written.log.kept_bytes <= 2000
    resync, last = heard(written.log.read())
    assert (
        isinstance(resync, events.Resync)
        and resync.text == written.text
        and isinstance(last, events.Finished)
    )
    assert [type(event) for event in heard(written.log.read(after=100))] == [events.Finished]


def test_an_old_answer_is_read_whole_however_large_it_is() -> None:
    written = Written()
    for _ in range(8):
        written.write("x" * (BEHIND_LIMIT_BYTES // 7))
    written.finish()
    assert len(heard(written.log.read())) == 9


def test_silence_is_a_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homebox.daemon.eventlog.HEARTBEAT_S", 0.01)
    written = Written()
    written.write("a")
    reader = written.log.read(after=1)
    assert events.decode_event(asyncio.run(reader.wait()).strip()) == events.Heartbeat(seq=1)


@given(st.lists(st.sampled_from(["write", "take"]), max_size=60))
def test_whatever_the_order_of_writing_and_reading_the_text_is_the_same(order: list[str]) -> None:
    written = Written(limit_bytes=400)
    reader, text = written.log.read(), ""
    for what in [*order, "write", "finish", "take"]:
        if what == "write":
            written.write(f"word{len(written.text)} ")
        elif what == "finish":
            written.finish()
        else:
            for event in heard(reader):
                if isinstance(event, events.Resync):
                    text = event.text
                elif isinstance(event, events.Text):
                    assert event.offset == len(text)
                    text += event.text
    assert text == written.text and reader.finished


# ---- answers


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Tokenizer:
    return Tokenizer.load(model)


def test_an_answer_gives_all_text_and_each_token_once(tokenizer: Tokenizer) -> None:
    said = "größer 🙂 日本 and soup"
    answer = Answer(tokenizer, stops=["never"])
    text, spoken = "", []
    for token in tokenizer.encode(said):
        answer.push(token)
        delta = answer.take()
        assert "\ufffd" not in delta.text
        text += delta.text
        spoken += delta.spoken
    answer.close()
    delta = answer.take()
    assert text + delta.text == said == answer.text
    tokens = [one.token for one in spoken + delta.spoken]
    assert tokens == tokenizer.encode(said)


def test_a_stop_string_counts_only_after_the_least_number_of_tokens(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("soup soup soup soup")
    first = len(tokenizer.encode("soup soup"))
    answer = Answer(tokenizer, stops=["soup"], min_tokens=first)
    for token in tokens:
        answer.push(token)
    assert answer.stopped and answer.text == "soup soup "
    assert answer.tokens < len(tokens)  # what came after the stop is not counted


def test_a_character_that_was_cut_in_its_middle_is_left_out_and_its_tokens_are_not(
    tokenizer: Tokenizer,
) -> None:
    answer = Answer(tokenizer, splitter=ReasoningSplitter(), stops=["!"])
    tokens = tokenizer.encode("ok 🙂")[:-1]
    for token in tokens:
        answer.push(token)
    spoken = answer.take().spoken
    answer.close()
    last = answer.take()
    assert (answer.text, last.text) == ("ok ", "")
    assert [one.token for one in spoken + last.spoken] == tokens


# ---- chats


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.sampled_from(["", "a", "b"]))))
def test_any_history_alternates_and_loses_no_word(said: list[tuple[str, str]]) -> None:
    messages = [msgspec.convert({"role": role, "content": content}, Message) for role, content in said]
    history = alternating(messages)
    assert all(before.role != after.role for before, after in itertools.pairwise(history))
    words = "".join(content for _, content in said)
    assert "".join(message.content for message in history).replace("\n", "") == words
    assert all(message.content for message in history if message.role == "assistant")
