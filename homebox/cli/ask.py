"""`homebox ask`: the flags of one question, for people and for scripts.

Only declares them: what is done with them is in `asking.py`, which is imported once there is something to do, so that
`--help` is quick.
"""

from __future__ import annotations

from typing import Annotated, Literal

import typer


def ask(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROMPT", help="The question; - reads standard input.", show_default=False),
    ] = None,
    file: Annotated[
        list[str] | None,
        typer.Option("-f", "--file", metavar="FILE", help="A document to ask about; may repeat."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("-m", "--model", metavar="NAME", help="The model to ask.")
    ] = None,
    system: Annotated[
        str | None, typer.Option("-s", "--system", metavar="TEXT|@FILE", help="How the model should behave.")
    ] = None,
    last: Annotated[
        bool, typer.Option("-c", "--continue", help="Ask within the last conversation; it is kept there.")
    ] = False,
    chat: Annotated[
        str | None,
        typer.Option("--chat", metavar="ID", help="Ask within this one, as `chats list` shows it."),
    ] = None,
    no_save: Annotated[
        bool, typer.Option("--no-save", help="With these two: read the conversation and add nothing to it.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Exactly one JSON object, also on failure.")] = False,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="The daemon's events, one JSON object a line.")
    ] = False,
    no_stream: Annotated[
        bool, typer.Option("--no-stream", help="Print the answer once it is whole.")
    ] = False,
    think: Annotated[
        Literal["show", "hide"],
        typer.Option(
            "--think", metavar="show|hide", help="Thoughts of a reasoning model, on standard error."
        ),
    ] = "hide",
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", metavar="N", help="The longest answer.")
    ] = None,
    temp: Annotated[float | None, typer.Option("--temp", metavar="X", help="0 is greedy, 2 is wild.")] = None,
    top_p: Annotated[float | None, typer.Option("--top-p", metavar="X")] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", metavar="N")] = None,
    min_p: Annotated[float | None, typer.Option("--min-p", metavar="X")] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="The same seed gives the same answer.")
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", metavar="TEXT", help="End the answer before this text; may repeat."),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECS", help="Give up after this time; what arrived is printed."),
    ] = None,
    priority: Annotated[
        Literal["normal", "low"],
        typer.Option("--priority", metavar="normal|low", help="low: after everybody else."),
    ] = "normal",
    stats: Annotated[bool, typer.Option("--stats", help="Counts and speeds, on standard error.")] = False,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="Nothing on standard error but errors.")
    ] = False,
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write there, not to standard output."),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Leave it to the daemon and print the turn's id.")
    ] = False,
    attach: Annotated[
        str | None,
        typer.Option("--attach", metavar="ID", help="Read a detached answer, from its start."),
    ] = None,
    speak_as: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Ask for somebody else (administrators).")
    ] = None,
) -> int:
    """Ask one question; the answer goes to standard output.

    Words are the instruction; files and standard input are the document below it. The answer is written without the
    characters that drive a terminal, also into files and pipes; --json and --jsonl carry it exactly, with those
    characters escaped. Ctrl-C stops and keeps what arrived.

    A question is on its own and kept nowhere, unless -c or --chat names a conversation.

    Examples:

    \b
      homebox ask "Why is the sky blue?"
      homebox ask "Summarise this letter in three lines" < letter.txt
      homebox ask -f notes.md -s "You are brief." "What is still open?"
      homebox ask --continue "And what does that cost?"
      homebox ask --attach "$(homebox ask --detach "Tell me a long story")"
      git diff | homebox ask --json "Write a commit message"
    """
    from homebox.cli.asking import Flags, run

    return run(
        Flags(
            words=words or [],
            files=file or [],
            model=model,
            system=system,
            json=json,
            jsonl=jsonl,
            stream=not no_stream,
            think=think == "show",
            max_tokens=max_tokens,
            temperature=temp,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            seed=seed,
            stop=stop or [],
            timeout_s=timeout,
            priority=priority,
            stats=stats,
            quiet=quiet,
            output=output,
            detach=detach,
            attach=attach,
            speak_as=speak_as,
            chat=chat,
            last=last,
            save=not no_save,
        )
    )
