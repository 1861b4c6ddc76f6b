"""What a person deletes in a chat is out of sight at once, and nothing of it is lost for a week."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from homebox.client import chats
from homebox.client.connection import Daemon
from homebox.daemon.chats import deleting, growing, looking, schema, shelf, tree
from homebox.errors import InvalidRequest, NotFound
from homebox.wire import events

from .box import Box, running, text_of, until


class Talk:
    """One chat of a person, through our own client."""

    def __init__(self, box: Box) -> None:
        self.box, self.daemon, self.chat = box, Daemon(socket_path=Path(box.socket)), secrets.token_hex(8)

    def say(self, text: str, **fields: Any) -> dict[str, Any]:
        made = self.box.say(self.chat, text, secrets.token_hex(8), **fields)
        assert made.status_code == 200, made.text
        self.box.events(made.json()["turn"])
        return dict(made.json())

    def again(self, message: str) -> dict[str, Any]:
        body = {"key": secrets.token_hex(8), "message": message}
        made = self.box.http.post(f"/homebox/chats/{self.chat}/regenerate", json=body).json()
        self.box.events(made["turn"])
        return dict(made)

    def delete(self, message: str) -> None:
        chats.delete_message(self.daemon, self.chat, message)

    def undelete(self, message: str) -> None:
        chats.undelete_message(self.daemon, self.chat, message)

    @property
    def path(self) -> list[str]:
        return [each.content for each in chats.show(self.daemon, self.chat).messages]


@pytest.fixture(scope="module")
def shared(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    with running(model, tmp_path_factory.mktemp("box")) as box:
        yield box


@pytest.fixture
def talk(shared: Box) -> Talk:
    return Talk(shared)


def test_a_message_goes_with_all_below_it_and_undoing_brings_exactly_that_back(talk: Talk) -> None:
    one = talk.say("[[say=one]]")
    two = talk.say("[[say=two]]")
    talk.say("[[say=three]]")
    before = chats.show(talk.daemon, talk.chat, whole=True)
    row = chats.delete_message(talk.daemon, talk.chat, two["question"])
    assert talk.path == ["[[say=one]]", "one"] and row.messages == 2 and row.state == "done"
    assert chats.show(talk.daemon, talk.chat).head == one["answer"]
    talk.delete(two["question"])  # to delete what is deleted changes nothing
    again = chats.undelete_message(talk.daemon, talk.chat, two["question"])
    after = chats.show(talk.daemon, talk.chat, whole=True)
    assert (after.messages, after.head) == (before.messages, before.head) and again.messages == 6
    talk.undelete(two["question"])
    assert talk.path[1::2] == ["one", "two", "three"]


def test_the_newest_path_beside_it_is_the_current_one_then_or_what_it_answered(talk: Talk) -> None:
    one = talk.say("[[say=one]]")
    first, second = one["answer"], talk.again(one["answer"])["answer"]
    third = talk.again(first)["answer"]
    talk.delete(third)
    shown = chats.show(talk.daemon, talk.chat)
    assert shown.head == second and shown.messages[1].siblings == [first, second]
    talk.delete(second)
    talk.delete(first)
    assert talk.path == ["[[say=one]]"]
    assert text_of(talk.box.events(talk.again(one["question"])["turn"])) == "one"
    talk.delete(one["question"])
    assert talk.path == [] and chats.show(talk.daemon, talk.chat).head is None
    assert talk.say("[[say=new]]")["question"] and talk.path == ["[[say=new]]", "new"]
    talk.undelete(one["question"])
    assert talk.path == ["[[say=one]]", "one"] and len(chats.show(talk.daemon, talk.chat).messages) == 2
    for answer in (first, second, third):
        talk.undelete(answer)
    assert len(chats.show(talk.daemon, talk.chat).messages[1].siblings) == 4


def test_undoing_leads_back_to_the_branch_that_was_read(talk: Talk) -> None:
    talk.say("[[say=zero]]")
    one = talk.say("[[say=one]]")
    talk.again(one["answer"])
    chats.change(talk.daemon, talk.chat, head=one["answer"])
    talk.delete(one["question"])
    talk.undelete(one["question"])
    assert chats.show(talk.daemon, talk.chat).head == one["answer"], "not the newer one beside it"


def test_what_is_above_comes_back_first(talk: Talk) -> None:
    one = talk.say("[[say=one]]")
    two = talk.say("[[say=two]]")
    talk.delete(two["answer"])
    talk.delete(one["answer"])
    with pytest.raises(InvalidRequest, match="deleted, too"):
        talk.undelete(two["answer"])
    talk.undelete(two["question"])  # it went with the answer above it
    assert talk.path == ["[[say=one]]", "one", "[[say=two]]"]
    talk.undelete(two["answer"])
    assert talk.path[-1] == "two"


def test_what_is_deleted_is_found_by_nothing_and_nothing_goes_on_from_it(talk: Talk) -> None:
    word = f"zucchini{secrets.token_hex(4)}"
    first = talk.say(f"[[say=yes]] {word} and more")
    other = talk.say("[[say=other]] something else", parent="root")
    assert {hit.role for hit in chats.search(talk.daemon, word)} == {None, "user"}
    chats.change(talk.daemon, talk.chat, head=first["answer"])
    talk.delete(first["question"])
    assert talk.path == ["[[say=other]] something else", "other"]
    assert chats.search(talk.daemon, word) == [], "nor in a title that was made of it"
    for form in ("md", "json"):
        assert word not in chats.export_text(talk.daemon, talk.chat, form)  # type: ignore[arg-type]
    assert word not in talk.box.http.get("/homebox/chats").text
    http, at = talk.box.http, f"/homebox/chats/{talk.chat}"
    tries = (
        http.post(f"{at}/turns", json={"key": "a", "text": "x", "parent": first["answer"]}),
        http.post(f"{at}/regenerate", json={"key": "b", "message": first["answer"]}),
        http.post(f"{at}/branch", json={"message": first["answer"]}),
        http.patch(at, json={"head": first["answer"]}),
        http.get(f"{at}?before={first['answer']}"),
        http.post(f"/homebox/turns/{first['turn']}/continue", json={"key": "c"}),
    )
    for answer in tries:
        assert answer.status_code == 404 and "was deleted" in answer.text, answer.text
    assert http.post(f"{at}/messages/{other['answer']}x/undelete", json={}).status_code == 404
    talk.undelete(first["question"])
    assert len(chats.search(talk.daemon, word)) == 2 and word in chats.export_text(
        talk.daemon, talk.chat, "md"
    )


def test_an_answer_that_is_written_there_is_stopped_and_comes_back_with_its_words(talk: Talk) -> None:
    one = talk.say("[[say=one]]")
    made = talk.box.say(talk.chat, "[[forever]][[pace=5]]", "k").json()
    until(lambda: talk.box.tokens(made["turn"]) > 3)
    talk.delete(made["question"])
    end = talk.box.events(made["turn"])[-1]
    assert isinstance(end, events.Finished) and end.detail == "its message was deleted"
    assert talk.path == ["[[say=one]]", "one"]
    assert talk.say("[[say=two]]") and talk.path[1::2] == ["one", "two"], "it holds up nobody"
    until(talk.box.idle)
    talk.undelete(made["question"])
    kept = chats.show(talk.daemon, talk.chat).messages[-1]
    assert kept.content == text_of(talk.box.events(made["turn"])) and kept.state == "stopped"
    assert one["answer"] in [each.id for each in chats.show(talk.daemon, talk.chat).messages]


def test_a_title_of_the_persons_own_stays(talk: Talk) -> None:
    one = talk.say("[[say=one]] about boats")
    chats.change(talk.daemon, talk.chat, title="Boats")
    talk.delete(one["question"])
    assert chats.show(talk.daemon, talk.chat).title == "Boats"
    with pytest.raises(NotFound):
        chats.delete_message(talk.daemon, talk.chat, "m-nope")


def test_after_a_week_it_is_gone_for_good_and_with_it_what_was_below() -> None:
    db = schema.open_file(schema.MEMORY)

    def said(number: int, parent: str | None) -> str:
        tree.submit(
            db,
            tree.Submission(
                chat="c", key=f"k{number}", turn=f"t{number}", model="m", parent=parent, question=f"q{number}",
                text=f"word{number}", answer=f"a{number}", prompt=[1], own=[],
            ),
        )  # fmt: skip
        growing.recover(db)
        return f"a{number}"

    said(3, said(2, said(1, None)))
    now = time.time()
    deleting.delete_message(db, "c", "q3", now + 100)  # a clock that was set back since
    deleting.delete_message(db, "c", "q2", now)
    deleting.purge(db, now + deleting.KEPT_S - 1)
    assert db.execute("SELECT count(*) FROM messages").fetchone()[0] == 6
    with pytest.raises(NotFound):
        deleting.undelete_message(db, "c", "q2", now + deleting.KEPT_S)
    deleting.purge(db, now + deleting.KEPT_S)
    assert [each.id for each in looking.view(db, "c", whole=True).messages] == ["q1", "a1"]
    assert [row["turn"] for row in db.execute("SELECT turn FROM turns")] == ["t1"]
    assert shelf.search(db, "word2") == [] and not db.execute("SELECT * FROM deletions").fetchall()
    db.execute("INSERT INTO message_words (message_words, rank) VALUES ('integrity-check', 1)")
    assert not db.execute("PRAGMA foreign_key_check").fetchall()
    db.close()
