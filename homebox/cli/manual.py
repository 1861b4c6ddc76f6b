"""What do the man pages say? The same as the help: they are made from the tree of commands.

    python -m homebox.cli.manual DIR

writes `homebox.1` and a page for each command into DIR. Pure text in, roff out; a page changes only if the help does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from homebox.cli.main import EXAMPLES, EXIT_CODES, GROUPS
from homebox.cli.tree import Argument, Command, Option, whole

ENVIRONMENT = {
    "HOMEBOX_SOCKET": "The socket of the daemon to speak with, instead of the one of this machine.",
    "HOMEBOX_URL": "A daemon elsewhere, like http://box.local:11480; then the socket is not used.",
    "HOMEBOX_KEY": "The key that is sent to HOMEBOX_URL.",
    "HOMEBOX_CA": "A file with the certificates that an https:// HOMEBOX_URL is checked against.",
    "HOMEBOX_PLAIN": "1: homebox chat only ever appends to the screen, as with --plain.",
    "HOMEBOX_DEBUG": "1: an unexpected error shows its traceback.",
    "NO_COLOR": "Nothing is coloured.",
}
FILES = {
    "~/.config/homebox/config.toml": "url, key, ca and socket of the daemon that you speak with.",
    "/etc/homebox/config.toml, /etc/homebox/conf.d/*.toml": "Settings of the daemon; homebox config show lists them.",
    "/run/homebox/api.sock": "The socket of this machine's daemon.",
}
_PLAIN = str.maketrans(
    {"\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti", "…": "..."}
)


def pages() -> dict[str, str]:
    """Each file's name and text."""
    root = whole()
    found = {"homebox.1": _root(root)}
    for command in root.commands:
        found[f"homebox-{command.path[0]}.1"] = _page(command)
    return found


def _root(root: Command) -> str:
    lines = [
        *_head("homebox", "one machine with a GPU serves a household"),
        ".B homebox",
        r"\fICOMMAND\fR ...",
    ]
    lines += _section("DESCRIPTION")
    lines += [_text(root.about), ".PP", "Without a command, on a terminal: the last conversation goes on."]
    for group, names in GROUPS.items():
        lines.append(f".SS {_text(group)}")
        by_name = {command.path[0]: command for command in root.commands}
        for name in names:
            lines += [".TP", rf"\fBhomebox\-{_text(name)}\fR(1)", _text(by_name[name].about)]
    lines += _options(root.options)
    lines += _section(
        "EXAMPLES", _example(line.strip() for line in EXAMPLES.splitlines() if line.startswith("  "))
    )
    lines += _exit_status()
    lines += _section("ENVIRONMENT", _terms(ENVIRONMENT.items()))
    lines += _section("FILES", _terms(FILES.items()))
    return "\n".join(lines) + "\n"


def _page(command: Command) -> str:
    lines = _head(f"homebox-{command.path[0]}", command.about.rstrip("."))
    leaves = [each for each in command.all() if not each.commands]
    for number, each in enumerate(leaves):
        lines += [".br"] if number else []
        lines += [_synopsis(each)]
    if not command.commands:
        lines += _section("DESCRIPTION", _described(command))
        lines += _options(command.options)
        lines += _section("EXAMPLES", _example(command.examples))
    else:
        lines += _section("COMMANDS")
        for each in leaves:
            lines += [f".SS {_text(' '.join(each.path[1:]))}", *_described(each)]
            own = [option for option in each.options if "--help" not in option.names]  # as every command has
            lines += [line for option in own for line in _option(option)]
            lines += [".PP", *_example(each.examples)]
    lines += _exit_status()
    lines += _section("SEE ALSO", [r"\fBhomebox\fR(1), which also tells of environment and files"])
    return "\n".join(lines) + "\n"


def _head(name: str, about: str) -> list[str]:
    about = about[:1].lower() + about[1:] if not about[:2].isupper() else about
    return [
        f'.TH "{_text(name.upper())}" "1" "" "homebox" "homebox"',
        ".SH NAME",
        rf"{_text(name)} \- {_text(about)}",
        ".SH SYNOPSIS",
    ]


def _synopsis(command: Command) -> str:
    words = [rf"\fB{_text(command.name)}\fR", r"[\fIOPTIONS\fR]"]
    for each in command.arguments:
        name = rf"\fI{_text(each.name)}\fR"
        words.append((name if each.required else f"[{name}]") + ("..." if each.several else ""))
    return " ".join(words)


def _described(command: Command) -> list[str]:
    lines = [_text(command.about)]
    for paragraph in command.help.split("\n\n"):
        lines += [".PP", _text(" ".join(paragraph.split()))] if paragraph.strip() else []
    for argument in command.arguments:
        lines += _argument(argument)
    return lines


def _argument(argument: Argument) -> list[str]:
    return [".TP", rf"\fI{_text(argument.name)}\fR", _text(argument.about)] if argument.about else []


def _options(options: Iterable[Option]) -> list[str]:
    return _section("OPTIONS", [line for option in options for line in _option(option)])


def _option(option: Option) -> list[str]:
    names = ", ".join(rf"\fB{_text(name)}\fR" for name in option.names)
    takes = rf" \fI{_text(option.takes)}\fR" if option.takes else ""
    return [".TP", names + takes, _text(option.about) or r"\&"]


def _exit_status() -> list[str]:
    return _section("EXIT STATUS", _terms((str(code), f"{what}.") for code, what in EXIT_CODES.items()))


def _section(name: str, lines: Iterable[str] = ()) -> list[str]:
    return [f".SH {name}", *lines]


def _terms(rows: Iterable[tuple[str, str]]) -> list[str]:
    return [line for term, about in rows for line in (".TP", rf"\fB{_text(term)}\fR", _text(about))]


def _example(lines: Iterable[str]) -> list[str]:
    return [".nf", *map(_text, lines), ".fi"]


def _text(text: str) -> str:
    """Words as roff writes them: nothing in them is a request, and a hyphen stays one."""
    plain = text.translate(_PLAIN)
    return rf"\&{plain}" if plain.startswith((".", r"\(aq")) else plain


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    made = pages()
    for old in folder.glob("homebox*.1"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
