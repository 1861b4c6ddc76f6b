"""Does Tab complete in the shells themselves, what stands in the tree of commands and what the daemon knows?"""

from __future__ import annotations

import fcntl
import os
import pty
import shutil
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from homebox.cli import completion, completion_scripts, tree
from tests.cli.conftest import COMMAND, Shell, Terminal
from tests.client.fake_daemon import FakeDaemon

# What is typed before Tab, some of what is offered, and what is not.
CASES: list[tuple[str, set[str], set[str]]] = [
    ("homebox ", {"ask", "chat", "completion"}, {"list", "words"}),
    ("homebox ch", {"chat", "chats"}, {"ask"}),
    ("homebox chats ", {"list", "restore", "branch"}, {"ask"}),
    ("homebox people keys ", {"new", "list", "revoke"}, {"set"}),
    ("homebox ask --th", {"--think"}, {"--json"}),
    ("homebox ask --think ", {"show", "hide"}, {"ask"}),
    ("homebox ask -m x --priority l", {"low"}, {"normal"}),
    ("homebox chats export --format ", {"md", "json"}, {"c1"}),
    ("homebox completion show ", {"bash", "zsh", "fish"}, {"show"}),
    ("homebox ask -f no", {"notes.md"}, {"list"}),
    ("homebox chats show ", {"c1", "c2"}, {"d1"}),
]
MORE_OF_THE_DAEMON: list[tuple[str, set[str], set[str]]] = [
    ("homebox chats restore ", {"d1"}, {"c1"}),
    ("homebox ask --chat c", {"c1", "c2"}, {"d1"}),
    ("homebox ask --model ", {"tiny"}, {"c1"}),
    ("homebox streams cancel t-", {"t-91c"}, {"c1"}),
]


