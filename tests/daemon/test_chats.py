"""A person's chats over their routes: nothing is lost, nothing is doubled, and nothing that was said is changed."""

from __future__ import annotations

import json
import os
import pwd
import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from homebox.wire import events

from .box import Box, text_of, until


def said(box: Box, chat: str, text: str, **fields: Any) -> dict[str, Any]:
    """Say it, wait for the answer's end; ids of turn, question and answer."""
    response = box.say(chat, text, key=f"k{os.urandom(6).hex()}", **fields)
    assert response.status_code == 200, response.text
    made: dict[str, Any] = response.json()
    box.events(made["turn"])
    return made


def shown(box: Box, chat: str, **query: Any) -> dict[str, Any]:
    response = box.http.get(f"/homebox/chats/{chat}", params=query)
    assert response.status_code == 200, response.text
    return response.json()  # type: ignore[no-any-return]


def talk(box: Box, chat: str, **query: Any) -> list[tuple[str, str]]:
    return [(each["role"], each["content"]) for each in shown(box, chat, **query)["messages"]]


def prompt_of(box: Box, turn: str) -> list[int]:
    return list(box.house.book.turn(turn).choices[0].prompt)


def test_a_chat_remembers_and_the_same_key_gives_the_same_turn(box: Box) -> None:
    made = box.say("c1", "[[say=hello]]", "k1", system="be brief").json()
    assert box.say("c1", "[[say=hello]]", "k1", system="be brief").json() == made
    assert text_of(box.events(made["turn"])) == "hello"
    later = box.say("c1", "[[say=again]] what did I say?", "k2").json()
    assert later["turn"] != made["turn"] and text_of(box.events(later["turn"])) == "again"
    view = shown(box, "c1")
    assert view["system"] == "be brief" and view["turns"] == {} and view["title"] == "[[say=hello]]"
    assert talk(box, "c1") == [
        ("user", "[[say=hello]]"),
        ("assistant", "hello"),
        ("user", "[[say=again]] what did I say?"),
        ("assistant", "again"),
    ]
    assert [each["id"] for each in view["messages"]] == [
        made["question"], made["answer"], later["question"], later["answer"]
    ]  # fmt: skip


def test_two_submits_with_one_key_at_once_are_one_turn(box: Box) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: box.say("c1", "[[say=hello]]", "k1").json(), range(8)))
    assert all(each == made[0] for each in made)
    assert len(shown(box, "c1", all=1)["messages"]) == 2


def test_what_was_written_before_a_stop_stays_in_the_chat(box: Box) -> None:
    turn = box.say("c1", "[[forever]][[pace=5]]", "k1").json()["turn"]
    until(lambda: box.tokens(turn) > 2)
    assert shown(box, "c1")["turns"] == {shown(box, "c1")["head"]: turn}
    assert box.say("c1", "more", "k2").status_code == 429  # one answer at a time
    box.http.delete(f"/homebox/turns/{turn}")
    kept = shown(box, "c1")["messages"][-1]
    assert kept["role"] == "assistant" and kept["content"] == text_of(box.events(turn))
    assert (kept["state"], kept["detail"]) == ("stopped", "stopped by its owner")
    assert text_of(box.events(said(box, "c1", "[[say=fine]]")["turn"])) == "fine"


@pytest.mark.parametrize("options", [{"temperature": 9}, {"model": "nope"}])
def test_a_refused_message_is_not_stored(box: Box, options: dict[str, Any]) -> None:
    assert box.say("c1", "hello", "k1", options=options).status_code in (400, 404)
    assert box.http.get("/homebox/chats/c1").status_code == 404
    assert box.say("c1", "[[say=hello]]", "k1").status_code == 200


def test_a_chat_id_has_a_strict_form(box: Box) -> None:
    for chat in ("x" * 65, ".hidden", "search", "a b"):
        assert box.say(chat, "hello", "k").status_code == 400


def test_an_instruction_may_be_repeated_and_not_changed(box: Box) -> None:
    said(box, "c", "[[say=a]]", system="be brief")
    said(box, "c", "[[say=b]]", system="be brief")
    assert box.say("c", "x", "k", system="be rude").status_code == 400


