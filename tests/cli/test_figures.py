"""Does the monitor fit 80 columns, tell the truth about what is unknown, and show whose stream is whose?"""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from homebox.cli import figures
from homebox.wire.events import Blocks, Device, Snapshot, StreamRow

ROWS = (
    StreamRow(
        id="t-91c4d0aa",
        person="anna",
        state="decode",
        model="qwen3-8b",
        klass="normal",
        tokens_in=5012,
        tokens_out=418,
        tok_s=62.0,
        ttft_ms=410.0,
        blocks=340,
        age_s=9.2,
        mine=True,
    ),
    StreamRow(
        id="t-920f1e22",
        person="mia",
        state="waiting",
        model="qwen3-8b",
        klass="normal",
        tokens_in=310,
        tokens_out=0,
        position=1,
        age_s=4.1,
    ),
)
SNAPSHOT = Snapshot(
    at=0.0,
    version="0.1.0",
    uptime_s=273840.0,
    engine="ready",
    model="qwen3-8b",
    max_running=16,
    devices=(
        Device(
            kind="gpu",
            name="RTX 4090",
            util_percent=74.0,
            memory_used_bytes=19541950464,
            memory_total_bytes=25769803776,
            power_w=312.0,
            temperature_c=67.0,
        ),
    ),
    blocks=Blocks(total=1536, used=1204, cached=200, free=132, block_size=16),
    prefix_hit_rate=0.61,
    running=1,
    waiting=1,
    tok_s_out=180.0,
    tok_s_in=1930.0,
    ttft_p50_ms=380.0,
    ttft_p95_ms=1900.0,
    gap_p50_ms=14.0,
    gap_p95_ms=31.0,
    streams=ROWS,
)


def test_the_monitor_at_80_columns() -> None:
    assert figures.screen(SNAPSHOT) == [
        " homebox 0.1.0  qwen3-8b  ready  up 3d04h",
        " GPU RTX 4090  util [###############.....] 74%  mem 18.2/24.0 GiB  312 W  67 C",
        " KV  1,204/1,536 blk [################....] 78%   prefix hit 61%   preempt 0",
        " OUT 180.0 tok/s   IN 1,930.0 tok/s",
        " BATCH 1/16   QUEUE 1 (oldest 4.1 s)   TTFT p50 0.38 p95 1.90   gap p50 14 ms",
        "-" * 80,
        " USER     STATE    MODEL           IN   OUT TOK/S  TTFT KVBLK   AGE  ID",
        "*anna     decode   qwen3-8b      5012   418  62.0  0.41   340   9.2  91c4d0",
        " mia      wait #1  qwen3-8b       310     0     -     -     0   4.1  920f1e",
    ]


def test_an_unknown_figure_is_never_a_zero() -> None:
    bare = Snapshot(
        at=0.0, version="0.1.0", uptime_s=5.0, engine="loading", devices=(Device(kind="cpu", name="cpu"),)
    )
    lines = figures.screen(bare)
    assert lines[:5] == [
        " homebox 0.1.0  no model  loading  up 5s",
        " CPU cpu  util [....................] n/a  mem n/a/n/a GiB",
        " KV  n/a   prefix hit n/a   preempt 0",
        " OUT 0.0 tok/s   IN 0.0 tok/s",
        " BATCH 0/n/a   QUEUE 0   TTFT p50 n/a p95 n/a   gap p50 n/a",
    ]
    assert lines[-1] == " nothing is running"


@given(st.lists(st.text("0123456789abcdef", min_size=8, max_size=8), unique=True, min_size=1, max_size=30))
def test_a_short_id_means_one_stream(tails: list[str]) -> None:
    ids = [f"t-{tail}" for tail in tails]
    short = figures.short_ids(ids)
    assert len(set(short.values())) == len(ids)
    assert all(full.removeprefix("t-").startswith(name) for full, name in short.items())


@given(st.text(), st.integers(0, 10**9), st.floats(0, 1e9))
def test_no_line_is_wider_than_asked_and_none_can_drive_the_terminal(
    name: str, tokens: int, seconds: float
) -> None:
    row = msgspec.structs.replace(ROWS[0], person=name, model=name, tokens_in=tokens, age_s=seconds)
    device = Device(kind="gpu", name=name)
    changed = msgspec.structs.replace(SNAPSHOT, streams=(row,), devices=(device,), engine_detail=name)
    lines = figures.screen(changed, width=80)
    assert all(len(line) <= 80 and "\x1b" not in line and "\n" not in line for line in lines)
