"""Which command is meant, and what does the shell get to see of how it went?

The console entry. Holds a table of the commands (where each lives, one line about it) and imports only the one that is
used, because `homebox ask` has to be quick. It is the one owner of standard error's last words and of the exit code:
a `HomeboxError` becomes its message and its hint, anything unexpected one line and never a traceback. It knows nothing
of what a command does.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from homebox.cli.parsing import quicken
from homebox.errors import HomeboxError, UsageError


@dataclass(frozen=True)
class Entry:
    """A command: `where` is module:name of a function or of a Typer app of its own."""

    where: str
    about: str


COMMANDS = {
    "ask": Entry("homebox.cli.ask:ask", "Ask one question; the answer goes to standard output."),
    "chat": Entry("homebox.cli.chat:chat", "Talk with the model; it remembers what was said."),
    "chats": Entry(
        "homebox.cli.chats:app", "Your conversations: list, read, search, branch, delete, export."
    ),
    "status": Entry("homebox.cli.status:status", "Is the box up, and is the model loaded?"),
    "top": Entry("homebox.cli.top:top", "Watch the box: who runs what, how fast, in how much memory."),
    "streams": Entry("homebox.cli.streams:app", "List running and waiting requests, or cancel them."),
    "models": Entry("homebox.cli.models:app", "The models on this machine: list, pull, adopt, remove."),
    "serve": Entry("homebox.cli.serve:serve", "Run the daemon."),
    "service": Entry("homebox.cli.service:app", "Run the box as a service of this machine."),
    "pause": Entry("homebox.cli.pause:pause", "Free the machine for something else; what runs is held."),
    "resume": Entry("homebox.cli.pause:resume", "End a pause."),
    "people": Entry("homebox.cli.people:app", "Who may do what: roles, limits, keys."),
    "whoami": Entry("homebox.cli.whoami:whoami", "For whom the daemon takes you, and what you may do."),
    "usage": Entry("homebox.cli.usage:usage", "Requests and tokens by day and person."),
    "audit": Entry("homebox.cli.audit:audit", "Who did what on this box, and when."),
    "config": Entry("homebox.cli.config:app", "Which settings hold, and where they come from."),
    "bench": Entry("homebox.cli.bench:bench", "Measure how fast the box is, and for how many at once."),
    "doctor": Entry("homebox.cli.doctor.command:doctor", "Find out what is wrong, and what to do about it."),
    "tls": Entry("homebox.cli.tls:app", "A certificate for the box, to be reached over TLS."),
    "backup": Entry("homebox.cli.backup:backup", "Save chats, people, keys and configuration in one file."),
    "restore": Entry("homebox.cli.restore:restore", "Bring back what a backup holds."),
    "completion": Entry("homebox.cli.completion:app", "Let Tab finish commands, options, ids and names."),
    "version": Entry("homebox.cli.version:version", "Versions of this program and of the daemon."),
}

GROUPS = {
    "Talk": ("ask", "chat", "chats"),
    "Watch": ("status", "top", "streams"),
    "About you": ("whoami", "usage", "completion", "version"),
    "Run the box": (
        *("models", "serve", "service", "pause", "resume", "people", "audit"),
        *("config", "bench", "doctor", "tls", "backup", "restore"),
    ),
}

EXIT_CODES = {
    0: "done",
    1: "engine failed",
    2: "usage",
    3: "daemon not reachable",
    4: "timed out",
    5: "busy",
    6: "not found",
    7: "not allowed",
    8: "prompt too long",
    130: "interrupted",
    143: "terminated",
}

# What a write says, of all things that can fail, when its disk takes no more; a file that cannot be opened has a name.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

HELP_NAMES = {"help_option_names": ["-h", "--help"]}
ABOUT = "One machine, a whole household: ask it, talk with it, watch it work."
EXAMPLES = f"""Examples:

\b
  homebox ask "Why is the sky blue?"
  homebox ask "Summarise this letter" < letter.txt
  homebox chat
  homebox top --once

Exit codes: {", ".join(f"{code} {what}" for code, what in EXIT_CODES.items())}."""


class LazyGroup(TyperGroup):
    """A group whose commands are imported when they are used; listing them imports none."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = COMMANDS.get(cmd_name)
        return load(cmd_name, entry) if entry else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        wide = max(map(len, COMMANDS))  # one column for all groups
        for group, names in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(f"{name:{wide}}", COMMANDS[name].about) for name in names])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            near = difflib.get_close_matches(name, COMMANDS, 1)
            hint = f"Did you mean: homebox {near[0]}" if near else "homebox --help lists the commands."
            raise UsageError(f"there is no command {name!r}", hint=hint)
        return super().resolve_command(ctx, args)


def load(name: str, entry: Entry) -> Any:
    """The click command behind an entry; imports its module."""
    module, _, attribute = entry.where.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    app = found
    if not isinstance(app, typer.Typer):
        app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        app.command(name)(found)
    command = typer.main.get_command(app)
    command.name = name
    for each in _with_subcommands(command):
        each.context_settings.update(HELP_NAMES)
        quicken(each)
        for param in each.params:
            if param.param_type_name == "argument":
                param.display_type_rich = _no_type
    return command


