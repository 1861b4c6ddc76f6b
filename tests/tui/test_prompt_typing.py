"""Typing: what Enter, line breaks, pastes and arrows do, in the order in which they came."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from textual import events

from homebox.client.documents import fenced
from homebox.tui.prompt.editor import Editor
from homebox.tui.prompt.prompt import Prompt
from tests.tui.prompt_app import PromptApp, showing


def test_enter_sends_what_was_typed_before_it_and_nothing_that_was_typed_after_it() -> None:
    async def talk() -> None:
        async with showing() as app:
            app.type("one\r   \rtwo\r")
            await app.until(lambda: len(app.sent()) == 2)
            assert app.sent() == ["one", "   two"]
            assert app.prompt.draft == ""

    asyncio.run(talk())


def test_nothing_is_sent_where_nothing_is_typed() -> None:
    async def talk() -> None:
        async with showing() as app:
            app.type("\r \n \r")
            await app.settle()
            assert app.kinds() == []

    asyncio.run(talk())


def test_three_keys_break_a_line_and_each_can_be_given_to_another() -> None:
    async def talk() -> None:
        async with showing() as app:
            app.type("a\nb")
            app.press("shift+enter")
            app.type("c")
            app.press("alt+enter")
            app.type("d\r")
            await app.until(app.sent)
            assert app.sent() == ["a\nb\nc\nd"]
            app.set_keymap({"send": "ctrl+j", "newline": "enter"})
            app.type("e\rf\n")
            await app.until(lambda: len(app.sent()) == 2)
            assert app.sent()[1] == "e\nf"

    asyncio.run(talk())


def test_joiners_wide_spaces_and_right_to_left_letters_can_be_typed() -> None:
    async def talk() -> None:
        text = "👩\u200d👩\u200d👧 漢字\u3000かな می\u200cخواهم שלום e\u0301\u00a0x"
        async with showing() as app:
            app.type(text + "\r")
            await app.until(app.sent)
            assert app.sent() == [text]

    asyncio.run(talk())


def test_a_paste_never_sends_and_has_nothing_in_it_that_drives_a_terminal() -> None:
    async def talk() -> None:
        async with showing() as app:
            app.paste("a\tb\r\nc\rd\u2028e\x1b]52;c;AAAA\x07\x1b[31mf\r")
            await app.settle()
            assert app.prompt.draft == "a\tb\nc\nd\nef\n"
            assert app.note() == "17 control characters were left out of the paste"
            assert app.kinds() == []

    asyncio.run(talk())


def test_a_long_paste_is_a_chip_where_it_was_pasted_and_goes_out_in_full() -> None:
    async def talk() -> None:
        lines = "\n".join(map(str, range(214)))
        async with showing() as app:
            app.type("before ")
            app.paste(lines)
            app.type(" after")
            await app.settle()
            assert app.chips() == "[1 pasted 214 lines x]"
            assert len(app.prompt.query_one(Editor).text) == len("before 1 after")
            app.type("\r")
            await app.until(app.sent)
            assert app.sent() == [f"before {lines} after"]
            app.paste("x" * 2001)
            await app.settle()
            assert app.chips() == "[1 pasted 2,001 characters x]"
            app.press("backspace")
            await app.settle()
            assert (app.chips(), app.prompt.draft) == ("", "")
            app.press("ctrl+z")
            await app.settle()
            assert app.prompt.draft == "x" * 2001
            app.paste("\n".join("abcdefghijklmnopqrst"))
            await app.settle()
            assert app.chips() == "[1 pasted 2,001 characters x]"

    asyncio.run(talk())


def test_a_chip_is_unfolded_by_tab_or_a_click_and_taken_away_by_its_x() -> None:
    async def talk() -> None:
        text = "line\n" * 30
        async with showing() as app:
            app.paste(text)
            app.type("\t!")
            await app.settle()
            assert app.prompt.query_one(Editor).text == app.prompt.draft == f"{text}!"
            app.prompt.draft = ""
            app.paste(text)
            await app.until(lambda: app.chips() and app.prompt.query_one("Chips").region.height)
            await app.pilot.click("Chips", offset=(5, 0))
            await app.until(lambda: app.prompt.query_one(Editor).text == text)
            app.prompt.draft = "kept "
            app.paste(text)
            await app.until(lambda: app.chips() and app.prompt.query_one("Chips").region.height)
            await app.pilot.click("Chips", offset=(len("  [1 pasted 30 lines "), 0))
            await app.until(lambda: app.prompt.draft == "kept ")

    asyncio.run(talk())


def test_a_text_too_long_to_be_edited_here_stays_a_chip() -> None:
    async def talk() -> None:
        text = "x" * 20_001
        async with showing() as app:
            app.paste(text)
            app.type("\t")
            await app.settle()
            assert "too long to be edited here" in app.note()
            assert app.prompt.draft == text

    asyncio.run(talk())


def test_up_and_down_go_through_earlier_prompts_and_keep_what_is_being_typed() -> None:
    async def talk() -> None:
        async with showing() as app:
            app.prompt.remember(["first", "second\nwith a line"])
            app.type("sent now\rbeing typed")
            for keys, shown in (
                (["up"], "sent now"),
                (["up"], "second\nwith a line"),
                (["up"], "first"),
                (["up"], "first"),
                (["down"], "second\nwith a line"),
                (["down"], "sent now"),
                (["down"], "being typed"),
                (["down"], "being typed"),
            ):
                app.press(*keys)
                await app.settle()
                assert app.prompt.draft == shown, (keys, shown)

    asyncio.run(talk())


def test_a_recalled_prompt_that_was_changed_stays_so_until_something_is_sent() -> None:
    async def talk() -> None:
        async with showing() as app:
            app.prompt.remember(["one", "two"])
            app.type("now")
            app.press("up")
            app.type("!")
            app.press("up", "down")
            await app.settle()
            assert app.prompt.draft == "two!"
            app.type("\rx")
            app.press("up", "up")
            await app.settle()
            assert app.prompt.draft == "two"

    asyncio.run(talk())


def test_up_with_nothing_typed_selects_the_last_message_and_has_back_what_was_cleared() -> None:
    async def talk() -> None:
        async with showing() as app:
            app.prompt.remember(["earlier"])
            app.press("up")
            await app.until(lambda: app.went_up == 1)
            long = "line\n" * 50
            app.type("look: ")
            app.paste(long)
            await app.settle()
            app.prompt.clear()
            assert app.prompt.draft == ""
            app.press("up")
            await app.until(lambda: app.prompt.draft == f"look: {long}")
            assert app.chips() == "[1 pasted 50 lines x]"

    asyncio.run(talk())


def test_up_inside_a_wrapped_line_moves_in_it() -> None:
    async def talk() -> None:
        async with showing(40, 24) as app:
            app.prompt.remember(["earlier"])
            app.type("word " * 20)
            app.press("up")
            await app.settle()
            assert app.prompt.draft == "word " * 20

    asyncio.run(talk())


def test_ctrl_d_leaves_where_nothing_is_typed_and_deletes_elsewhere() -> None:
    async def talk() -> None:
        async with showing() as app:
            app.type("ab")
            app.press("home", "ctrl+d")
            await app.settle()
            assert (app.prompt.draft, app.kinds()) == ("b", [])
            app.press("ctrl+d", "ctrl+d")
            await app.until(lambda: app.kinds() == ["Leave"])

    asyncio.run(talk())


def test_escape_drops_the_last_waiting_message_and_else_is_for_the_screen() -> None:
    async def talk() -> None:
        async with showing() as app:
            app.press("escape")
            await app.until(lambda: app.stopped == 1)
            app.prompt.show_queued(["a"])
            app.press("escape")
            await app.until(lambda: app.kinds() == ["DropQueued"])
            app.type("x")
            app.press("escape")
            await app.until(lambda: app.stopped == 2)
            assert app.kinds() == ["DropQueued"]

    asyncio.run(talk())


def test_a_draft_is_told_soon_and_only_when_it_is_another_one() -> None:
    async def talk() -> None:
        async with showing() as app:
            app.prompt.draft = "as it was"
            await app.settle()
            app.type("!")
            await app.until(lambda: app.seen)
            app.type("\r")
            await app.until(lambda: len(app.seen) == 3)
            told = [each.text for each in app.seen if isinstance(each, Prompt.Changed)]
            assert told == ["as it was!", ""]

    asyncio.run(talk())


def test_a_draft_comes_back_as_it_was_however_long_it_is() -> None:
    async def talk() -> None:
        long = "a line of it\n" * 5000
        async with showing() as app:
            for draft in ("short\n\ntwo", long, "has \U0010f000 in it", ""):
                app.prompt.draft = draft
                assert app.prompt.draft == draft
            app.prompt.draft = long
            app.type("\r")
            await app.until(app.sent)
            assert app.sent() == [long]

    asyncio.run(talk())


def test_whatever_is_typed_pasted_and_attached_goes_out_completely_and_in_order(tmp_path: Path) -> None:
    texts = ["note", "漢字 \x1b[31m ```` raw\r\n", "", "x\n" * 40]
    files = [tmp_path / f"file{number}.md" for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_bytes(text.encode())

    async def one(app: PromptApp, rng: random.Random) -> None:
        words, below = "", []
        for _ in range(rng.randrange(1, 8)):
            match rng.randrange(4):
                case 0 | 1:
                    typed = "".join(rng.choices("abc é👩\u200d漢\n", k=rng.randrange(1, 30)))
                    app.type(typed)
                    words += typed
                case 2:
                    size = rng.choice((1, 5, 19, 20, 21, 400))
                    piece = "\n".join("".join(rng.choices("ab\té漢/ \U0010f001", k=7)) for _ in range(size))
                    app.paste(piece.replace("\n", rng.choice(("\n", "\r", "\r\n"))))
                    words += piece
                case 3 if files[(number := rng.randrange(len(files)))] not in below:
                    await app.settle()
                    app.prompt.attach(str(files[number]))
                    below.append(files[number])
        if not (words.strip() or below):
            return
        before = len(app.sent())
        app.type("\r")
        await app.until(lambda: len(app.sent()) > before)
        *_, sent = app.sent()
        fences = [fenced(str(file), texts[files.index(file)]) for file in below]
        assert sent == "\n\n".join([words, *fences] if words.strip() or not fences else fences)
        assert app.prompt.draft == ""

    async def talk() -> None:
        async with showing() as app:
            for seed in range(20):
                await one(app, random.Random(seed))

    asyncio.run(talk())


def test_a_megabyte_is_taken_without_walking_through_it() -> None:
    """Counted, not timed: nothing of the paste is laid out, so that the next key costs what it always does."""

    async def talk() -> None:
        async with showing() as app:
            text = ("a line of an ordinary document\n" * 35_000)[: 1 << 20]
            app.paste(text)
            app.type(" and?")
            await app.settle()
            editor = app.prompt.query_one(Editor)
            assert len(editor.text) == len(" and?") + 1
            assert editor.wrapped_document.height == 1
            app.post_message(events.Key("enter", "\r"))
            await app.until(app.sent)
            assert app.sent() == [f"{text} and?"]

    asyncio.run(talk())


def test_what_was_typed_last_can_be_taken_back_and_had_again() -> None:
    async def talk() -> None:
        async with showing() as app:
            app.type("one")
            app.paste("two")
            await app.settle()
            assert app.prompt.draft == "onetwo"
            app.press("ctrl+underscore")
            await app.settle()
            assert app.prompt.draft == "one"
            app.press("ctrl+y")
            await app.settle()
            assert app.prompt.draft == "onetwo"

    asyncio.run(talk())
