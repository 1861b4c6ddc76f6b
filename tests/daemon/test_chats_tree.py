"""Whatever is said, edited, answered again, deleted and undone in whatever order: the tree is what it should be."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from homebox.daemon.chats import deleting, growing, looking, schema, shelf, transfer, tree
from homebox.daemon.chats.growing import Ending, Piece
from homebox.daemon.chats.tokens import Ids, computed
from homebox.errors import HomeboxError, InvalidRequest, NotFound
from homebox.wire import events
from homebox.wire.chats import ROOT

from .box import Box, until

WORDS = st.sampled_from(["soup", "the cat", "été", "a%b", "日本", "'quoted\" --"])


@dataclass
class Chat:
    """What a chat should hold: each message's parent and text, in the order in which they came. `gone` are the messages
    out of sight, each with the one with which it went; `heads` is where the chat was before each of those went."""

    parents: dict[str, str | None] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    questions: set[str] = field(default_factory=set)
    head: str | None = None
    deleted: bool = False
    gone: dict[str, str] = field(default_factory=dict)
    heads: dict[str, str | None] = field(default_factory=dict)

    def path(self) -> list[str]:
        out, at = [], self.head
        while at is not None:
            out.append(at)
            at = self.parents[at]
        return out[::-1]

    def leaf_below(self, name: str) -> str:
        while children := self.children(name):
            name = children[-1]
        return name

    def children(self, name: str | None) -> list[str]:
        """Those in sight, oldest first."""
        return [child for child, parent in self.parents.items() if parent == name and child not in self.gone]


class Tree(RuleBasedStateMachine):
    """The functions of a person's file against a model of it in a few lines."""

    messages = Bundle("messages")

    def __init__(self) -> None:
        super().__init__()
        self.db = schema.open_file(schema.MEMORY)
        self.model: dict[str, Chat] = {}
        self.turns = 0

    @initialize(target=messages)
    def first_words(self) -> Any:
        return multiple(*(("c0", name) for name in self._new_chat("c0")))

    @rule(target=messages)
    @precondition(lambda self: len(self.model) < 3)
    def new_chat(self) -> Any:
        name = f"c{len(self.model)}"
        return multiple(*((name, each) for each in self._new_chat(name)))

    def _new_chat(self, name: str) -> tuple[str, str]:
        self.model[name] = Chat()
        return self._submit(name, None, "hello")

    def _submit(
        self, chat: str, parent: str | None, text: str | None, answer: str | None = None
    ) -> tuple[str, str]:
        self.turns += 1
        expected = self.model[chat]
        question = tree.new_id() if text is not None else parent
        made = answer or tree.new_id()
        new = tree.Submission(
            chat=chat, key=f"k{self.turns}", turn=f"t{self.turns}", model="m", parent=parent, question=question,
            text=text, answer=made, goes_on=answer is not None, prompt=[1, 2], own=[3] if answer else [],
        )  # fmt: skip
        self.db.execute("BEGIN")
        tree.submit(self.db, new)
        self.db.execute("COMMIT")
        assert question is not None
        if text is not None:
            expected.parents[question], expected.texts[question] = parent, text
            expected.states[question] = "done"
            expected.questions.add(question)
        if answer is None:
            expected.parents[made], expected.texts[made] = question, ""
        expected.states[made], expected.head = "growing", made
        return question, made

    @rule(target=messages, message=messages, data=st.data(), text=WORDS)
    def say(self, message: tuple[str, str], data: st.DataObject, text: str) -> Any:
        chat, name = message
        expected = self.model[chat]
        parent = data.draw(st.sampled_from([None, ROOT, name]))
        if expected.deleted or (parent == name and name in expected.gone):
            with pytest.raises(NotFound):
                tree.place_to_say(self.db, chat, "new", None, parent)
            return multiple()
        place = tree.place_to_say(self.db, chat, "new", None, parent)
        wanted = expected.head if parent is None else None if parent == ROOT else parent
        assert [each.id for each in place.path] == Chat(expected.parents, head=wanted).path()
        question, answer = self._submit(chat, wanted, text)
        return multiple((chat, question), (chat, answer))

    @rule(target=messages, message=messages)
    def regenerate(self, message: tuple[str, str]) -> Any:
        chat, name = message
        expected = self.model[chat]
        if expected.deleted:
            return multiple()
        try:
            place = tree.place_to_answer(self.db, chat, "new", name)
        except HomeboxError:
            return multiple()
        assert name not in expected.gone
        question = place.path[-1].id
        assert question == (name if name in expected.questions else expected.parents[name])
        return multiple((chat, self._submit(chat, question, None)[1]))

    @rule(message=messages, pieces=st.lists(WORDS, max_size=3), how=st.sampled_from(["fold", "crash"]))
    def end_what_grows(self, message: tuple[str, str], pieces: list[str], how: str) -> None:
        chat = message[0]
        for name in [name for name, state in self.model[chat].states.items() if state == "growing"]:
            for piece in pieces:
                growing.append(self.db, name, Piece(piece, "", [7]))
            expected = self.model[chat]
            expected.texts[name] += "".join(pieces)
            if how == "fold":
                end = Ending(
                    text=expected.texts[name], think="", tokens=[7], state="done", detail="",
                    usage=events.Usage(1, 1), timing=events.Timing(),
                )  # fmt: skip
                growing.fold(self.db, name, end)
                expected.states[name] = "done"
        if how == "crash":
            growing.recover(self.db)
            for other in self.model.values():
                other.states = {n: "stopped" if s == "growing" else s for n, s in other.states.items()}

    @rule(message=messages)
    def go_on(self, message: tuple[str, str]) -> None:
        chat, name = message
        expected = self.model[chat]
        is_leaf = not expected.children(name) and name not in expected.gone
        if not expected.deleted and expected.states[name] == "stopped" and is_leaf:
            self._submit(chat, expected.parents[name], None, name)

    @rule(message=messages)
    def go_to(self, message: tuple[str, str]) -> None:
        chat, name = message
        expected = self.model[chat]
        if expected.deleted or name in expected.gone:
            with pytest.raises(NotFound):
                tree.go_to(self.db, chat, name)
            return
        tree.go_to(self.db, chat, name)
        expected.head = expected.leaf_below(name)

    @rule(target=messages, message=messages)
    @precondition(lambda self: len(self.model) < 5)
    def branch(self, message: tuple[str, str]) -> Any:
        chat, name = message
        expected = self.model[chat]
        if expected.deleted or name in expected.gone or expected.states[name] == "growing":
            return multiple()
        self.db.execute("BEGIN")
        made = tree.branch(self.db, chat, name)
        self.db.execute("COMMIT")
        path = [each.id for each in tree.path(self.db, tree.find(self.db, made)["head"])]
        old = Chat(expected.parents, head=name).path()
        self.model[made] = Chat(
            dict(zip(path, [None, *path], strict=False)),
            {new: expected.texts[was] for new, was in zip(path, old, strict=True)},
            {new: expected.states[was] for new, was in zip(path, old, strict=True)},
            {new for new, was in zip(path, old, strict=True) if was in expected.questions},
            path[-1],
        )
        return multiple(*((made, each) for each in path))

    @rule(message=messages)
    def delete(self, message: tuple[str, str]) -> None:
        chat = message[0]
        deleting.delete(self.db, chat)
        self.model[chat].deleted = True

    @rule(message=messages)
    def undo(self, message: tuple[str, str]) -> None:
        chat = message[0]
        deleting.undelete(self.db, chat)
        self.model[chat].deleted = False

    @rule(message=messages)
    def delete_message(self, message: tuple[str, str]) -> None:
        chat, name = message
        expected = self.model[chat]
        if expected.deleted:
            return
        growing_below = deleting.delete_message(self.db, chat, name)
        if name in expected.gone:
            assert growing_below == []
            return
        went = [each for each in expected.parents if name in Chat(expected.parents, head=each).path()]
        went = [each for each in went if each not in expected.gone]
        expected.gone |= dict.fromkeys(went, name)
        assert set(growing_below) == {each for each in went if expected.states[each] == "growing"}
        expected.heads[name] = expected.head if expected.head in went else None
        if expected.head in went:
            beside = expected.children(expected.parents[name])
            expected.head = expected.leaf_below(beside[-1]) if beside else expected.parents[name]

    @rule(message=messages)
    def undelete_message(self, message: tuple[str, str]) -> None:
        chat, name = message
        expected = self.model[chat]
        if expected.deleted or name not in expected.gone:
            return
        first = expected.gone[name]
        if expected.parents[first] in expected.gone:
            with pytest.raises(InvalidRequest):
                deleting.undelete_message(self.db, chat, name)
            return
        deleting.undelete_message(self.db, chat, name)
        expected.gone = {each: with_ for each, with_ in expected.gone.items() if with_ != first}
        expected.head = expected.heads.pop(first) or expected.head

    @rule(message=messages)
    def export_and_import(self, message: tuple[str, str]) -> None:
        chat = message[0]
        if self.model[chat].deleted:
            return
        self.db.execute("BEGIN")
        made = transfer.take(self.db, transfer.export(self.db, chat))
        copied, own = looking.view(self.db, made, whole=True), looking.view(self.db, chat, whole=True)
        assert [each.content for each in copied.messages] == [each.content for each in own.messages]
        assert len(looking.view(self.db, made).messages) == len(self.model[chat].path())
        self.db.execute("ROLLBACK")

    @invariant()
    def the_file_holds_what_the_model_holds(self) -> None:
        for name, expected in self.model.items():
            if expected.deleted:
                with pytest.raises(NotFound):
                    looking.view(self.db, name, whole=True)
                continue
            every = looking.view(self.db, name, whole=True)
            seen = {n: p for n, p in expected.parents.items() if n not in expected.gone}
            assert {each.id: each.parent for each in every.messages} == seen
            settled = {
                n: t for n, t in expected.texts.items() if n in seen and expected.states[n] != "growing"
            }
            assert {each.id: each.content for each in every.messages if each.id in settled} == settled
            assert {each.id: each.state for each in every.messages} == {n: expected.states[n] for n in seen}
            assert [each.id for each in looking.view(self.db, name).messages] == expected.path()
            for each in every.messages:
                assert each.siblings == expected.children(each.parent)
        listed = {row.id: row.messages for row in shelf.rows(self.db, limit=200).chats}
        assert listed == {
            name: len(chat.parents) - len(chat.gone) for name, chat in self.model.items() if not chat.deleted
        }

    def teardown(self) -> None:
        self.db.execute("INSERT INTO message_words (message_words, rank) VALUES ('integrity-check', 1)")
        assert not self.db.execute("PRAGMA foreign_key_check").fetchall()
        self.db.close()