def _no_type(ctx: Any) -> None:
    """Help shows a word by its name: `<list[str]>` behind it says nothing to a person."""


def _with_subcommands(command: Any) -> Iterator[Any]:
    yield command
    for sub in getattr(command, "commands", {}).values():
        yield from _with_subcommands(sub)


def build() -> LazyGroup:
    """The root of the command tree."""
    root = LazyGroup(
        name="homebox", help=ABOUT, epilog=EXAMPLES, rich_markup_mode=None, context_settings=dict(HELP_NAMES)
    )
    quicken(root)
    return root


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit code. Raises whatever the command raises."""
    root = build()
    arguments = list(args)
    if not arguments:
        if not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
            with root.make_context("homebox", [], resilient_parsing=True) as context:
                print(root.get_help(context), file=sys.stderr)
            return 2
        arguments = ["chat", "--continue"]
    if arguments[0] == "--version":
        arguments[0] = "version"
    try:
        with root.make_context("homebox", arguments) as context:
            code = root.invoke(context)
    except typer.Exit as leaving:
        return leaving.exit_code
    except typer.TyperException as error:
        said = error.format_message()
        if said.startswith("Usage:"):  # a group without a command: its help is the answer
            print(said, file=sys.stderr)
            return 2
        raise _usage(error) from None
    return code if isinstance(code, int) else 0


def main() -> NoReturn:
    """The console entry `homebox`."""
    guard(lambda: run(sys.argv[1:]))


def guard(body: Callable[[], int]) -> NoReturn:
    """Run `body` and leave the process with its exit code; whatever it raises becomes words and a code."""
    signal.signal(signal.SIGTERM, _on_terminate)
    _open_closed_streams()
    try:
        code = body()
        sys.stdout.flush()
    except HomeboxError as error:
        code = _fail(error, sys.argv[1:])
    except BrokenPipeError:
        code = 0
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _FULL and error.filename is None:
            code = complain(HomeboxError(f"cannot write the answer: {os.strerror(error.errno).lower()}"))
        elif os.environ.get("HOMEBOX_DEBUG"):
            raise
        else:
            code = _unexpected(error)
    _let_go_of_stdout()
    sys.exit(code)


def _unexpected(error: Exception) -> int:
    said = " ".join(str(error).split())
    _last_words(
        f"homebox: internal error: {type(error).__name__}: {said} (set HOMEBOX_DEBUG=1 for the traceback)"
    )
    return 1


def complain(error: HomeboxError) -> int:
    """Put an error on standard error, in one line or two, and return its exit code."""
    _last_words(f"homebox: {error}")
    return error.exit_code


def _fail(error: HomeboxError, args: Sequence[str]) -> int:
    """The end of a command that raised: who asked for JSON gets a JSON object, on standard output, too."""
    options = args[: args.index("--")] if "--" in args else args
    if "--json" in options or "--jsonl" in options:
        try:
            _json_failure(error, options)
        except BrokenPipeError:
            return error.exit_code  # its reader left
        except OSError:
            pass  # a full disk; the words below still tell
    return complain(error)


def _json_failure(error: HomeboxError, options: Sequence[str]) -> None:
    """In the shape that the command has when it succeeds, where it is `ask`: whoever reads it has one shape to know."""
    if "ask" in options[:1]:
        from homebox.cli.answer import EventLines, JsonObject, Options, Outcome
        from homebox.client.state import ChatState

        writer = EventLines(Options()) if "--jsonl" in options else JsonObject(Options())
        writer.end(Outcome(ChatState(), error=error))
    else:
        import json

        from homebox.client.sanitise import safe_json

        print(safe_json(json.dumps({"error": error.as_dict()})), flush=True)


def _usage(error: typer.TyperException) -> UsageError:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "homebox"
    said = error.format_message().strip()
    said = said[:1].lower() + said[1:]
    return UsageError(said.rstrip("."), hint=f"{command} --help shows what it takes.")


def _last_words(line: str) -> None:
    from homebox.client.sanitise import clean  # a message may quote what somebody else wrote

    try:
        print(clean(line), file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):
        return  # nobody is left to read it; the exit code still tells


def _open_closed_streams() -> None:
    """Who starts us may have closed one of the three: the next file to be opened would get its number. Standard input
    becomes empty, standard output a pipe whose reader has left, and standard error is thrown away."""
    if sys.stdin is None:
        sys.stdin = os.fdopen(_at(0, os.open(os.devnull, os.O_RDONLY)))
    if sys.stdout is None:
        reader, writer = os.pipe()
        sys.stdout = os.fdopen(_at(1, writer), "w")
        if reader != 1:
            os.close(reader)
    if sys.stderr is None:
        sys.stderr = os.fdopen(_at(2, os.open(os.devnull, os.O_WRONLY)), "w")


def _at(number: int, descriptor: int) -> int:
    """Move a descriptor to its place, where our children find it, too."""
    if descriptor == number:
        os.set_inheritable(number, True)
    else:
        os.dup2(descriptor, number)
        os.close(descriptor)
    return number


def _let_go_of_stdout() -> None:
    """Flush, or point standard output away: a pipe whose reader left must not speak up while the interpreter ends."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        except OSError:
            return


def _on_terminate(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)
