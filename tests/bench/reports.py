"""A report with round figures, as one that was measured."""

from __future__ import annotations

from homebox.bench.results import Figures, Report, Row, Used, Way


def figures(tok_s: float, running: float, gap_ms: float, first_ms: float) -> Figures:
    used = Used("cpu", 93.0, 99.0, running, 0.0, gap_ms, 12 * running, int(14 * running), 2912)
    return Figures(tok_s, first_ms / 2, first_ms, gap_ms / 2, gap_ms, 10.0, 8, 800, 800, 100.0, used)


def row(way: Way, streams: int, tok_s: float) -> Row:
    found = figures(tok_s, streams, 1000 * streams / tok_s, 40.0 + 20 * streams)
    return Row(way, streams, found, [found])


QUALITY = {
    "reference": "the same checkpoint as fp32",
    "goal": {"agreement": 0.97, "kl_mean": 0.01},
    "rows": [
        {
            "read": "answer", "batch": 16, "positions": 4992, "agreement": 0.9812, "kl_mean": 0.0023,
            "kl_p99": 0.0211, "perplexity": 12.5, "perplexity_reference": 12.25,
        }
    ],
}  # fmt: skip


def report(**changes: object) -> Report:
    fields: dict[str, object] = {
        "homebox": "0.1.0",
        "at": 1.0,
        "machine": {"cpu": "A <fast> CPU", "cores": 2, "memory_bytes": 24 << 30},
        "server": {
            "name": "homebox", "version": "0.1.0", "place": "/run/api.sock", "model": "tiny", "quantisation": "Q4_1",
            "device": "cpu (2 threads)", "engine": {"attention": "native amx", "weights": "int4 and int8"},
        },
        "load": {
            "prompt_tokens": 100, "max_tokens": 128, "lengths": "mixed", "arrivals": "closed", "rounds": 3,
        },
        "rows": [
            row("one", 1, 96.0), row("continuous", 1, 95.0), row("static", 8, 200.0), row("continuous", 8, 400.0),
        ],
        "notes": ["2 other answers were under way"],
        "quality": QUALITY,
    }  # fmt: skip
    return Report(**(fields | changes))  # type: ignore[arg-type]
