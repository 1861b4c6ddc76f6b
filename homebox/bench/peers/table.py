"""What did all of them make of it? One table from the rounds of every engine, as Markdown.

A figure is the median of the rounds' own. The last line of each block says by how much homebox is ahead of the best peer
in that column: more tokens, or less time, is above 1. An engine that could not be measured has its reason below.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

OURS = "homebox"
# Field of the client's report, what it is called, and whether more is better.
MEASURES = (
    ("tok_s", "output tok/s", True),
    ("ttft_p50_ms", "TTFT p50, ms", False),
    ("ttft_p95_ms", "TTFT p95, ms", False),
    ("gap_p50_ms", "inter-token p50, ms", False),
    ("gap_p95_ms", "inter-token p95, ms", False),
)
VICTIMS = (
    ("p95 gap of a running stream, engine steps, ms", "alone_engine_ms", "meanwhile_engine_ms"),
    ("p95 gap of a running stream, client, ms", "alone_client_ms", "meanwhile_client_ms"),
    ("TTFT of the question beside one document, s", "question_alone_s", "question_s"),
    ("TTFT of the question behind three documents, s", "behind_alone_s", "behind_question_s"),
    ("TTFT of the document, s", "document_alone_s", "document_s"),
)
NONE = "-"


def markdown(report: dict[str, Any]) -> str:
    """`report` is what `run.py` writes as JSON."""
    streams: list[int] = report["streams"]
    engines: list[dict[str, Any]] = report["engines"]
    machine = report["machine"]
    lines = [
        "# homebox and its peers, one client, one run",
        "",
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}, Python "
        f"{machine['python']}; load of the machine at the start {machine['load_before']}. {report['at']}.",
        f"{report['model']}, about {report['prompt_tokens']} tokens in, {report['max_tokens']} out, temperature 0, end "
        f"tokens ignored, closed loop. The engines take turns; medians of the rounds: {report['rounds']}.",
        "",
        *_speed(engines, streams),
        "",
        *_in_process(engines, streams),
        *_victims(engines),
        *_notes(engines),
    ]
    return "\n".join(lines).rstrip() + "\n"


def value(engine: dict[str, Any], streams: int, field: str) -> float | None:
    """The median over the rounds that have it."""
    return _median(each["figures"].get(str(streams), {}).get(field) for each in engine["rounds"])


def ratio(engines: Sequence[dict[str, Any]], streams: int, field: str, more: bool) -> float | None:
    """Ours to the best of the others', or theirs to ours where less is better: above 1 we are ahead."""
    ours = [value(each, streams, field) for each in engines if each["name"] == OURS]
    known = [value(each, streams, field) for each in engines if each["name"] != OURS]
    others = [found for found in known if found is not None]
    if not ours or not ours[0] or not others:
        return None
    return ours[0] / max(others) if more else min(others) / ours[0]


def _speed(engines: Sequence[dict[str, Any]], streams: Sequence[int]) -> list[str]:
    lines = _head("", "engine", *(_count(each) for each in streams))
    for field, name, more in MEASURES:
        for engine in engines:
            figures = [value(engine, each, field) for each in streams]
            if any(each is not None for each in figures):
                lines.append(_row(name, engine["name"], *(_number(each) for each in figures)))
                name = ""
        ratios = [ratio(engines, each, field, more) for each in streams]
        if any(each is not None for each in ratios):
            lines.append(_row("", "**homebox to the best peer**", *(_bold(each) for each in ratios)))
    return lines


def _in_process(engines: Sequence[dict[str, Any]], streams: Sequence[int]) -> list[str]:
    """What HTTP and our wrapper cost a peer that is only a library."""
    lines: list[str] = []
    for engine in engines:
        inside = {n: _median(each.get(str(n)) for each in engine.get("in_process", [])) for n in streams}
        if not any(inside.values()):
            continue
        over = {n: value(engine, n, "tok_s") for n in streams}
        shares = [(o / i - 1) * 100 if (o := over[n]) and (i := inside[n]) else None for n in streams]
        lines += [
            f"{engine['name']} in process, without a server, output tok/s:",
            "",
            *_head("", *(_count(each) for each in streams)),
            _row("in process", *(_number(inside[n]) for n in streams)),
            _row("over HTTP", *(_number(over[n]) for n in streams)),
            _row("difference", *(NONE if each is None else f"{each:+.0f}%" for each in shares)),
            "",
        ]
    return lines


def _victims(engines: Sequence[dict[str, Any]]) -> list[str]:
    known = [each for each in engines if each.get("victims")]
    if not known:
        return []
    lines = [
        "## While others read long documents",
        "",
        "Eight running streams, then a prompt of 6,000 tokens, half a second later a question of 20; and, with nothing "
        "running, a question half a second behind three prompts of 4,000. Alone > meanwhile (ratio).",
        "",
        *_head("", *(each["name"] for each in known)),
    ]
    for name, alone, meanwhile in VICTIMS:
        cells = []
        for engine in known:
            before = _median(each[alone] for each in engine["victims"])
            after = _median(each[meanwhile] for each in engine["victims"])
            both = before is not None and after is not None
            cells.append(f"{_number(before)} > {_number(after)} ({after / before:.1f})" if both else NONE)  # type: ignore[operator]
        lines.append(_row(name, *cells))
    last = [_number(_median(each["behind_last_s"] for each in engine["victims"])) for engine in known]
    lines.append(_row("the last of the three documents, s", *last))
    return [*lines, ""]


def _notes(engines: Sequence[dict[str, Any]]) -> list[str]:
    lines = ["## What was measured", "", *_head("engine", "version", "weights", "settings")]
    lines += [_row(e["name"], e["version"] or NONE, e["weights"], e["settings"]) for e in engines]
    failures = [f"- {e['name']}: {why}" for e in engines for why in e["failures"]]
    notes = [f"- {e['name']}: {note}" for e in engines for note in e["notes"]]
    for title, found in (("Not measured, and why:", failures), ("Notes:", notes)):
        if found:
            lines += ["", title, "", *found]
    return lines


# ---- cells


def _median(values: Iterable[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return statistics.median(known) if known else None


def _number(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _bold(value: float | None) -> str:
    return NONE if value is None else f"**{value:.2f}**"


def _count(streams: int) -> str:
    return "1 stream" if streams == 1 else str(streams)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |"


def _head(*cells: str) -> list[str]:
    return [_row(*cells), "|" + "---|" * len(cells)]
