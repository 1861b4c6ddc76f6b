"""The pictures of the documentation are small, fetch nothing, and show nothing of the machine that drew them."""

from __future__ import annotations

import getpass
import re
import socket
from pathlib import Path

import pytest

from tests.tui.pictures import KEYS_PAGE, MOST_BYTES, PICTURES, keys_page

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "pictures"


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_small_and_says_nothing_of_its_machine(name: str) -> None:
    svg = (FOLDER / f"{name}.svg").read_text()
    assert len(svg.encode()) < MOST_BYTES
    assert not re.search(r"url\((?!#)|href|@import|@font-face|<script", svg)
    for word in (socket.gethostname(), str(Path.home()), str(ROOT), f"{getpass.getuser()}@"):
        assert word not in svg


def test_every_picture_that_is_shown_is_drawn() -> None:
    shown = set()
    for page in [ROOT / "README.md", *ROOT.glob("docs/*.md")]:
        shown |= set(re.findall(r"pictures/([\w-]+)\.svg", page.read_text()))
    assert shown == set(PICTURES)


def test_the_page_of_keys_is_the_table_that_the_screens_work_by() -> None:
    assert KEYS_PAGE.read_text() == keys_page(), "scripts/pictures writes it anew"
