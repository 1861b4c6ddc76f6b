"""The monitor, the metrics and the operating system say the same of one moment, in which the engine stands still."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.numpy import save_file

from homebox.daemon.engine_process import WORKER
from homebox.daemon.metrics import Metrics
from homebox.daemon.monitor import ENDED_S, Monitor
from homebox.daemon.patience import Patience
from homebox.wire import events, frames

from .box import Box, running, until
from .test_metrics import Scraped, scrape
from .tiny_model import CONTEXT, build

CALM = Patience(stall_s=600.0)


def frozen(box: Box, pid: int) -> tuple[events.Snapshot, Scraped]:
    """Both views of the box once nothing moves in it any more."""
    until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)

    def counts() -> list[tuple[str, int]]:
        return [(row.id, row.tokens_out) for row in box.snapshot().streams]

    until(lambda: counts() == counts())
    return box.snapshot(), scrape(box.http)


def small_model(folder: Path) -> Path:
    """The tiny tokeniser with weights that a real engine computes with: two layers, 64 wide, random."""
    model = build(folder, "small")
    vocabulary = json.loads((model / "manifest.json").read_text())["vocab_size"]
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocabulary, "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": True,
    }  # fmt: skip
    (model / "config.json").write_text(json.dumps(config))
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens": (vocabulary, 64), "norm": (64,)}
    for layer in range(2):
        each = {"q_proj": (64, 64), "k_proj": (32, 64), "v_proj": (32, 64), "o_proj": (64, 64)}
        shapes |= {f"layers.{layer}.self_attn.{name}": shape for name, shape in each.items()}
        each = {"gate_proj": (96, 64), "up_proj": (96, 64), "down_proj": (64, 96)}
        shapes |= {f"layers.{layer}.mlp.{name}": shape for name, shape in each.items()}
        shapes |= {f"layers.{layer}.{name}_layernorm": (64,) for name in ("input", "post_attention")}
    rng = np.random.default_rng(5)
    tensors = {
        f"model.{name}.weight": rng.standard_normal(shape, dtype=np.float32) * 0.2
        for name, shape in shapes.items()
    }
    save_file(tensors, model / "model.safetensors")
    return model


def test_in_a_frozen_moment_all_three_agree(tmp_path: Path) -> None:
    with running(
        small_model(tmp_path / "model"), tmp_path / "box", command=WORKER, patience=CALM, max_running=3, threads=1,
        kv_memory="800KiB",
    ) as box:  # fmt: skip
        pid = box.server.house.supervisor.pid
        assert pid is not None
        people = {name: box.client(**{"X-Homebox-As": name}) for name in ("anna", "dad")}
        for _ in range(2):  # the second finds the first's prefix
            said = box.chat(
                "tell me a story about a small boat " * 3, people["anna"], model="small", max_tokens=2
            )
            said.raise_for_status()
        for name in ("anna", "anna", "dad", "dad", "anna", "dad"):
            box.detach(f"the cat sat on the table of {name}", people[name], max_tokens=900, ignore_eos=True)
        until(lambda: (now := box.snapshot()).preemptions and now.running > 1 and now.waiting, within_s=60)
        os.kill(pid, signal.SIGSTOP)
        try:
            now, seen = frozen(box, pid)
            compare(now, seen)
            assert now.preemptions > 0 and now.running > 1 and now.waiting > 0
            # The operating system: its memory, and that it computes nothing.
            resident = psutil.Process(pid).memory_info().rss
            until(lambda: box.snapshot().devices[0].memory_used_bytes == resident)
            until(lambda: box.snapshot().devices[0].util_percent == 0.0)
            assert scrape(box.http)("engine_memory_bytes") == resident
            assert scrape(box.http)("engine_cpu_ratio") == 0.0
        finally:
            os.kill(pid, signal.SIGCONT)
        for row in now.streams:
            box.http.delete(f"/homebox/turns/{row.id}")
        until(box.idle, within_s=60)
        idle, seen = box.snapshot(), scrape(box.http)
        compare(idle, seen)
        assert idle.blocks and idle.blocks.people == () and idle.blocks.shared == 0 and idle.blocks.cached > 0
        for client in people.values():
            client.close()


def compare(now: events.Snapshot, seen: Scraped) -> None:
    """What both tell, exactly."""
    assert now.blocks is not None
    assert (seen("requests_running"), seen("requests_waiting")) == (now.running, now.waiting)
    assert now.running + now.waiting == len(now.streams)
    for state in ("used", "cached", "free"):
        assert seen("blocks", state=state) == getattr(now.blocks, state)
    assert now.blocks.used + now.blocks.cached + now.blocks.free == now.blocks.total
    held = sum(each.blocks for each in now.blocks.people) + now.blocks.shared
    assert held <= now.blocks.total and (now.blocks.people or not now.running)
    assert seen("preemptions_total") == now.preemptions
    hits, queries = seen("prefix_hit_tokens_total"), seen("prefix_query_tokens_total")
    assert hits and queries and now.prefix_hit_rate == hits / queries > 0
    for person in ("anna", "dad"):
        rows = [row for row in (*now.streams, *now.ended) if row.person == person]
        assert seen("generated_tokens_total", person=person) == sum(row.tokens_out for row in rows)
    assert seen.total("requests_total") == len(now.ended)
    prompts = seen.total("prompt_tokens_total"), seen.total("cached_prompt_tokens_total")
    began = [row for row in now.ended if row.tokens_out]
    assert prompts == (sum(row.tokens_in for row in began), sum(row.cached for row in began))
    assert now.oldest_wait_s is None or now.oldest_wait_s > 0


def test_what_engines_counted_before_the_one_that_runs_is_told_by_both() -> None:
    monitor, metrics = Monitor(), Metrics()

    def heard(hits: int, queries: int, preemptions: int) -> None:
        pool = frames.PoolState(10, 0, 0, 10, hits, queries, preemptions)
        step = frames.StepDone(0, [], pool, 0, 0)
        monitor.frame(step)
        metrics.frame(step)

    heard(6, 12, 1)
    monitor.frame(frames.Loading("weights"))
    metrics.frame(frames.Loading("weights"))
    heard(1, 8, 2)
    assert monitor._totals.totals == metrics._pool.totals == (7, 20, 3, 0)


def test_what_has_ended_is_told_for_half_a_minute_with_its_end(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = {
        "stop": box.chat("[[say=hello]]", max_tokens=9),
        "length": box.chat("[[forever]]", max_tokens=3),
        "error": box.chat("[[nan]]"),
    }
    turn = box.detach("[[forever]][[pace=5]]")
    until(lambda: box.tokens(turn))
    box.http.delete(f"/homebox/turns/{turn}").raise_for_status()
    now = box.snapshot()
    assert [row.state for row in now.ended] == ["cancelled", "error", "length", "stop"] and len(ends) == 3
    assert {row.client for row in now.ended} == {"ask", "api"}
    assert all(row.mine and row.blocks == 0 and (row.ended_s or 0) < ENDED_S for row in now.ended)
    with box.client(**{"X-Homebox-As": "mia"}) as mia:
        assert not any(row["mine"] for row in mia.get("/homebox/monitor").json()["ended"])
    later = time.monotonic() + ENDED_S
    monkeypatch.setattr("homebox.daemon.monitor.time.monotonic", lambda: later)
    assert box.snapshot().ended == ()


def test_a_row_tells_its_limit_its_wait_and_its_door(model: Path, tmp_path: Path) -> None:
    with running(model, tmp_path, max_running=1) as box:
        first = box.detach("[[forever]][[pace=5]]", max_tokens=500)
        until(lambda: box.tokens(first))
        second = box.detach("[[say=hello]]", max_tokens=7)
        rows = {
            row.id: row for row in until(lambda: len(box.snapshot().streams) == 2 and box.snapshot().streams)
        }
        assert (rows[first].max_tokens, rows[first].client) == (500, "ask") and rows[second].max_tokens == 7
        assert rows[second].queue_ms == pytest.approx(rows[second].age_s * 1000, abs=50)
        now = box.snapshot()
        assert now.oldest_wait_s and now.oldest_wait_s < now.streams[0].age_s
        assert now.weight_bytes == now.kv_bytes == 1 << 20
        assert (now.weights, now.kv, now.attention) == ("fp32", "bf16", "scripted")
        assert now.blocks and [each.person for each in now.blocks.people] == [now.streams[0].person]
        box.say("c1", "[[say=hello]]", "k1").raise_for_status()
        until(lambda: {row.client for row in box.snapshot().streams} == {"ask", "chat"})
        box.http.delete(f"/homebox/turns/{first}")
