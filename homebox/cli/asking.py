"""How does one question become an answer on standard output and an exit code?

Builds the request from the flags, reads the answer's events, and hands them to one of the writers in `answer.py`. The
answer lives as long as this process: hanging up cancels it, unless it was detached. It declares no flags.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from homebox.cli import prompt as prompts
from homebox.cli import terminal
from homebox.cli.answer import EventLines, JsonObject, Options, Outcome, PlainText, Writer
from homebox.cli.main import complain
from homebox.cli.stopping import Stopping
from homebox.client import connection, stream
from homebox.client.patience import Patience
from homebox.client.sanitise import clean, safe_json
from homebox.client.state import ChatState
from homebox.errors import DaemonUnreachable, HomeboxError, UsageError, from_dict
from homebox.wire import requests

if TYPE_CHECKING:
    from homebox.cli.ask_in_chat import InChat


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What was said on the command line."""

    words: list[str]
    files: list[str]
    model: str | None
    system: str | None  # text, or @FILE
    json: bool
    jsonl: bool
    stream: bool
    think: bool
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    seed: int | None
    stop: list[str]
    timeout_s: float | None
    priority: Literal["normal", "low"]
    stats: bool
    quiet: bool
    output: str | None
    detach: bool
    attach: str | None
    speak_as: str | None
    chat: str | None
    last: bool  # in the newest chat
    save: bool


def run(flags: Flags) -> int:
    """Ask, write, and return the exit code. A failure has the form of the answer that was asked for, too."""
    terminal.prepare_stdout()
    writer, stopping = _writer(flags, None), Stopping(None)
    leave: Callable[[], None] | None = None
    try:
        _check(flags)
        stopping = Stopping(flags.timeout_s)
        writer = _writer(flags, _writable(flags.output))
        daemon = connection.from_environment(speak_as=flags.speak_as)
        if flags.attach is not None:
            begin: Callable[..., connection.Reply] = partial(stream.attach, daemon, flags.attach)
        else:
            request, in_chat = _place(daemon, flags, _request(flags))
            if flags.detach:
                return _detach(in_chat.submit() if in_chat else _submit(daemon, request), flags)
            begin = in_chat.begin if in_chat else partial(stream.ask, daemon, request)
            leave = in_chat.leave if in_chat else None
        outcome = _listen(daemon, begin, writer, stopping, leave)
    except HomeboxError as error:
        outcome = Outcome(ChatState(), error=error)
    writer.end(outcome)
    if outcome.error is not None:
        return complain(outcome.error)
    return (stopping.exit_code or 130) if outcome.interrupted else 0


def _check(flags: Flags) -> None:
    """Raises UsageError for flags that cannot be meant."""
    if flags.json and flags.jsonl:
        raise UsageError("--json and --jsonl are two different outputs", hint="Give one of them.")
    in_chat = flags.chat is not None or flags.last
    if flags.attach is not None and (flags.words or flags.files or flags.detach or in_chat):
        raise UsageError("--attach reads an answer and asks nothing", hint="homebox ask --attach ID")
    if flags.chat is not None and flags.last:
        raise UsageError("--continue and --chat name two conversations", hint="Give one of them.")
    if in_chat and flags.system is not None:
        raise UsageError(
            "one question cannot change the instruction of a whole conversation",
            hint="Leave --system out, or change it for good: homebox chat --continue --system TEXT",
        )
    if flags.timeout_s is not None and not 0 < flags.timeout_s < math.inf:
        raise UsageError(
            f"--timeout {flags.timeout_s:g} is not a time to wait",
            hint="Give seconds, for example --timeout 60.",
        )


def _writer(flags: Flags, output: Path | None) -> Writer:
    kind: Callable[[Options], Writer] = JsonObject if flags.json else EventLines if flags.jsonl else PlainText
    return kind(
        Options(
            stream=flags.stream,
            think=flags.think,
            stats=flags.stats,
            quiet=flags.quiet,
            output=output,
            me=flags.speak_as or connection.own_name(),
            attached=flags.attach is not None,
            asked_tokens=flags.max_tokens,
        )
    )


