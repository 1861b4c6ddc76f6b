"""What is put together: chips in their places, tokens for an editor, what is completed, which files are found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homebox.client.sanitise import clean
from homebox.tui.prompt import files
from homebox.tui.prompt.composing import Chip, Draft, Kind, Token, can_unfold, folds, new_mark, tidy, token_at
from homebox.tui.prompt.history import History

ANY = st.text(
    alphabet=st.one_of(
        st.characters(exclude_categories=["Cs"]), st.sampled_from("\r\n\x1b[]#;m12 \U0010f000")
    )
)


def put_together(pieces: list[tuple[bool, str]]) -> Draft:
    typed, folded = "", {}
    for is_folded, text in pieces:
        if is_folded:
            mark = new_mark(folded)
            folded[mark] = Chip("pasted 3 lines", text)
            typed += mark
        else:
            typed += text
    return Draft(typed, folded)


PIECES = st.lists(
    st.one_of(
        st.tuples(st.just(True), ANY),
        st.tuples(st.just(False), st.text(alphabet="ab #[]12\npasted lines")),
    )
)


@settings(deadline=None)
@given(PIECES)
def test_words_are_all_the_pieces_in_order_whatever_is_in_them(pieces: list[tuple[bool, str]]) -> None:
    assert put_together(pieces).words == "".join(text for _, text in pieces)


@settings(deadline=None)
@given(PIECES)
def test_chips_survive_an_editor_that_knows_none(pieces: list[tuple[bool, str]]) -> None:
    draft = put_together(pieces)
    plain, tokens = draft.as_plain()
    assert draft.from_plain(plain, tokens) == draft
    assert draft.from_plain(plain + " more", tokens).words == draft.words + " more"
    for token, mark in tokens.items():
        assert draft.from_plain(plain.replace(token, ""), tokens).typed == draft.typed.replace(mark, "")


@settings(deadline=None)
@given(ANY)
def test_a_text_that_was_kept_elsewhere_is_the_same_text_without_what_drives_a_terminal(text: str) -> None:
    assert Draft.of(text).whole == tidy(text)[0]


@settings(deadline=None)
@given(ANY)
def test_a_tidied_paste_has_no_control_characters_and_counts_those_it_had(text: str) -> None:
    tidied, left_out = tidy(text)
    assert clean(tidied) == tidied
    assert not set(tidied) & set("\r\u2028\u2029")
    breaks = text.replace("\r\n", "\n").replace("\r", "\n").replace("\u2028", "\n").replace("\u2029", "\n")
    assert (tidied, left_out) == (clean(breaks), len(breaks) - len(clean(breaks)))


def test_sequences_are_left_out_whole_wherever_a_long_paste_is_cut() -> None:
    for before in range(4090, 4100):
        assert tidy("x" * before + "\x1b]0;title\x07\x1b[31my") == ("x" * before + "y", 15)


@pytest.mark.parametrize(
    ("text", "is_folded"),
    [
        ("x\n" * 19 + "x", False),
        ("x\n" * 20, True),
        ("x" * 2000, False),
        ("x" * 2001, True),
        ("\U0010f000", True),
    ],
)
def test_a_paste_over_twenty_lines_or_two_thousand_characters_is_folded(text: str, is_folded: bool) -> None:
    assert folds(text) is is_folded
    assert can_unfold(text) is (text != "\U0010f000")


@pytest.mark.parametrize(
    ("row", "before", "token"),
    [
        (0, "/", Token(Kind.COMMAND, "/", 0)),
        (0, "/reg", Token(Kind.COMMAND, "/reg", 0)),
        (1, "/reg", None),
        (0, " /reg", None),
        (0, "/title of it", None),
        (0, "/attach ~/no tes", Token(Kind.FILE, "~/no tes", 8)),
        (0, "/attach ", Token(Kind.FILE, "", 8)),
        (3, "see @", Token(Kind.FILE, "", 4)),
        (0, "@src/a", Token(Kind.FILE, "src/a", 0)),
        (0, "anna@example", None),
        (0, "@a b", None),
    ],
)
def test_what_is_completed_at_the_cursor(row: int, before: str, token: Token | None) -> None:
    assert token_at(row, before) == token


def test_files_are_found_by_their_letters_near_and_visible_ones_only(tmp_path: Path) -> None:
    for name in (
        "notes.md",
        ".secret",
        "sub/deep/notes_of_mine.txt",
        ".git/config",
        "sub/.hidden/x",
        "sub/other.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    names, all_of_them = files.walk(tmp_path, max_s=20)
    assert all_of_them
    assert names[0] == "notes.md"
    assert sorted(names) == ["notes.md", "sub/deep/notes_of_mine.txt", "sub/other.py"]
    assert files.match("ntsmn", names) == ["sub/deep/notes_of_mine.txt"]
    assert files.match("notes", names)[0] == "notes.md"
    assert files.match("zzz", names) == []
    assert files.match("", names) == list(names)


def test_a_walk_ends_after_so_many_entries_or_so_long(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number}.txt").touch()
    names, all_of_them = files.walk(tmp_path, max_entries=10, max_s=20)
    assert (len(names), all_of_them) == (10, False)
    assert files.walk(tmp_path, max_s=-1) == ((), False)


def test_a_path_is_completed_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("letters/a.txt", "lists.md", ".config/x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert files.find("~", ()) == ["~/"]
    assert files.find("~/l", ()) == ["~/letters/", "~/lists.md"]
    assert files.find("~/.c", ()) == ["~/.config/"]
    assert files.find("~/", ()) == ["~/letters/", "~/lists.md"]
    assert files.find(f"{tmp_path}/letters/", ()) == [f"{tmp_path}/letters/a.txt"]
    assert files.find("~nobody-of-that-name/x", ()) == []
    assert files.find("/no/such/folder/x", ()) == []


def test_what_was_sent_in_this_run_is_not_there_twice_once_the_conversation_tells_it() -> None:
    history = History()
    history.remember(["one"])
    history.add(Draft("two"))
    history.add(Draft("two"))
    history.remember(["one", "two"])
    seen = []
    now: Draft | None = Draft("typing")
    while now := history.step(-1, now):
        seen.append(now.whole)
    assert seen == ["two", "one"]
