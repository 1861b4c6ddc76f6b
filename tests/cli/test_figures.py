"""Does the monitor fit 80 columns, tell the truth about what is unknown, and show whose stream is whose?"""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from homebox.cli import figures
from homebox.client.lines import width
from homebox.client.table import short_ids
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
            power_limit_w=450.0,
            clock_mhz=2520.0,
            fan_percent=48.0,
            driver="NVIDIA 580.1",
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
    oldest_wait_s=4.1,
    weight_bytes=6120328397,
    kv_bytes=11918534246,
)


def test_the_monitor_at_80_columns() -> None:
    assert figures.screen(SNAPSHOT) == [
        " homebox 0.1.0   qwen3-8b   up 3d04h",
        " GPU RTX 4090   util [###############.....] 74%   312/450 W   67 C   2.5 GHz",
        " VRAM 18.2/24.0 [###############.....] 76%   weights 5.7   kv 11.1   other 1.4",
        " KV   1,204/1,536 blk [################....] 78%   prefix hit 61%   preempt 0",
        " OUT   180 tok/s   IN 1,930 tok/s",
        " BATCH 1/16  QUEUE 1 (oldest 4.1 s)  TTFT p50 0.38 p95 1.90  gap p50 14 ms",
        "-" * 80,
        " USER     STATE    MODEL             IN    OUT  TOK/S  TTFT KV BLK    AGE ID",
        "*anna     decode   qwen3-8b        5012    418   62.0  0.41    340    9.2 91c4d0",
        " mia      wait #1  qwen3-8b         310      0      -     -      0    4.1 920f1e",
    ]


def test_an_unknown_figure_is_never_a_zero() -> None:
    bare = Snapshot(
        at=0.0, version="0.1.0", uptime_s=5.0, engine="loading", devices=(Device(kind="cpu", name="cpu"),)
    )
    assert figures.screen(bare) == [
        " homebox 0.1.0   no model   loading   up 5s",
        " CPU cpu   util [....................] n/a   mem n/a/n/a GiB",
        " MEM  n/a/n/a [....................] n/a   weights n/a   kv n/a   other n/a",
        " KV   n/a   prefix hit n/a   preempt 0",
        " OUT   0.0 tok/s   IN 0.0 tok/s",
        " BATCH 0/n/a   QUEUE 0   TTFT p50 n/a p95 n/a   gap p50 n/a p95 n/a ms",
        "-" * 80,
        " nothing is running",
    ]


def test_where_a_line_is_too_narrow_whole_figures_give_way() -> None:
    assert figures.screen(SNAPSHOT, width=40) == [
        " homebox 0.1.0   qwen3-8b   up 3d04h",
        " GPU  util [####..] 74%  312/450 W  67 C",
        " VRAM 18.2/24.0 [#####.] 76%",
        " KV   1,204/1,536 blk [#####.] 78%",
        " OUT   180 tok/s   IN 1,930 tok/s",
        " BATCH 1/16  QUEUE 1  TTFT p50 0.38",
        "-" * 40,
        " USER      STATE       OUT  TOK/S    AGE",
        "*anna      decode      418   62.0    9.2",
        " mia       wait #1       0      -    4.1",
    ]


def test_memory_that_is_neither_weights_nor_kv_is_only_told_where_it_can_be_known() -> None:
    small = msgspec.structs.replace(SNAPSHOT.devices[0], memory_used_bytes=SNAPSHOT.weight_bytes)
    assert "other n/a" in figures.screen(msgspec.structs.replace(SNAPSHOT, devices=(small,)))[2]


def test_weights_and_kernels_are_told_where_there_is_room() -> None:
    now = msgspec.structs.replace(SNAPSHOT, weights="int4 and int8", kv="int8", attention="native avx2")
    assert figures.screen(now, width=130)[2].endswith("other 1.4   int4 and int8, KV in int8, native avx2")
    assert "other 1.4" in figures.screen(now)[2] and "native" not in figures.screen(now)[2]


def test_what_host_memory_keeps_is_told_where_it_can_keep_anything() -> None:
    assert SNAPSHOT.blocks and "host" not in figures.screen(SNAPSHOT, width=110)[3]
    pool = msgspec.structs.replace(SNAPSHOT.blocks, host_total=6000, host_used=1234)
    now = msgspec.structs.replace(SNAPSHOT, blocks=pool)
    assert figures.screen(now, width=110)[3].endswith("preempt 0   host 1,234/6,000")


def test_of_several_gpus_each_has_its_line() -> None:
    two = msgspec.structs.replace(SNAPSHOT, devices=SNAPSHOT.devices * 2)
    lines = figures.screen(two, width=100)
    assert [line[:5] for line in lines[1:3]] == [" GPU0", " GPU1"] and "mem 18.2/24.0 GiB" in lines[2]


@given(st.lists(st.text("0123456789abcdef", min_size=8, max_size=8), unique=True, min_size=1, max_size=30))
def test_a_short_id_means_one_stream(tails: list[str]) -> None:
    ids = [f"t-{tail}" for tail in tails]
    short = short_ids(ids)
    assert len(set(short.values())) == len(ids)
    assert all(full.removeprefix("t-").startswith(name) for full, name in short.items())


@given(st.text(), st.integers(0, 10**9), st.floats(0, 1e9), st.integers(40, 160))
def test_no_line_is_wider_than_asked_and_none_can_drive_the_terminal(
    name: str, tokens: int, seconds: float, cells: int
) -> None:
    row = msgspec.structs.replace(ROWS[0], person=name, model=name, tokens_in=tokens, age_s=seconds)
    device = Device(kind="gpu", name=name)
    changed = msgspec.structs.replace(SNAPSHOT, streams=(row,), devices=(device,), engine_detail=name)
    for line in figures.screen(changed, width=cells):
        assert width(line) <= cells and "\x1b" not in line and "\n" not in line
        assert cell_len(line) <= cells + zero_width(line)


def zero_width(line: str) -> int:
    """Where the two tables of widths disagree about a character, the screen cuts the line."""
    return sum(abs(cell_len(char) - width(char)) for char in line)
