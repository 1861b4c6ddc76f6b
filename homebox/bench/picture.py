"""How does a report look as a picture? SVG text, by hand: three plots in a row, readable on white and without colours."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from homebox.bench.results import Report, Way
from homebox.bench.series import Curve, Plot, plots
from homebox.client.lines import nice_top

_PLOT_W, _PLOT_H = 300, 230
_LEFT, _TOP, _GAP = 64, 104, 84
_WIDTH = _LEFT + 3 * _PLOT_W + 2 * _GAP + 24
_HEIGHT = _TOP + _PLOT_H + 84
_TICKS = 4
_COLOURS: dict[Way, str] = {"one": "#767676", "static": "#b35900", "continuous": "#0b57a4"}
_DASHES: dict[Way, str] = {"one": "2 4", "static": "7 4", "continuous": ""}


def svg(report: Report) -> str:
    """One document."""
    return "\n".join(_parts(report))


def _parts(report: Report) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#1a1a1a">'
    )
    yield f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>'
    title, conditions = _words(report)
    yield _text(24, 30, title, size=17, weight="bold")
    yield _text(24, 52, conditions, colour="#555555")
    drawn = plots(report)
    for number, plot in enumerate(drawn):
        yield from _plot(plot, _LEFT + number * (_PLOT_W + _GAP), _TOP)
    yield from _legend(drawn[0])
    yield "</svg>"


def _words(report: Report) -> tuple[str, str]:
    server, load = report.server, report.load
    title = " ".join(
        str(part) for part in (server["name"], server.get("version"), "-", server["model"]) if part
    )
    parts = [
        report.quantisation,
        server.get("device"),
        report.machine["cpu"],
        f"{load['prompt_tokens']} tokens in, {load['max_tokens']} out ({load['lengths']}, {load['arrivals']})",
        f"medians of {load['rounds']} rounds",
    ]
    return title, ", ".join(str(part) for part in parts if part)


def _plot(plot: Plot, left: float, top: float) -> Iterator[str]:
    counts, highest = plot.streams, nice_top(plot.highest) if plot.highest > 0 else 1.0
    bottom = top + _PLOT_H
    across = {count: left + (i + 0.5) * _PLOT_W / len(counts) for i, count in enumerate(counts)}
    yield _text(left, top - 14, plot.title, weight="bold")
    for tick in range(_TICKS + 1):
        y = bottom - tick * _PLOT_H / _TICKS
        yield _line(left, y, left + _PLOT_W, y, "#dddddd" if tick else "#1a1a1a")
        yield _text(left - 8, y + 4, f"{highest * tick / _TICKS:,.4g}", anchor="end")
    for count, x in across.items():
        yield _line(x, bottom, x, bottom + 5, "#1a1a1a")
        yield _text(x, bottom + 19, str(count), anchor="middle")
    yield _text(left + _PLOT_W / 2, bottom + 37, "streams", anchor="middle", colour="#555555")
    for curve in plot.curves:
        yield from _curve(
            curve, [(across[count], bottom - value / highest * _PLOT_H) for count, value in curve.points]
        )


def _curve(curve: Curve, points: list[tuple[float, float]]) -> Iterator[str]:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    colour = _COLOURS[curve.way]
    yield (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.2" '
        f'stroke-dasharray="{_DASHES[curve.way]}"/>'
    )
    if curve.way != "one":  # which is measured once, not at each of them
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.6" fill="{colour}"/>' for x, y in points)


def _legend(plot: Plot) -> Iterator[str]:
    x, y = float(_LEFT), _HEIGHT - 20
    for curve in plot.curves:
        yield _line(x, y - 4, x + 34, y - 4, _COLOURS[curve.way], 2.2, _DASHES[curve.way])
        if curve.way != "one":
            yield f'<circle cx="{x + 17:.1f}" cy="{y - 4:.1f}" r="3.6" fill="{_COLOURS[curve.way]}"/>'
        yield _text(x + 42, y, curve.title)
        x += 190


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1, dashes: str = "") -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
        f'stroke-width="{width:g}"{dashed}/>'
    )


def _text(
    x: float, y: float, text: str, *, anchor: str = "", size: int = 0, weight: str = "", colour: str = ""
) -> str:
    more = {"text-anchor": anchor, "font-size": size, "font-weight": weight, "fill": colour}
    kept = "".join(f' {name}="{value}"' for name, value in more.items() if value)
    return f'<text x="{x:.1f}" y="{y:.1f}"{kept}>{escape(text)}</text>'
