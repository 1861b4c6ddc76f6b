"""How does a report look as a table of plain text? Pure."""

from __future__ import annotations

from collections.abc import Sequence

from homebox.bench.results import TITLES, Report, Row

_HEAD = ("", "streams", "tok/s", "each", "TTFT p50", "p95", "gap p50", "p95", "busy", "batch")
_MEANING = (
    "tok/s: output tokens of all; each: of one stream; TTFT: ms to the first text; gap: ms between two pieces of an answer;",
    "busy: the engine's share of the device; batch: answers in it, on average. One at a time: TTFT is without the wait for",
    "those before.",
)


def lines(report: Report) -> list[str]:
    """Conditions, figures, notes."""
    rows = [_HEAD, *(_row(row) for row in report.rows)]
    notes = [f"note: {note}" for note in report.notes]
    return [*_conditions(report), "", *_columns(rows), *_MEANING, *notes, *_quality(report)]


def _conditions(report: Report) -> list[str]:
    server, load, machine = report.server, report.load, report.machine
    engine = server.get("engine") or {}
    name = " ".join(str(part) for part in (server["name"], server.get("version")) if part)
    how = [server["model"], report.quantisation, server.get("device"), engine.get("attention")]
    return [
        f"{name or 'a server'} at {server['place']}: {', '.join(str(part) for part in how if part)}",
        f"{load['prompt_tokens']} tokens in, {'up to ' if load['lengths'] == 'mixed' else ''}{load['max_tokens']} out, "
        f"temperature 0, {'bursts' if load['arrivals'] == 'bursts' else 'closed loop'}; "
        f"medians of {load['rounds']} rounds, alternating",
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB",
    ]


def _quality(report: Report) -> list[str]:
    if report.quality is None:
        return []
    goal = report.quality["goal"]
    rows = [("", "batch", "tokens", "top-1", "mean KL", "KL p99", "perplexity", "of fp32")]
    for row in report.quality["rows"]:
        figures = (f"{row['kl_mean']:.5f}", f"{row['kl_p99']:.5f}", f"{row['perplexity']:.3f}")
        agreement, of_fp32 = f"{100 * row['agreement']:.2f}%", f"{row['perplexity_reference']:.3f}"
        rows.append(
            (f"{row['read']}s", str(row["batch"]), f"{row['positions']:,}", agreement, *figures, of_fp32)
        )
    kept = all(
        row["agreement"] >= goal["agreement"] and row["kl_mean"] <= goal["kl_mean"]
        for row in report.quality["rows"]
    )
    return [
        "",
        f"quality, against {report.quality['reference']}; at least {100 * goal['agreement']:g}% top-1 and at most "
        f"{goal['kl_mean']:g} mean KL: {'kept' if kept else 'MISSED'}",
        *_columns(rows),
    ]


def _row(row: Row) -> tuple[str, ...]:
    found, used = row.median, row.median.used
    busy = used.device_percent if used.device_percent is not None else used.machine_cpu_percent
    return (
        TITLES[row.way],
        str(row.streams),
        f"{found.tok_s:.1f}",
        f"{found.tok_s / row.streams:.1f}",
        *(_ms(each) for each in (found.ttft_p50_ms, found.ttft_p95_ms, found.gap_p50_ms, found.gap_p95_ms)),
        "n/a" if busy is None else f"{busy:.0f}%",
        "n/a" if used.running is None else f"{used.running:.1f}",
    )


def _ms(value: float | None) -> str:
    if value is None:
        return "n/a"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """The first to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:{'>' if place else '<'}{widths[place]}}" for place, cell in enumerate(row)).rstrip()
        for row in rows
    ]