class Prompt(Terminal):
    """A shell on a pseudo-terminal."""

    def __init__(self, args: list[str], env: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            args,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=env,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self.screen = ""


@pytest.fixture
def desk(fake: FakeDaemon, homebox: Shell, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of somebody who has `homebox` on their path, some chats, and a file in their directory."""
    rows = [{"id": "c1", "title": "Trip: to Lisbon"}, {"id": "c2", "title": "Soup\x1b[2J"}]
    gone = [{"id": "d1", "title": "Old"}]
    fake.when("GET", "/homebox/chats", lambda exchange: exchange.json({"chats": rows}))
    fake.when("GET", "/homebox/chats?limit=200&deleted=1", lambda exchange: exchange.json({"chats": gone}))
    streams = [{"id": "t-91c", "person": "anna", "state": "decode"}]
    fake.when("GET", "/homebox/streams", lambda exchange: exchange.json({"streams": streams}))
    fake.when("GET", "/v1/models", lambda exchange: exchange.json({"data": [{"id": "tiny"}]}))
    command = tmp_path / "bin" / "homebox"
    command.parent.mkdir()
    patient = "from homebox.cli import completion; completion.BUDGET_S = 10"  # the machine may be busy
    command.write_text(f"#!/bin/sh\nexec {COMMAND[0]} -c '{patient}; {COMMAND[2]}' \"$@\"\n")
    command.chmod(0o755)
    (tmp_path / "notes.md").write_text("")
    yield homebox.env | {"PATH": f"{command.parent}:{os.environ['PATH']}", "TERM": "xterm"}


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    whole, made = tree.whole(), {}
    for shell, write in completion_scripts.SHELLS.items():
        made[shell] = tmp_path_factory.mktemp("scripts") / f"script.{shell}"
        made[shell].write_text(write(whole))
    return made


def run(shell: list[str], code: str, env: dict[str, str], folder: Path) -> str:
    if shutil.which(shell[0]) is None:
        pytest.skip(f"{shell[0]} is not installed")
    done = subprocess.run(
        [*shell, code], env=env, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == "" and done.returncode == 0
    return done.stdout


def offered(out: str) -> dict[str, set[str]]:
    """`> line` and below it what was offered there."""
    found: dict[str, set[str]] = {}
    for block in out.split("> ")[1:]:
        line, *words = block.split("\n")
        found[line] = {word.split("\t")[0].strip() for word in words} - {""}
    return found


def check(out: str, cases: list[tuple[str, set[str], set[str]]]) -> None:
    found = offered(out)
    for line, there, absent in cases:
        assert there <= found[line] and not absent & found[line], (line, found[line])


def test_bash_completes(desk: dict[str, str], script: dict[str, Path], tmp_path: Path) -> None:
    lines = [f"set -u; . {script['bash']}", "complete -p homebox >/dev/null"]
    cases = [
        *CASES,
        *MORE_OF_THE_DAEMON,
        ("homebox ask --think = s", {"show"}, {"hide"}),
    ]  # --think=s: three words
    for line, _, _ in cases:
        words = [*line.split(), ""] if line.endswith(" ") else line.split()
        listed = " ".join(f"'{word}'" for word in words)
        lines.append(
            f"echo '> {line}'; COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; _homebox 2>/dev/null"
        )
        lines.append('(( ${#COMPREPLY[@]} )) && printf "%s\\n" "${COMPREPLY[@]}"')
    out = run(["bash", "--norc", "-c"], "\n".join([*lines, "true"]), desk, tmp_path)
    check(out, cases)


def test_fish_completes_with_words_about_each(
    desk: dict[str, str], script: dict[str, Path], tmp_path: Path
) -> None:
    lines = [f"source {script['fish']}"]
    lines += [f"echo '> {line}'; complete -C '{line}'" for line, _, _ in CASES]
    out = run(["fish", "--no-config", "-c"], "\n".join(lines), desk, tmp_path)
    check(out, CASES)
    assert "c1\tTrip: to Lisbon\n" in out and "\x1b" not in out


def test_zsh_completes(desk: dict[str, str], script: dict[str, Path], tmp_path: Path) -> None:
    """Where zsh itself would offer matches, `compadd` is asked what it was given."""
    lines = [
        f"autoload -U compinit; compinit -D; source {script['zsh']}",
        "compset() { : }",
        "_files() { print -l *(N) }",
        "_describe() { local each; [[ $1 == -o ]] && shift; for each in ${(P)2}; print -r -- ${each%%:*} }",
        "compadd() { print -l ${(P)2} }",
    ]
    for line, _, _ in CASES:
        words = [*line.split(), ""] if line.endswith(" ") else line.split()
        listed = " ".join(f"'{word}'" for word in words)
        lines.append(f"print -r -- '> {line}'; words=({listed}); CURRENT={len(words)}; _homebox")
    found = offered(run(["zsh", "-f", "-c"], "\n".join(lines), desk, tmp_path))
    for line, there, _ in CASES:  # it offers all there is; zsh itself takes those that begin so
        assert there <= found[line], (line, found[line])


@pytest.mark.parametrize(
    ("shell", "start"),
    [("bash", ["--norc", "--noprofile", "-i"]), ("zsh", ["-f", "-i"]), ("fish", ["--no-config", "-i"])],
)
def test_tab_at_a_prompt_completes(
    desk: dict[str, str], script: dict[str, Path], tmp_path: Path, shell: str, start: list[str]
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    terminal = Prompt([shell, *start], desk)
    try:
        setup = "autoload -U compinit; compinit -D; " if shell == "zsh" else ""
        terminal.type(f"cd {tmp_path}; {setup}. {script[shell]}; echo set''up\n")
        terminal.until("setup")
        terminal.type("homebox compl\t")
        terminal.until("completion")
        terminal.type("show b\t")
        terminal.until("bash")
        terminal.type(" | grep -c COMPREPLY | sed s/^/lines:/\n")
        terminal.until(r"lines:\d")
    finally:
        terminal.close()


def test_what_the_daemon_does_not_say_at_once_is_left_out(fake: FakeDaemon, homebox: Shell) -> None:
    fake.when("GET", "/homebox/chats", lambda exchange: exchange.wait_for_hang_up())
    began = time.monotonic()
    ran = homebox("completion", "words", "chats")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert time.monotonic() - began < completion.BUDGET_S + 5, (
        "it does not wait for the daemon's own deadline"
    )
    fake.stop()
    ran = homebox("completion", "words", "streams")
    assert (ran.code, ran.out, ran.err) == (0, "", "")


def test_it_loads_nothing_heavy(fake: FakeDaemon, homebox: Shell) -> None:
    loaded = {name.split(".")[0] for name in homebox.modules("completion", "words", "chats")}
    assert not loaded & {"textual", "rich", "torch", "aiohttp", "httpx", "pydantic"}


def test_scripts_know_every_command_and_every_option(script: dict[str, Path]) -> None:
    for shell, file in script.items():
        text = file.read_text()
        for each in tree.whole().all():
            assert each.path == () or " ".join(each.path) in text
            for option in each.options:
                for name in option.names:
                    assert (
                        name if shell != "fish" else f" {name[2:]}" if name[:2] == "--" else f"-s {name[1]}"
                    ) in text


@pytest.mark.parametrize(
    ("shell", "file", "says"),
    [
        ("bash", ".local/share/bash-completion/completions/homebox", "~/.bashrc"),
        ("zsh", ".local/share/zsh/site-functions/_homebox", "fpath="),
        ("fish", ".config/fish/completions/homebox.fish", "New shells have it."),
    ],
)
def test_it_is_put_where_the_shell_looks_and_what_is_left_to_do_is_said(
    homebox: Shell, tmp_path: Path, shell: str, file: str, says: str
) -> None:
    ran = homebox("completion", "install", shell)
    assert ran.code == 0 and f"written to {tmp_path}/{file}\n" in ran.out and says in ran.out
    installed = (tmp_path / file).read_text()
    assert (
        installed == homebox("completion", "show", shell).out and "Made by: homebox completion" in installed
    )
    (tmp_path / file).unlink()
    (tmp_path / file).parent.rmdir()
    (tmp_path / file).parent.write_text("")
    ran = homebox("completion", "install", shell)
    assert ran.code == 2 and f"homebox completion show {shell}" in ran.err
