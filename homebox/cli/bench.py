"""`homebox bench`: how many people can this box serve at once, and how fast is it for each?

Reads the command line, shows how far it is on standard error, and writes what was found as a table and a plot, as JSON or
as a picture. What is measured is in `homebox.bench`, and imported only here.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from homebox.cli import columns, terminal
from homebox.client.sanitise import clean, safe_json
from homebox.errors import Unavailable, UsageError

if TYPE_CHECKING:
    from homebox.bench.client import Target
    from homebox.bench.load import Load
    from homebox.bench.results import Report, Way

MOST_STREAMS = 1024
_BAR = 24


def bench(
    streams: Annotated[
        str,
        typer.Option("--streams", metavar="N,N,...", help="How many answers at once, one after the other."),
    ] = "1,2,4,8,16,32",
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", help="Each visits all phases; medians are shown.")
    ] = 3,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", metavar="N", help="Length of an answer, or the longest if mixed.")
    ] = 128,
    prompt_tokens: Annotated[
        int, typer.Option("--prompt-tokens", metavar="N", help="Length of a question, about.")
    ] = 100,
    lengths: Annotated[
        Literal["fixed", "mixed"],
        typer.Option("--lengths", help="Of the answers: all the same, or 16 to --max-tokens."),
    ] = "fixed",
    arrivals: Annotated[
        Literal["closed", "bursts"],
        typer.Option("--arrivals", help="Each asks again when answered, or half of them at once."),
    ] = "closed",
    ways: Annotated[
        str, typer.Option("--ways", metavar="WAY,...", help="Which of one, static, continuous.")
    ] = "one,static,continuous",
    model: Annotated[
        str | None, typer.Option("--model", "-m", metavar="NAME", help="The model, where there are several.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="Another server of OpenAI's dialect, instead of the box."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="The key for --url.")] = None,
    quality: Annotated[
        bool, typer.Option("--quality", help="Also how near the answers are to the model as fp32.")
    ] = False,
    json: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write the report as JSON; - is standard output."),
    ] = None,
    svg: Annotated[
        str | None, typer.Option("--svg", metavar="FILE", help="Draw the report as a picture.")
    ] = None,
) -> int:
    """Measure how many the box can serve at once, and how fast it is for each.

    The same answers one at a time, in static batches (so many at once, the next when all are done) and continuously (the
    next as soon as one is done): tokens per second in all, and for each person the time to the first text and between
    two pieces of it. It needs some minutes, and the box to itself.

    Examples:

    \b
      homebox bench
      homebox bench --streams 1,8 --rounds 1 --lengths mixed
      homebox bench --json report.json --svg report.svg
      homebox bench --url http://localhost:8000 --json other.json
    """
    from homebox.bench.load import Load

    load = Load(
        streams=_counts(streams),
        rounds=_within("--rounds", rounds, 1, 1000),
        max_tokens=_within("--max-tokens", max_tokens, 1, 1_000_000),
        prompt_tokens=_within("--prompt-tokens", prompt_tokens, 1, 1_000_000),
        lengths=lengths,
        arrivals=arrivals,
        ways=_ways(ways),
    )
    if key and not url:
        raise UsageError("--key goes with --url", hint="The box's own key is HOMEBOX_KEY.")
    if quality and url:
        raise UsageError("--quality is of the box's own engine", hint="Leave --url out.")
    terminal.prepare_stdout()
    report = _measured(_target(url, key), load, model, quality)
    _put(report, json, svg)
    return 0


def _measured(target: Target, load: Load, model: str | None, quality: bool) -> Report:
    from homebox import config
    from homebox.bench import quality_process
    from homebox.bench.run import bench as measured
    from homebox.library.store import Library

    progress = _Progress()
    try:
        report = asyncio.run(measured(target, load, model, progress))
        if quality:
            library = Library(config.state_dir(config.load().settings))
            found = quality_process.measured(library.path(report.server["model"]), progress)
            report = msgspec.structs.replace(report, quality=found)
    finally:
        progress.clear()
    return report


def _put(report: Report, json: str | None, svg: str | None) -> None:
    from homebox.bench import chart, picture, results, table

    if json:
        _write(json, results.encode(report))
    if svg:
        _write(svg, picture.svg(report))
    if "-" not in (json, svg):
        drawn = chart.lines(report, cells=columns.room() or 80, ascii=terminal.only_ascii())
        sys.stdout.write(clean("\n".join([*table.lines(report), "", *drawn])) + "\n")


def _target(url: str | None, key: str | None) -> Target:
    """The server that is meant; our own is asked first whether it is there, since it says best why not."""
    from homebox.bench.client import Target, base
    from homebox.cli.status import PAUSED, READY, UNLOADED, health, line
    from homebox.client import connection, settings

    if url:
        return Target(base(url), key=key)
    daemon = connection.from_environment()
    found = health(daemon)
    state = found.get("state")
    if state not in (READY, UNLOADED):
        hint = "homebox resume" if state in PAUSED else "homebox status --wait 120 && homebox bench"
        raise Unavailable(f"the box is not ready: {line(found)}", hint=f"Then: {hint}")
    reach = settings.load()
    if reach.url:
        return Target(base(reach.url), key=reach.key, authority=reach.ca)
    return Target(socket=daemon.socket_path)


def _write(file: str, text: str) -> None:
    if file == "-":
        sys.stdout.write(safe_json(text) + "\n")
        return
    try:
        Path(file).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror or error}") from None


def _counts(text: str) -> tuple[int, ...]:
    try:
        found = sorted({int(each) for each in text.split(",")})
    except ValueError:
        found = [0]
    if not all(1 <= each <= MOST_STREAMS for each in found):
        raise UsageError(
            f"--streams {text!r} is not a list of numbers from 1 to {MOST_STREAMS}",
            hint="Write it like 1,4,16.",
        )
    return tuple(found)


def _ways(text: str) -> tuple[Way, ...]:
    from homebox.bench.results import WAYS

    wanted = text.split(",")
    if unknown := [each for each in wanted if each not in WAYS]:
        raise UsageError(f"--ways {unknown[0]!r} is none of {', '.join(WAYS)}")
    return tuple(way for way in WAYS if way in wanted)


def _within(name: str, value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise UsageError(f"{name} {value} is not between {least} and {most}")
    return value


class _Progress:
    """A bar on a terminal, one line a phase elsewhere."""

    def __init__(self) -> None:
        self._line = terminal.StatusLine()
        self._bar = self._line.on_terminal and not terminal.is_dumb()

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._bar and total:
            filled = _BAR * done // total
            what = f"[{'#' * filled}{'.' * (_BAR - filled)}] {100 * done // total}%  {what}"
        self._line.show(what)

    def clear(self) -> None:
        self._line.clear()