def test_editing_makes_a_branch_and_both_can_be_gone_to(box: Box) -> None:
    one = said(box, "c", "[[say=one]]")
    two = said(box, "c", "[[say=two]]")
    edited = said(box, "c", "[[say=three]]", parent=one["answer"])
    assert [text for _, text in talk(box, "c")] == ["[[say=one]]", "one", "[[say=three]]", "three"]
    assert shown(box, "c")["messages"][2]["siblings"] == [two["question"], edited["question"]]
    assert len(talk(box, "c", all=1)) == 6
    box.http.patch("/homebox/chats/c", json={"head": two["question"]})
    assert [text for _, text in talk(box, "c")] == ["[[say=one]]", "one", "[[say=two]]", "two"]
    again = said(box, "c", "[[say=zero]]", parent="root")
    assert [text for _, text in talk(box, "c")] == ["[[say=zero]]", "zero"]
    assert shown(box, "c")["messages"][0]["siblings"] == [one["question"], again["question"]]


def test_answering_again_adds_a_sibling_and_the_same_key_adds_none(box: Box) -> None:
    one = said(box, "c", "tell me")
    body = {"key": "r", "options": {"seed": 7}}
    made = box.http.post("/homebox/chats/c/regenerate", json=body).json()
    assert box.http.post("/homebox/chats/c/regenerate", json=body).json() == made
    box.events(made["turn"])
    assert shown(box, "c")["messages"][1]["siblings"] == [one["answer"], made["answer"]]
    assert made["question"] == one["question"] and len(talk(box, "c", all=1)) == 3
    third = box.http.post("/homebox/chats/c/regenerate", json={"key": "s", "message": one["answer"]}).json()
    assert third["question"] == one["question"]


def test_a_cut_answer_goes_on_from_its_very_tokens(box: Box) -> None:
    made = said(box, "c", "[[say=the_cat_sat_on_the_table_and_the_dog]]", options={"max_tokens": 5})
    cut = shown(box, "c")["messages"][-1]
    assert cut["state"] == "length" and cut["content"].startswith("the cat")
    before = box.house.book.turn(made["turn"])
    again = box.http.post(f"/homebox/turns/{made['turn']}/continue", json={"key": "g"}).json()
    assert again["answer"] == made["answer"]
    told = box.events(again["turn"])
    stream = before.choices[0].stream
    assert stream and prompt_of(box, again["turn"]) == [*before.choices[0].prompt, *stream.output]
    assert isinstance(told[0], events.Resync) and told[0].text == cut["content"]
    texts = [event for event in told if isinstance(event, events.Text)]
    assert texts[0].offset == len(cut["content"])
    grown = shown(box, "c")["messages"]
    assert [each["id"] for each in grown] == [made["question"], made["answer"]]
    assert grown[1]["content"] == cut["content"] + "".join(event.text for event in texts)
    assert grown[1]["state"] == "done"
    refused = box.http.post(f"/homebox/turns/{made['turn']}/continue", json={"key": "h"})
    assert refused.status_code == 400 and "ended by itself" in refused.json()["error"]["message"]


def test_the_next_prompt_begins_with_the_tokens_that_were_computed_however_odd(box: Box) -> None:
    made = said(box, "c", "[[spell=the_cat_sat_on_the_grüne_table]]")
    first = box.house.book.turn(made["turn"]).choices[0]
    assert first.answer.text == "the cat sat on the grüne table"
    own = first.answer.tokens
    assert own > len(box.house.book.tokenizer.words(first.answer.text)) + 10
    computed = [*first.prompt, *first.stream.output[:own]]  # type: ignore[union-attr]
    second = said(box, "c", "[[spell=fine]] and then?")
    assert prompt_of(box, second["turn"])[: len(computed)] == computed
    third = said(box, "c", "[[say=yes]] and then?")
    assert prompt_of(box, third["turn"])[: len(computed)] == computed
    text = box.house.book.tokenizer.decode(prompt_of(box, third["turn"]), skip_special=False)
    assert text.count("grüne") == 2 and text.endswith("and then?<|im_end|>\n<|im_start|>assistant\n")


