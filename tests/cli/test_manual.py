"""Do the man pages hold every command and option, without a fault, and are those in the repository today's?"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from homebox.cli import manual, tree
from homebox.cli.main import EXIT_CODES

FOLDER = Path(__file__).parents[2] / "docs" / "man"


def test_the_pages_in_the_repository_are_todays() -> None:
    there = {file.name: file.read_text(encoding="utf-8") for file in FOLDER.iterdir()}
    assert there == manual.pages(), "scripts/manual writes them anew"


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_the_pages_are_without_a_fault_and_hold_every_command_and_option() -> None:
    read = subprocess.run(
        ["groff", "-ww", "-k", "-man", "-Tascii", "-P-c", *map(str, sorted(FOLDER.iterdir()))],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert read.stderr == ""
    shown = " ".join(re.sub(".\b", "", read.stdout).split())
    for each in tree.whole().all():
        assert each.name in shown
        for option in each.options:
            assert f"{', '.join(option.names)} {option.takes}".rstrip() in shown, (each.name, option.names)
        for example in each.examples:
            assert " ".join(example.split()) in shown
    assert all(f"{code} {what}." in shown for code, what in EXIT_CODES.items())


@pytest.mark.skipif(shutil.which("man") is None, reason="man is not installed")
def test_man_shows_them_without_a_warning() -> None:
    page = str(FOLDER / "homebox-ask.1")
    read = subprocess.run(
        ["man", "--warnings", "-l", page], capture_output=True, text=True, timeout=60, check=True
    )
    assert read.stderr == "" and "homebox-ask - ask one question" in re.sub(".\b", "", read.stdout)


def test_what_a_help_text_says_is_no_request_of_roff() -> None:
    assert manual._text(".TH 'x' \\fB-a~`^") == r"\&.TH \(aqx\(aq \efB\-a\(ti\(ga\(ha"
