"""A file in a question: read as text, fenced so that nothing in it ends the fence, or refused with the numbers."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from homebox.client import documents
from homebox.client.documents import MAX_MESSAGE_BYTES, attach, fenced, in_words, read
from homebox.errors import UsageError


@settings(deadline=None)
@given(
    st.text(alphabet="`~a\n -#\t", max_size=60),
    st.sampled_from(["notes.md", "a`b.txt", "``` x\ny", "é 漢.txt"]),
)
def test_nothing_in_a_file_ends_its_fence(text: str, name: str) -> None:
    (block,) = MarkdownIt().parse(fenced(name, text))
    assert block.type == "fence"
    assert block.content == (text if text.endswith("\n") or not text else f"{text}\n")
    assert "`" not in block.info
    assert "\n" not in block.info


def test_a_file_is_attached_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.md").write_bytes("\ufeffé\r\n\x1b[31m".encode())
    found = attach("~/a.md", taken_bytes=0)
    assert (found.name, found.text, found.size_bytes) == ("~/a.md", "é\r\n\x1b[31m", 12)
    assert read("~/a.md") == found.text


def test_what_cannot_be_attached_is_refused_with_its_name_and_the_next_step(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\x89PNG\r\n")
    (tmp_path / "nul").write_bytes(b"ab\0")
    os.mkfifo(tmp_path / "pipe")
    for name, said in (
        ("missing", "No such file or directory\n  Look at the name once more."),
        ("binary", "is not UTF-8 text (byte 0 is 0x89)\n  Convert it first, for example: iconv"),
        ("nul", "is not text: it holds a NUL at character 2"),
        (".", "is a directory\n  Attach the files in it that matter, one by one."),
        ("pipe", "is not a regular file\n  homebox ask -f"),
        ("a\0b", "null byte"),
    ):
        with pytest.raises(UsageError) as refused:
            attach(f"{tmp_path}/{name}", taken_bytes=0)
        assert said in str(refused.value)


def test_a_file_that_may_not_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed").write_text("x")

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")  # root could read it

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UsageError, match="closed: Permission denied"):
        attach(str(tmp_path / "closed"), taken_bytes=0)


def test_what_does_not_fit_is_refused_with_both_numbers(tmp_path: Path) -> None:
    big = tmp_path / "big.txt"
    big.write_bytes(b"x" * (MAX_MESSAGE_BYTES + 1))
    with pytest.raises(UsageError, match=r"needs 8\.3 MB; a message may have 8\.3 MB"):
        attach(str(big), taken_bytes=0)
    big.write_bytes(b"x" * 6_000_000)
    attach(str(big), taken_bytes=2_000_000)
    with pytest.raises(
        UsageError, match=r"needs 6\.0 MB; a message may have 8\.3 MB, of which 4\.0 MB are taken"
    ):
        attach(str(big), taken_bytes=4_000_000)
    big.write_bytes(b"\n" * 6_000_000)  # a newline takes two bytes in a request
    with pytest.raises(UsageError, match=r"needs 12\.0 MB"):
        attach(str(big), taken_bytes=0)


def test_a_pipe_is_refused_at_once_instead_of_being_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused: list[UsageError] = []

    def attaching() -> None:
        try:
            attach(str(tmp_path / "pipe"), taken_bytes=0)
        except UsageError as error:
            refused.append(error)

    thread = threading.Thread(target=attaching, daemon=True)
    thread.start()
    thread.join(20)
    assert refused


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 B"), (999, "999 B"), (12_345, "12.3 kB"), (999_960, "1.0 MB"), (8_300_000, "8.3 MB")],
)
def test_sizes_in_words(size: int, words: str) -> None:
    assert in_words(size) == words


def test_a_message_weighs_what_its_json_weighs() -> None:
    assert documents.weight_bytes('a"\n\x01é') == 1 + 2 + 2 + 6 + 2 + 2
