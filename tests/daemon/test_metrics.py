"""Does /metrics parse, count exactly what happened, and never go back?"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as families

from homebox.daemon.keys import Keys
from homebox.daemon.metrics import MAX_PEOPLE, Metrics, device_families
from homebox.daemon.monitor import Monitor
from homebox.daemon.turns import Turn
from homebox.wire import events, frames
from homebox.wire.events import Device

from .box import Box, running, until

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Scraped:
    """One scrape: `s("name", label="x")` is a sample's value, None where there is none."""

    def __init__(self, text: str) -> None:
        self.values: Values = {}
        self.types: dict[str, str] = {}
        for family in families(text):
            assert family.documentation, family.name
            self.types[family.name] = family.type
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in self.values, f"twice: {key}"
                self.values[key] = sample.value

    def __call__(self, name: str, /, **labels: str) -> float | None:
        return self.values.get((f"homebox_{name}", frozenset(labels.items())))

    def total(self, name: str) -> float:
        return sum(value for (found, _), value in self.values.items() if found == f"homebox_{name}")


def scrape(client: httpx.Client) -> Scraped:
    response = client.get("/metrics")
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/plain")
    return Scraped(response.text)


def speaking(box: Box, name: str) -> httpx.Client:
    return box.client(**{"X-Homebox-As": name})


def test_counts_are_exactly_what_was_asked_and_answered(model: Path, tmp_path: Path) -> None:
    steps: list[frames.StepDone] = []
    with running(model, tmp_path) as box:
        box.house.supervisor._observers.append(  # type: ignore[attr-defined]
            lambda frame: steps.append(frame) if isinstance(frame, frames.StepDone) and frame.step else None
        )
        with speaking(box, "anna") as anna, speaking(box, "mia") as mia:
            used = [
                box.chat(said, client, max_tokens=limit).json()["usage"]
                for client, said, limit in (
                    (anna, "[[say=hello]]", 50),
                    (anna, "[[forever]]", 5),
                    (mia, "[[say=one_two_three]]", 50),
                )
            ]
            assert box.chat("hi", mia, temperature=-1).status_code == 400
            assert box.chat("[[refuse=context_length_exceeded]]", mia).status_code == 400
        until(box.idle)
        seen = scrape(box.http)
    out = [usage["completion_tokens"] for usage in used]
    assert seen("requests_total", outcome="stop", person="anna") == 1
    assert seen("requests_total", outcome="length", person="anna") == 1
    assert seen("requests_total", outcome="stop", person="mia") == 1
    assert seen("requests_total", outcome="error", person="mia") == 1
    assert seen("generated_tokens_total", person="anna") == out[0] + out[1]
    assert seen("generated_tokens_total", person="mia") == out[2]
    assert seen.total("prompt_tokens_total") == sum(usage["prompt_tokens"] for usage in used)
    assert seen("refusals_total", code="invalid_request") == 1
    assert seen("refusals_total", code="context_length_exceeded") == 1
    assert seen("time_to_first_token_seconds_count") == 3
    assert seen("inter_token_seconds_count") == sum(out) - 3
    assert seen("request_duration_seconds_count") == 4
    assert seen("queue_seconds_count") == 3
    assert seen("step_duration_seconds_count") == seen("step_tokens_count") == len(steps)
    assert seen("step_tokens_sum") == sum(step.prefill_tokens + step.decode_rows for step in steps)
    assert seen("requests_running") == seen("requests_waiting") == 0


def test_every_name_and_type_follows_the_conventions(box: Box) -> None:
    box.ask("[[say=hello]]")
    seen = scrape(box.http)
    assert {name.split("_")[0] for name in seen.types} == {"homebox"}
    counted = {name for name, kind in seen.types.items() if kind == "counter"}
    assert len(counted) > 8
    for name, _ in seen.values:
        assert name.removesuffix("_total") not in counted or name.endswith("_total"), name
    for name, kind in seen.types.items():
        if kind == "histogram":
            count = seen(f"{name.removeprefix('homebox_')}_count")
            assert seen(f"{name.removeprefix('homebox_')}_bucket", le="+Inf") == count
            assert name.endswith(("_seconds", "_tokens"))
    assert seen("engine_state", state="ready") == 1 and seen.total("engine_state") == 1
    assert seen("build_info", version=box.snapshot().version) == 1
    assert seen("blocks", state="free") == box.snapshot().blocks.free  # type: ignore[union-attr]


def test_a_scraper_that_prefers_openmetrics_gets_it(box: Box) -> None:
    response = box.http.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert "homebox_uptime_seconds" in {family.name for family in open_metrics(response.text)}


def test_no_counter_goes_back_when_the_engine_dies(box: Box) -> None:
    finished = box.ask("[[say=hello]]")[-1]
    assert isinstance(finished, events.Finished)
    turn = box.detach("[[pace=10]][[forever]]", max_tokens=60)
    until(lambda: box.tokens(turn) > 5)
    before = scrape(box.http)
    os.kill(box.http.get("/health").json()["engine_pid"], signal.SIGKILL)
    until(lambda: box.house.supervisor.restarts == 1)
    lost = scrape(box.http)
    until(box.idle)
    after = scrape(box.http)
    assert after("engine_restarts_total") == 1
    for earlier, later in ((before, lost), (lost, after)):
        for key, value in earlier.values.items():
            if key[0].endswith(("_total", "_count", "_bucket", "_sum")):
                assert later.values[key] >= value, key
    assert after.total("generated_tokens_total") == finished.usage.completion_tokens + 60