def _request(flags: Flags) -> requests.AskRequest:
    messages = [requests.Message("user", prompts.compose(flags.words, flags.files))]
    if flags.system is not None:
        messages.insert(0, requests.Message("system", prompts.text_or_file(flags.system)))
    return requests.AskRequest(
        messages=messages,
        options=requests.Options(
            model=flags.model,
            max_tokens=_integer("--max-tokens", flags.max_tokens),
            temperature=_finite("--temp", flags.temperature),
            top_p=_finite("--top-p", flags.top_p),
            top_k=_integer("--top-k", flags.top_k),
            min_p=_finite("--min-p", flags.min_p),
            seed=_integer("--seed", flags.seed),
            stop=flags.stop,
            priority=flags.priority,
        ),
        detach=flags.detach,
    )


def _place(
    daemon: connection.Daemon, flags: Flags, request: requests.AskRequest
) -> tuple[requests.AskRequest, InChat | None]:
    """Where the question goes: into a chat, below one that is left as it is, or nowhere."""
    if flags.chat is None and not flags.last:
        return request, None
    from homebox.cli import ask_in_chat

    chat = ask_in_chat.meant(daemon, flags.chat)
    if flags.save:
        return request, ask_in_chat.InChat(daemon, chat, request)
    return ask_in_chat.with_its_past(daemon, chat, request), None


def _listen(
    daemon: connection.Daemon,
    begin: Callable[..., connection.Reply],
    writer: Writer,
    stopping: Stopping,
    leave: Callable[[], None] | None,
) -> Outcome:
    """Read the answer to its end, or to where it was stopped. `leave` ends one that does not end with its connection.
    Raises BrokenPipeError when our reader left."""
    state = ChatState()
    patience_s = min(connection.SILENCE_S, stopping.timeout_s or connection.SILENCE_S)
    with stopping, Patience(daemon, writer.explain) as patience:
        try:
            with begin(timeout_s=patience_s) as reply:
                stopping.watch(reply)
                for after, event, line in stream.read(reply):
                    with patience.hear(after):
                        writer.write(state, after, event, line)
                    state = after
        except KeyboardInterrupt:
            return Outcome(state, interrupted=True)
        except DaemonUnreachable as error:
            if stopping.timed_out:
                return Outcome(state, error=stopping.timeout_error())
            return Outcome(state, interrupted=True) if stopping.stopped else Outcome(state, error=error)
        except HomeboxError as error:
            return Outcome(state, error=error)
        finally:
            if leave and not state.done:
                leave()
    finished = state.finished
    if finished and (finished.error or finished.reason == "error"):
        found = finished.error or {"code": "engine_failed", "message": finished.detail or "the engine failed"}
        return Outcome(state, error=from_dict(found))
    return Outcome(state, interrupted=bool(finished and finished.reason == "cancelled"))


def _submit(daemon: connection.Daemon, request: requests.AskRequest) -> requests.TurnCreated:
    return msgspec.convert(daemon.json("POST", "/homebox/ask", request), requests.TurnCreated)


def _detach(created: requests.TurnCreated, flags: Flags) -> int:
    turn = created.turn
    as_json = flags.json or flags.jsonl
    whole = msgspec.json.encode(created).decode() if as_json else turn
    sys.stdout.write(f"{safe_json(whole) if as_json else clean(whole)}\n")
    if not flags.quiet:
        terminal.say(
            f"the daemon goes on by itself; homebox ask --attach {turn} reads it, homebox streams cancel {turn} stops it"
        )
    return 0


def _writable(name: str | None) -> Path | None:
    """`name`, known to be a place where a file can be written: found out before anything is computed."""
    if name is None:
        return None
    path = Path(name).expanduser()
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"cannot write to {path}", hint="Name a file in a directory that you may write to.")
    return path


def _finite(flag: str, value: float | None) -> float | None:
    """JSON has no NaN and no infinity: it would arrive as nothing and be dropped in silence."""
    if value is not None and not math.isfinite(value):
        raise UsageError(f"{flag} {value} is not a number that can be meant")
    return value


def _integer(flag: str, value: int | None) -> int | None:
    if value is not None and not -(2**63) <= value < 2**63:
        raise UsageError(f"{flag} {value} does not fit into 64 bits")
    return value