TestTree = Tree.TestCase
TestTree.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_people_who_do_everything_at_once_end_with_the_tree_that_they_were_told_of(
    box: Box, seed: int
) -> None:
    """Over the real routes, many at a time: each accepted request is in the chat exactly once, in its place."""
    told: list[dict[str, Any]] = []
    cut: list[tuple[str, str]] = []

    async def main() -> list[int]:
        transport = httpx.AsyncHTTPTransport(uds=box.socket)
        async with httpx.AsyncClient(transport=transport, base_url="http://box", timeout=60) as http:

            async def person(number: int) -> list[int]:
                rng, statuses = random.Random(f"{seed} {number}"), []
                for step in range(12):
                    chat = f"c{rng.randrange(3)}"
                    known = [each for each in told if each["chat"] == chat]
                    what = rng.choice(
                        ["say", "say", "say", "edit", "regenerate", "delete", "undelete", "stop", "cut"]
                    )
                    body: dict[str, Any] = {"key": f"{number}-{step}"}
                    if what in ("say", "edit"):
                        text = rng.choice(["[[say=ok]]", "[[forever]][[pace=2]]"])
                        body |= {"text": f"{text} {number} {step}", "options": {"max_tokens": 20}}
                        if what == "edit" and known:
                            body["parent"] = rng.choice(known)["answer"]
                        paths = [f"/homebox/chats/{chat}/turns"] * rng.choice([1, 2])
                    elif what == "regenerate":
                        if known:
                            body["message"] = rng.choice(known)["answer"]
                        paths = [f"/homebox/chats/{chat}/regenerate"]
                    elif what == "stop":
                        if known:
                            await http.delete(f"/homebox/turns/{rng.choice(known)['turn']}")
                        continue
                    elif what == "delete":
                        await http.delete(f"/homebox/chats/{chat}")
                        continue
                    elif what == "cut":
                        if known:
                            cut.append((chat, rng.choice(known)["question"]))
                            await http.delete("/homebox/chats/{}/messages/{}".format(*cut[-1]))
                        continue
                    else:
                        paths, body = [f"/homebox/chats/{chat}/undelete"], {}
                    replies = await asyncio.gather(*(http.post(path, json=body) for path in paths))
                    statuses += [reply.status_code for reply in replies]
                    accepted = [
                        reply.json()
                        for reply in replies
                        if reply.status_code == 200 and "turn" in reply.json()
                    ]
                    assert all(each == accepted[0] for each in accepted), "one key is one turn"
                    told.extend(
                        each | {"parent": body.get("parent"), "text": body.get("text")}
                        for each in accepted[:1]
                    )
                return statuses

            return [status for each in await asyncio.gather(*map(person, range(6))) for status in each]

    def undelete(chat: str, message: str) -> int:
        return box.http.post(f"/homebox/chats/{chat}/messages/{message}/undelete", json={}).status_code

    statuses = asyncio.run(main())
    assert set(statuses) <= {200, 400, 404, 429} and statuses.count(200) > 10, statuses
    until(lambda: not box.house.book.live)
    for chat in {each["chat"] for each in told}:
        box.http.post(f"/homebox/chats/{chat}/undelete", json={})
        mine = {name for where, name in cut if where == chat}
        while 400 in [undelete(chat, name) for name in mine]:  # what is above comes back first
            pass
        view = box.http.get(f"/homebox/chats/{chat}?all=1").json()
        by_id = {each["id"]: each for each in view["messages"]}
        mine = [each for each in told if each["chat"] == chat]
        answers = [each["answer"] for each in mine]
        assert len(set(answers)) == len(answers)
        assert set(by_id) == {each["answer"] for each in mine} | {each["question"] for each in mine}
        for each in mine:
            assert by_id[each["answer"]]["parent"] == each["question"]
            assert by_id[each["answer"]].get("state", "done") != "growing"
            if each["text"] is not None:
                assert by_id[each["question"]]["content"] == each["text"]
            if each["parent"] is not None:
                assert by_id[each["question"]]["parent"] == each["parent"]
    assert not box.house.exchange._savers, "everything is on disk"


