"""Which curves does a report have to show? For the plot of a terminal and for the picture alike."""

from __future__ import annotations

from dataclasses import dataclass

from homebox.bench.results import TITLES, WAYS, Figures, Report, Way

THROUGHPUT = "output tokens a second, all streams"
LATENCY = "ms between two pieces of text, p95"
FIRST = "ms to the first text, p95"


@dataclass(frozen=True)
class Curve:
    """`points`: streams, and the figure there."""

    way: Way
    points: tuple[tuple[int, float], ...]

    @property
    def title(self) -> str:
        return TITLES[self.way]


@dataclass(frozen=True)
class Plot:
    title: str
    curves: tuple[Curve, ...]

    @property
    def streams(self) -> list[int]:
        return sorted({at for curve in self.curves for at, _ in curve.points})

    @property
    def highest(self) -> float:
        return max((value for curve in self.curves for _, value in curve.points), default=0.0)


def plots(report: Report) -> list[Plot]:
    """Throughput, and beside it what each person notices."""
    return [_plot(report, THROUGHPUT), _plot(report, LATENCY), _plot(report, FIRST)]


def _plot(report: Report, title: str) -> Plot:
    counts = sorted({row.streams for row in report.rows})
    curves = []
    for way in WAYS:
        points = [
            (row.streams, value)
            for row in report.rows
            if row.way == way and (value := _value(row.median, title)) is not None
        ]
        if way == "one" and points:  # however many wait, it goes on as fast: a line across
            points = [(count, points[0][1]) for count in counts]
        if way == "one" and title == FIRST:  # but they do wait, and that was not measured
            points = []
        if points:
            curves.append(Curve(way, tuple(points)))
    return Plot(title, tuple(curves))


def _value(found: Figures, title: str) -> float | None:
    return {THROUGHPUT: found.tok_s, LATENCY: found.gap_p95_ms, FIRST: found.ttft_p95_ms}[title]