def test_an_answer_that_was_stopped_in_mid_thought_goes_on_thinking(box: Box) -> None:
    order = "[[spell=<think>the_soup_is_good</think>yes]]"
    made = said(box, "c", order, options={"max_tokens": 12})
    cut = shown(box, "c")["messages"][-1]
    assert cut["content"] == "" and "the soup".startswith(cut["think"].strip()) and cut["think"].strip()
    again = box.http.post(f"/homebox/turns/{made['turn']}/continue", json={"key": "g"}).json()
    told = box.events(again["turn"])
    assert isinstance(told[0], events.Resync) and told[0].think == cut["think"]
    grown = shown(box, "c")["messages"][-1]
    assert grown["content"] == "yes" and len(grown["think"]) > len(cut["think"])
    assert grown["think"] == cut["think"] + "".join(e.text for e in told if isinstance(e, events.Think))


def test_an_answer_of_another_model_goes_on_from_its_words(box: Box) -> None:
    made = said(box, "c", "[[spell=the_cat_sat_on_the_table]]", options={"max_tokens": 7})

    def other_model(db: sqlite3.Connection) -> None:
        db.execute("UPDATE messages SET model = 'other', prompt = x'ffffff7f' WHERE role = 'assistant'")

    me = pwd.getpwuid(os.geteuid()).pw_name
    box.on_loop(lambda: box.house.chats.write(me, other_model))
    again = box.http.post(f"/homebox/turns/{made['turn']}/continue", json={"key": "g"}).json()
    box.events(again["turn"])
    tokenizer = box.house.book.tokenizer
    assert prompt_of(box, again["turn"]) == [*prompt_of(box, made["turn"]), *tokenizer.words("the cat")]
    assert shown(box, "c")["messages"][-1]["content"].startswith("the cat")
    after = said(box, "c", "[[say=more]]")
    stream = box.house.book.turn(again["turn"]).choices[0].stream
    assert stream
    known = [*prompt_of(box, again["turn"]), *stream.output[:-1]]
    assert prompt_of(box, after["turn"])[: len(known)] == known, "it is this model's answer now"


def test_an_answer_that_no_tokens_lead_to_is_refused_and_left_as_it_is(box: Box) -> None:
    """`<thi` may have been the beginning of a thought: where it ended cannot be found again."""
    made = said(box, "c", "[[spell=<thinking]]", options={"max_tokens": 4})
    cut = shown(box, "c")["messages"][-1]
    refused = box.http.post(f"/homebox/turns/{made['turn']}/continue", json={"key": "g"})
    assert refused.status_code == 400 and "again instead" in refused.json()["error"]["hint"]
    assert shown(box, "c")["messages"][-1] == cut and cut["content"] == "<thi"


def test_an_imported_chat_goes_on(box: Box) -> None:
    said(box, "c", "[[say=the_cat_sat_on_the_table]]", options={"max_tokens": 3})
    exported = box.http.get("/homebox/chats/c/export").json()
    copy = box.http.post("/homebox/chats/import", json=exported).json()["chat"]
    assert shown(box, copy)["messages"][-1].get("turn") is None
    more = said(box, copy, "[[say=and_then]]")
    prompt = box.house.book.tokenizer.decode(prompt_of(box, more["turn"]), skip_special=False)
    assert exported["messages"][-1]["text"] in prompt


def test_a_branch_is_a_chat_of_its_own(box: Box) -> None:
    one = said(box, "c", "[[spell=one]]", system="be brief")
    said(box, "c", "[[say=two]]")
    made = box.http.post("/homebox/chats/c/branch", json={"message": one["answer"]}).json()["chat"]
    assert [text for _, text in talk(box, made)] == ["[[spell=one]]", "one"]
    more = said(box, made, "[[say=other]]")
    assert prompt_of(box, more["turn"])[:5] == prompt_of(box, one["turn"])[:5]
    assert len(talk(box, "c")) == 4 and len(talk(box, made)) == 4
    assert shown(box, made)["system"] == "be brief"
    assert box.http.post("/homebox/chats/c/branch", json={"message": "m-nope"}).status_code == 404


def test_chats_are_listed_newest_first_a_page_at_a_time(box: Box) -> None:
    for number in range(5):
        said(box, f"c{number}", f"[[say=ok]] question {number}")
    said(box, "c1", "[[say=ok]]")
    first = box.http.get("/homebox/chats?limit=2").json()
    second = box.http.get("/homebox/chats", params={"limit": 3, "before": first["next"]}).json()
    assert [row["id"] for row in first["chats"] + second["chats"]] == ["c1", "c4", "c3", "c2", "c0"]
    assert second["next"] is None
    row = first["chats"][0]
    assert row["messages"] == 4 and row["state"] == "done" and row["model"] == "tiny"
    assert row["title"] == "[[say=ok]] question 1"
    for query in ("limit=0", "limit=x", "limit=99999", "before=nonsense"):
        assert box.http.get(f"/homebox/chats?{query}").status_code == 400