def test_an_answer_that_is_cut_off_twice_keeps_both_parts_once() -> None:
    db = schema.open_file(schema.MEMORY)
    new = tree.Submission(
        chat="c",
        key="k",
        turn="t",
        model="m",
        parent=None,
        question="q",
        text="hello",
        answer="a",
        prompt=[1],
    )
    tree.submit(db, new)
    growing.append(db, "a", Piece("one ", "hm ", [2]))
    growing.append(db, "a", Piece("two ", "", [3]))
    assert (growing.recover(db), growing.recover(db)) == (1, 0)
    again = tree.Submission(
        chat="c", key="l", turn="u", model="m", parent="q", question="q", text=None, answer="a", goes_on=True,
        prompt=[1], own=[2, 3],
    )  # fmt: skip
    tree.submit(db, again)
    growing.append(db, "a", Piece("three", "", [4]))
    assert growing.recover(db) == 1
    kept = tree.path(db, "a")[-1]
    assert (kept.text, kept.think, kept.state) == ("one two three", "hm ", "stopped")
    assert kept.ids == Ids(None, 0, [1], [2, 3, 4])
    assert [hit.message for hit in shelf.search(db, "two thr")] == ["a"]
    db.close()


def test_the_prompts_of_a_long_chat_are_put_together_from_their_links() -> None:
    answers = {
        "a": Ids(None, 0, [1, 2], [3, 4]),
        "b": Ids("a", 4, [5], [6]),
        "c": Ids("b", 5, [7, 8], [9]),
        "d": Ids("gone", 5, [7], [9]),
        "e": Ids("a", 99, [7], [9]),
    }
    assert computed(answers, "c") == ([1, 2, 3, 4, 5, 7, 8], [9])
    assert computed(answers, "a") == ([1, 2], [3, 4])
    assert computed(answers, "d") == computed(answers, "e") == ([], [])


def test_a_failing_change_leaves_nothing_of_itself(tmp_path: Path) -> None:
    from homebox.daemon.chats.store import Chats

    def half(db: sqlite3.Connection) -> None:
        shelf.put_draft(db, None, "half written")
        raise NotFound("no")

    async def main() -> str:
        chats = Chats(tmp_path)
        with pytest.raises(NotFound):
            await chats.write("anna", half)
        text = (await chats.read("anna", shelf.draft, None)).text
        await chats.close()
        return text

    assert asyncio.run(main()) == ""
