"""Do table, plot and picture show what was measured, and nothing that was not?"""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from homebox.bench import chart, picture, results, table
from homebox.bench.series import FIRST, THROUGHPUT, plots
from tests.bench.reports import QUALITY, figures, report, row

SVG = "{http://www.w3.org/2000/svg}"


def test_the_table_has_a_line_a_phase_with_its_figures_below_their_titles() -> None:
    lines = table.lines(report())
    head = next(line for line in lines if "TTFT p50" in line)
    static = next(line for line in lines if line.startswith("static batches"))
    assert static.split() == [
        "static",
        "batches",
        "8",
        "200.0",
        "25.0",
        "100",
        "200",
        "20.0",
        "40.0",
        "93%",
        "8.0",
    ]
    for title, value in (("tok/s", "200.0"), ("gap p50", "20.0"), ("busy", "93%"), ("batch", "8.0")):
        assert head.index(title) + len(title) == static.index(value) + len(value), title
    assert sum(line.startswith("continuous") for line in lines) == 2
    assert "note: 2 other answers were under way" in lines and "up to 128 out" in lines[1]


def test_it_says_of_which_types_file_and_weights_were_and_which_kernels_ran() -> None:
    how = "tiny, Q4_1 as int4 and int8, cpu (2 threads), native amx"
    assert table.lines(report())[0] == f"homebox 0.1.0 at /run/api.sock: {how}"
    assert "Q4_1 as int4 and int8, cpu (2 threads)" in picture.svg(report())
    assert report(server={"model": "m"}).quantisation == ""


def test_a_figure_that_is_not_known_is_not_shown_as_zero() -> None:
    unknown = figures(10.0, 1, 20.0, 40.0)
    unknown = results.msgspec.structs.replace(unknown, gap_p95_ms=None, used=results.Used())
    lines = table.lines(report(rows=[results.Row("one", 1, unknown, [unknown])], quality=None))
    assert next(line for line in lines if line.startswith("one at")).split()[-3:] == ["n/a"] * 3
    assert not any("quality" in line for line in lines)


@pytest.mark.parametrize(("kl", "verdict"), [(0.0023, "kept"), (0.02, "MISSED")])
def test_the_quality_is_judged_by_its_goal(kl: float, verdict: str) -> None:
    quality = QUALITY | {"rows": [QUALITY["rows"][0] | {"kl_mean": kl}]}  # type: ignore[index]
    lines = table.lines(report(quality=quality))
    assert next(line for line in lines if line.startswith("quality")).endswith(verdict)
    assert lines[-1].split()[:5] == ["answers", "16", "4,992", "98.12%", f"{kl:.5f}"]


def test_one_at_a_time_is_a_line_across_for_speed_and_none_for_a_wait_that_was_not_measured() -> None:
    throughput, _, first = plots(report())
    assert throughput.title == THROUGHPUT and first.title == FIRST
    (one,) = [curve for curve in throughput.curves if curve.way == "one"]
    assert one.points == ((1, 96.0), (8, 96.0))
    assert [curve.way for curve in first.curves] == ["static", "continuous"]


@pytest.mark.parametrize("cells", [40, 60, 80, 200])
@pytest.mark.parametrize("ascii", [True, False])
def test_the_plot_fits_its_terminal(cells: int, ascii: bool) -> None:
    lines = chart.lines(report(), cells=cells, ascii=ascii)
    drawn = lines[:-1]  # and the key, which a terminal breaks
    assert max(map(len, drawn)) <= cells and (not ascii or "\n".join(lines).isascii())
    assert all(mark in "\n".join(drawn) for mark in ("*o" if ascii else "●○"))


def test_higher_figures_stand_higher_in_the_plot() -> None:
    rows = [row("continuous", 1, 100.0), row("continuous", 2, 200.0), row("continuous", 4, 400.0)]
    lines = chart.lines(report(rows=rows), cells=50, ascii=True)[: chart.ROWS + 1]
    height = {line.index("*"): number for number, line in enumerate(lines) if "*" in line}
    assert [height[column] for column in sorted(height)] == sorted(height.values(), reverse=True)
    assert len(height) == 3


def test_a_report_without_rows_draws_nothing() -> None:
    assert chart.lines(report(rows=[]), cells=80, ascii=True) == []


def test_the_picture_is_xml_with_a_curve_for_each_way_and_stays_within_its_frame() -> None:
    root = ElementTree.fromstring(picture.svg(report()))
    curves = root.findall(f"{SVG}polyline")
    assert len(curves) == 3 + 3 + 2
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for curve in curves:
        points = [tuple(map(float, point.split(","))) for point in curve.attrib["points"].split()]
        assert all(0 < x < width and 0 < y < height for x, y in points)
    words = [text.text or "" for text in root.findall(f"{SVG}text")]
    assert any("A <fast> CPU" in text for text in words) and "static batches" in words


def test_the_report_as_json_is_versioned_and_whole() -> None:
    told = json.loads(results.encode(report()))
    assert told["schema"] == results.SCHEMA
    assert [(row["way"], row["streams"]) for row in told["rows"]][-1] == ("continuous", 8)
    assert (
        set(told["rows"][0]["median"])
        == set(told["rows"][0]["rounds"][0])
        == set(results.Figures.__struct_fields__)
    )