def test_what_was_deleted_comes_back_within_a_week_and_is_gone_after_it(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    said(box, "c", "[[say=hello]]")
    said(box, "d", "[[say=other]]")
    for _ in range(2):
        assert box.http.delete("/homebox/chats/c").status_code == 200
    refused = box.http.get("/homebox/chats/c")
    assert refused.status_code == 404 and "chats restore" in refused.json()["error"]["hint"]
    assert box.say("c", "x", "k").status_code == 404
    assert [row["id"] for row in box.http.get("/homebox/chats").json()["chats"]] == ["d"]
    assert [row["id"] for row in box.http.get("/homebox/chats?deleted=1").json()["chats"]] == ["c"]
    assert box.http.get("/homebox/chats/search?q=hello").json()["found"] == []
    assert box.http.post("/homebox/chats/c/undelete", json={}).json()["id"] == "c"
    assert talk(box, "c")[1] == ("assistant", "hello")
    box.http.delete("/homebox/chats/c")
    monkeypatch.setattr("homebox.daemon.chats.deleting.KEPT_S", 0.0)
    assert box.http.post("/homebox/chats/c/undelete", json={}).status_code == 404
    monkeypatch.setattr("homebox.daemon.chats.store.PURGE_EVERY_S", 0.0)
    box.house.chats._purge_due.clear()
    said(box, "d", "[[say=more]]")
    assert "was deleted" not in box.http.get("/homebox/chats/c").json()["error"]["message"]


def test_deleting_a_chat_stops_what_is_written_for_it_and_keeps_the_text(box: Box) -> None:
    turn = box.say("c", "[[forever]][[pace=5]]", "k1").json()["turn"]
    until(lambda: box.tokens(turn) > 3)
    box.http.delete("/homebox/chats/c")
    last = box.events(turn)[-1]
    assert isinstance(last, events.Finished) and last.detail == "its chat was deleted"
    until(box.idle)
    box.http.post("/homebox/chats/c/undelete", json={})
    assert shown(box, "c")["messages"][-1]["content"] == text_of(box.events(turn))


def test_words_are_found_by_their_beginning_also_across_accents(box: Box) -> None:
    said(box, "c", "[[say=the_cat_sat_on_the_table]] Où est la bibliothèque?")
    other = said(box, "d", "[[say=nothing]] zebras")
    box.http.patch("/homebox/chats/d", json={"title": "About zoological gardens"})

    def found(query: str) -> list[dict[str, Any]]:
        response = box.http.get("/homebox/chats/search", params={"q": query})
        assert response.status_code == 200, response.text
        return list(response.json()["found"])

    hits = found("cat sat tab")
    assert {hit["role"] for hit in hits} == {None, "user", "assistant"} and {hit["chat"] for hit in hits} == {
        "c"
    }
    assert any("[cat] [sat]" in hit["snippet"] for hit in hits)
    assert found("bibliotheque")[0]["chat"] == "c"
    assert found("zebr")[0]["message"] == other["question"]
    assert found("zoolog gard") == [] and found("zoological gard")[0]["message"] is None


QUERIES = (
    '"',
    "a AND",
    "NEAR(a b)",
    "text:x",
    "*",
    "a* b*",
    "(",
    "^a",
    "-a",
    "\x00a",
    "a" * 5000,
    "日本",
    "'; DROP",
)


def test_no_query_is_a_program(box: Box) -> None:
    said(box, "c", "[[say=hello]]")
    for query in QUERIES:
        response = box.http.get("/homebox/chats/search", params={"q": query})
        assert response.status_code == (200 if re.search(r"\w", query) else 400), (query, response.text)


def test_a_title_given_by_the_person_stays(box: Box) -> None:
    said(box, "c", "[[say=hello]]\nand more words " + "on and on " * 20)
    assert shown(box, "c")["title"].endswith("…") and len(shown(box, "c")["title"]) <= 61
    renamed = box.http.patch("/homebox/chats/c", json={"title": "  My\n chat "}).json()
    assert renamed["title"] == "My chat"
    said(box, "c", "[[say=again]]")
    assert shown(box, "c")["title"] == "My chat"
    assert box.http.patch("/homebox/chats/c", json={"title": " "}).status_code == 400


def test_drafts_are_kept_for_each_chat_and_for_none_yet(box: Box) -> None:
    said(box, "c", "[[say=hello]]")
    for path, text in (("/homebox/draft", "no chat yet"), ("/homebox/chats/c/draft", "half a thou")):
        assert box.http.get(path).json() == {"text": ""}
        assert box.http.put(path, json={"text": text}).status_code == 200
        assert box.http.get(path).json() == {"text": text}
    box.http.put("/homebox/draft", json={"text": ""})
    assert box.http.get("/homebox/draft").json() == {"text": ""}
    assert box.http.get("/homebox/chats/c/draft").json() == {"text": "half a thou"}
    assert box.http.put("/homebox/draft", json={"text": "x" * 300_000}).status_code == 400
    assert box.http.get("/homebox/chats/nope/draft").status_code == 404


def test_an_export_comes_in_again_whole_and_beside_what_is_there(box: Box) -> None:
    one = said(box, "c", "[[say=one]]", system="be brief")
    said(box, "c", "[[say=two]]")
    said(box, "c", "[[say=three]]", parent=one["answer"])
    exported = box.http.get("/homebox/chats/c/export").json()
    text = box.http.get("/homebox/chats/c/export?format=md").text
    assert (
        "# [[say=one]]" in text
        and "> be brief" in text
        and "## homebox\n\nthree\n" in text
        and "two" not in text
    )
    copy = box.http.post("/homebox/chats/import", json=exported).json()["chat"]
    assert (
        copy != "c" and talk(box, copy) == talk(box, "c") and talk(box, copy, all=1) == talk(box, "c", all=1)
    )
    box.http.delete("/homebox/chats/c")
    second = box.http.get(f"/homebox/chats/{copy}/export").json()
    alike = ("title", "system", "created", "model")
    assert {name: second[name] for name in alike} == {name: exported[name] for name in alike}
    more = said(box, copy, "[[say=four]]")
    assert text_of(box.events(more["turn"])) == "four"


WRONG: tuple[dict[str, Any], ...] = (
    {"homebox_chat": 9},
    {"id": "../x"},
    {"head": "m-nope"},
    {"messages": [{"id": "a", "role": "user", "text": "x", "parent": "b"}]},
    {"messages": [{"id": "a", "role": "user", "text": "x"}] * 2},
    {"messages": [{"id": "a", "role": "tool", "text": "x"}]},
    {"messages": [{"id": "a", "role": "assistant", "text": "x", "state": "growing"}]},
    {"created": 1e400},
    {"surprise": 1},
)


def test_a_wrong_import_leaves_nothing_behind(box: Box) -> None:
    good = {"homebox_chat": 1, "id": "n", "title": "t", "created": 1.0, "updated": 1.0, "messages": []}
    for wrong in WRONG:
        response = box.http.post(
            "/homebox/chats/import",
            content=json.dumps(good | wrong),
            headers={"content-type": "application/json"},
        )
        assert response.status_code == 400, (wrong, response.text)
    assert box.http.get("/homebox/chats").json()["chats"] == []


def test_an_answer_on_another_path_does_not_hold_up_the_current_one(box: Box) -> None:
    one = said(box, "c", "[[say=one]]")
    two = said(box, "c", "[[say=two]]")
    growing = box.say("c", "[[forever]][[pace=5]]", "k", parent=one["answer"]).json()
    until(lambda: box.tokens(growing["turn"]))
    assert box.say("c", "x", "k2").status_code == 429
    assert box.http.patch("/homebox/chats/c", json={"head": two["answer"]}).status_code == 200
    assert box.say("c", "x", "k3", parent=growing["answer"]).status_code == 429
    three = said(box, "c", "[[say=three]]")
    assert [text for _, text in talk(box, "c")][1::2] == ["one", "two", "three"]
    assert box.tokens(growing["turn"]), "the other one goes on"
    box.http.delete(f"/homebox/turns/{growing['turn']}")
    assert shown(box, "c")["head"] == three["answer"]