def test_what_an_engine_counts_anew_is_added_up() -> None:
    metrics = Metrics()
    pool = metrics._pool

    def step(hits: int, queries: int, preemptions: int, host_hits: int) -> None:
        state = frames.PoolState(10, 0, 0, 10, hits, queries, preemptions, host_hit_tokens=host_hits)
        metrics.frame(frames.StepDone(0, [], state, 0, 0))

    step(5, 9, 1, 2)
    step(6, 12, 1, 3)
    metrics.frame(frames.Loading("weights"))
    metrics.frame(ready())
    step(7, 8, 0, 4)  # higher than before in one, and still a new count
    assert pool.totals == (13, 20, 1, 7)


def ready() -> frames.Ready:
    return frames.Ready(1, "cpu", 1, 1, 16, 10, 1, 1, 1, "scripted")


def test_what_is_not_known_is_absent_and_never_zero(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOMEBOX_SCRIPT_LOAD", "hang")
    with running(model, tmp_path, ready=False) as box:
        seen = scrape(box.http)
        assert seen("blocks", state="free") is None
        assert seen("engine_state", state="ready") == 0

    class Two:
        def collect(self) -> Iterator[Metric]:
            return device_families(
                (
                    Device(kind="gpu", name="One", util_percent=50.0, memory_used_bytes=0),
                    Device(kind="gpu", name="Two", power_w=12.5),
                )
            )

    registry = CollectorRegistry()
    registry.register(Two())
    seen = Scraped(generate_latest(registry).decode())
    assert seen("gpu_utilization_ratio", gpu="0", name="One") == 0.5
    assert seen("gpu_memory_used_bytes", gpu="0", name="One") == 0
    assert seen("gpu_power_watts", gpu="1", name="Two") == 12.5
    assert seen("gpu_power_watts", gpu="0", name="One") is None
    assert "homebox_gpu_temperature_celsius" not in seen.types
    assert "homebox_engine_memory_bytes" not in seen.types


def test_names_can_be_turned_off(model: Path, tmp_path: Path) -> None:
    with running(model, tmp_path, metrics_people=False) as box:
        with speaking(box, "anna") as anna:
            box.chat("[[say=hello]]", anna)
        until(box.idle)
        response = box.http.get("/metrics").text
    assert "anna" not in response and Scraped(response)("requests_total", outcome="stop") == 1


def test_a_name_is_a_label_and_cannot_add_a_line() -> None:
    metrics = Metrics()
    hostile = 'mia"} 1\nhomebox_requests_total{person="dad'
    metrics.ended(finished_turn(hostile))
    text = metrics.text()[0].decode()
    assert Scraped(text)("requests_total", outcome="error", person=hostile) == 1
    assert 'person="dad"' not in text


def test_ever_new_names_do_not_fill_the_memory() -> None:
    metrics = Metrics()
    for number in range(MAX_PEOPLE + 50):
        metrics.ended(finished_turn(f"p{number}"))
    seen = Scraped(metrics.text()[0].decode())
    assert seen("requests_total", outcome="error", person="other") == 50
    assert seen.total("requests_total") == MAX_PEOPLE + 50


def finished_turn(person: str) -> Turn:
    return Turn(kind="t", person=person, model="m", klass="normal", context=1, abort=lambda stream: None)


def test_two_daemons_in_one_process_count_apart(model: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with running(model, tmp_path / "a") as one, running(model, tmp_path / "b") as two:
        one.ask("[[say=hello]]")
        until(one.idle)
        assert scrape(one.http).total("requests_total") == 1
        assert scrape(two.http).total("requests_total") == 0


def test_on_tcp_it_takes_a_key(model: Path, tmp_path: Path) -> None:
    key = Keys(tmp_path).new("prometheus")
    with running(model, tmp_path, listen="127.0.0.1:0") as box, box.far() as far:
        assert far.get("/metrics").status_code == 401
        seen = far.get("/metrics", headers={"Authorization": f"Bearer {key}"})
        assert seen.status_code == 200 and Scraped(seen.text)("refusals_total", code="invalid_api_key") == 1


def test_it_answers_at_once_with_many_people_and_a_busy_engine(box: Box) -> None:
    for number in range(MAX_PEOPLE):
        box.house.metrics.ended(finished_turn(f"p{number}"))
    turn = box.detach("[[forever]][[pace=50]]", max_tokens=1000)
    until(lambda: box.tokens(turn))
    scrape(box.http)
    took = []
    for _ in range(5):
        began = time.monotonic()
        scrape_text = box.http.get("/metrics").text
        took.append(time.monotonic() - began)
    box.http.delete(f"/homebox/turns/{turn}")
    assert len(scrape_text) > 10_000 and min(took) < 0.1  # a busy machine may take a slice of any one


def test_what_a_monitor_says_is_what_is_scraped(box: Box) -> None:
    turn = box.detach("[[forever]][[pace=20]]", max_tokens=1000)
    until(lambda: box.tokens(turn))
    until(lambda: scrape(box.http)("requests_running") == 1 == box.snapshot().running)
    box.http.delete(f"/homebox/turns/{turn}")
    assert isinstance(box.house.monitor, Monitor)
    until(lambda: scrape(box.http).total("requests_total") == 1)
    assert math.isclose(scrape(box.http)("uptime_seconds") or 0, box.snapshot().uptime_s, abs_tol=5)
