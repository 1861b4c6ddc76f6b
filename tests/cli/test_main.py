"""Does the command line import only what it needs, and end every failure in words and the right code?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from homebox.cli import tree
from homebox.cli.main import COMMANDS, GROUPS
from tests.cli.conftest import Shell
from tests.client.fake_daemon import FakeDaemon

HEAVY = (
    "textual",
    "rich",
    "torch",
    "httpx",
    "aiohttp",
    "numpy",
    "transformers",
    "tokenizers",
    "jinja2",
    "pydantic",
)
# Typer, msgspec, http.client and what they stand on. A new import that matters shows here long before the clock does.
MOST_MODULES = {("--help",): 170, ("ask", "--help"): 170, ("ask", "Why?"): 260}


@pytest.mark.parametrize("args", MOST_MODULES, ids=" ".join)
def test_nothing_heavy_is_imported_and_not_much_at_all(
    fake: FakeDaemon, homebox: Shell, args: tuple[str, ...]
) -> None:
    fake.answers("ok")
    modules = homebox.modules(*args)
    assert not [name for name in modules if name.split(".")[0] in HEAVY]
    assert len(modules) <= MOST_MODULES[args]
    if args[-1] == "Why?":
        assert len(fake.requests("/homebox/ask")) == 1


def test_the_help_of_the_root_imports_no_command(homebox: Shell) -> None:
    modules = homebox.modules("--help")
    ours = {name for name in modules if name.startswith("homebox.cli.")}
    assert ours == {"homebox.cli.main", "homebox.cli.parsing"}


def test_a_command_imports_no_other_commands_module(homebox: Shell) -> None:
    modules = homebox.modules("ask", "--help")
    others = {entry.where.partition(":")[0] for name, entry in COMMANDS.items() if name != "ask"}
    assert not others & set(modules)


def test_the_help_of_the_root_lists_every_command_and_examples(homebox: Shell) -> None:
    ran = homebox("--help")
    assert ran.code == 0 and ran.err == ""
    for name, entry in COMMANDS.items():
        assert f"  {name}" in ran.out and entry.about in ran.out
    assert '  homebox ask "Why is the sky blue?"\n' in ran.out
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMANDS)


def test_every_command_has_a_line_about_it_and_an_example_and_every_option_but_the_plainest_has_words() -> (
    None
):
    commands = [each for each in tree.whole().all() if not each.commands]
    assert {each.path[0] for each in commands} == set(COMMANDS)
    for each in commands:
        assert each.about.endswith((".", "?")), each.name
        assert any(each.name in line for line in each.examples), each.name
        for option in each.options:
            assert option.about or option.names in {("--top-p",), ("--top-k",), ("--min-p",)}, each.name


@pytest.mark.parametrize("args", [["ask", "-h"], ["streams", "list", "--help"]])
def test_help_goes_to_standard_output(homebox: Shell, args: list[str]) -> None:
    ran = homebox(*args)
    assert (ran.code, ran.err) == (0, "") and "Example" in ran.out and "<str>" not in ran.out


def test_without_arguments_and_without_a_terminal_it_is_help_on_standard_error_and_2(homebox: Shell) -> None:
    ran = homebox()
    assert (ran.code, ran.out) == (2, "") and "Run the box:" in ran.err


@pytest.mark.parametrize(
    "group",
    [*(" ".join(each.path) for each in tree.whole().all() if each.path and each.commands)],
)
def test_every_list_of_commands_is_whole_sentences(homebox: Shell, group: str) -> None:
    listed = homebox(*group.split(), "--help").out.partition("Commands:")[2]
    assert listed and not [line for line in listed.splitlines() if line.endswith("...")]


def test_a_group_without_a_command_is_its_help_and_2(homebox: Shell) -> None:
    ran = homebox("streams")
    assert (ran.code, ran.out) == (2, "") and ran.err.startswith("Usage: homebox streams")


def test_without_arguments_on_a_terminal_it_is_the_chat(fake: FakeDaemon, homebox: Shell) -> None:
    fake.when("GET", "/health", lambda exchange: exchange.json({"state": "ready", "model": "tiny"}))
    fake.when("GET", "/homebox/chats?", lambda exchange: exchange.json({"chats": []}))
    terminal = homebox.terminal(TERM="dumb")
    terminal.until("plain mode, since TERM is dumb(.|\n)*this one is the first\n")
    terminal.until("you: ")
    terminal.type("\x04")
    assert terminal.end()[0] == 0


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["aks"], "there is no command 'aks'\n  Did you mean: homebox ask\n"),
        (["xyzzy"], "there is no command 'xyzzy'\n  homebox --help lists the commands.\n"),
        (["ask", "--tmep", "1"], "no such option: --tmep"),
        (["streams", "cancle"], "no such command 'cancle'. Did you mean 'cancel'?"),
        (
            ["status", "--wait", "soon"],
            "'soon' is not a number\n  homebox status --help shows what it takes.\n",
        ),
    ],
)
def test_a_usage_error_is_2_with_the_nearest_word(homebox: Shell, args: list[str], says: str) -> None:
    ran = homebox(*args)
    assert (ran.code, ran.out) == (2, "") and says in ran.err


def test_an_unexpected_error_is_one_line_and_1_and_the_traceback_is_there_for_who_asks(
    homebox: Shell, tmp_path: Path
) -> None:
    code = (
        "import homebox.cli.version as v, sys\ndef broken(*a):\n    raise ValueError('first\\nsecond')\n"
        "v.health = broken\nsys.argv = ['homebox', 'version']\nfrom homebox.cli.main import main\nmain()"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env=homebox.env | more,
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
        for more in ({}, {"HOMEBOX_DEBUG": "1"})
    ]
    assert runs[0].returncode == 1
    assert runs[0].stderr == (
        "homebox: internal error: ValueError: first second (set HOMEBOX_DEBUG=1 for the traceback)\n"
    )
    assert "Traceback" in runs[1].stderr


def test_closed_standard_streams_are_no_reason_for_a_traceback(homebox: Shell) -> None:
    script = f"exec {sys.executable} -c 'from homebox.cli.main import main; main()' version >&- 2>&-"
    done = subprocess.run(["sh", "-c", script], env=homebox.env, capture_output=True, check=False, timeout=20)
    assert b"Traceback" not in done.stderr + done.stdout


@pytest.mark.parametrize("args", ["--help", "version", "models list --json", "status", "ask hi"])
def test_without_standard_output_it_ends_like_a_broken_pipe(
    fake: FakeDaemon, homebox: Shell, args: str
) -> None:
    fake.when("GET", "/health", lambda exchange: exchange.json({"state": "ready", "model": "tiny"}))
    fake.answers("hello")
    script = f"exec {sys.executable} -c 'from homebox.cli.main import main; main()' {args} >&-"
    done = subprocess.run(["sh", "-c", script], env=homebox.env, capture_output=True, check=False, timeout=20)
    assert (done.returncode, done.stderr) == (0, b"")


def test_without_standard_error_nothing_of_it_gets_into_the_answer(fake: FakeDaemon, homebox: Shell) -> None:
    fake.answers("hello")
    script = f"exec {sys.executable} -c 'from homebox.cli.main import main; main()' ask hi --stats 2>&- <&-"
    done = subprocess.run(["sh", "-c", script], env=homebox.env, capture_output=True, check=False, timeout=20)
    assert (done.returncode, done.stdout) == (0, b"hello\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("args", ["--help", "version", "models list --json", "ask hi", "ask hi --json"])
def test_a_full_disk_is_said_in_words(fake: FakeDaemon, homebox: Shell, args: str, unbuffered: str) -> None:
    fake.answers("hello")
    script = f"exec {sys.executable} -c 'from homebox.cli.main import main; main()' {args} >/dev/full"
    env = homebox.env | {"PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(["sh", "-c", script], env=env, capture_output=True, check=False, timeout=20)
    assert done.returncode == 1
    assert done.stderr == b"homebox: cannot write the answer: no space left on device\n"


def test_a_failure_is_said_in_words_even_if_its_json_finds_no_room(homebox: Shell) -> None:
    script = f"exec {sys.executable} -c 'from homebox.cli.main import main; main()' aks --json >/dev/full"
    done = subprocess.run(["sh", "-c", script], env=homebox.env, capture_output=True, check=False, timeout=20)
    assert done.returncode == 2 and b"Did you mean: homebox ask" in done.stderr


def test_the_version_is_also_an_option(homebox: Shell) -> None:
    assert homebox("--version").out == homebox("version").out != ""


def test_version_names_both_sides(fake: FakeDaemon, homebox: Shell) -> None:
    fake.when("GET", "/health", lambda exchange: exchange.json({"state": "ready", "version": "9.9"}))
    assert json.loads(homebox("version", "--json").out)["daemon"] == "9.9"
    fake.stop()
    assert "daemon not reachable" in homebox("version").out
