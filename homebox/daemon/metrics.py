"""What is counted over the life of this daemon, for Prometheus?

Counters and histograms grow as frames, tokens and ends of turns are heard; what stands at a moment (queues, blocks,
devices) is read when it is asked for, and is absent while it is unknown, never 0. An engine that is replaced begins its
own counters again: they are added up here, so that none ever goes back. A registry of its own: two daemons in one
process do not meet. Names and counts, never words.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

import homebox
from homebox.daemon.pool_totals import PoolTotals
from homebox.daemon.streams import Phase
from homebox.daemon.supervisor import EngineState, Supervisor
from homebox.daemon.turns import Turn
from homebox.wire import frames
from homebox.wire.events import Device

if TYPE_CHECKING:
    from homebox.daemon.monitor import Monitor
    from homebox.daemon.turnbook import TurnBook

disable_created_metrics()  # a third series for each counter, which says no more than the daemon's uptime does

MAX_PEOPLE = 200  # labels; whoever comes after them is counted as "other"
_SOON_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_GAP_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 10)
_LONG_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600, 1800)
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class Metrics:
    """Hears everything on the event loop; `text` is what a scrape gets."""

    def __init__(self, *, people: bool = True) -> None:
        """`people`: whether requests and tokens are counted by person, with the name as a label."""
        self._registry = CollectorRegistry()
        self._by_person = people
        self._people: set[str] = set()
        self._counted: dict[str, int] = {}  # turn > tokens of its answer that an earlier scrape has counted
        self._pool = PoolTotals()
        self._book: TurnBook | None = None
        who = ("person",) if people else ()
        self._requests = self._counter("requests", "Requests that ended, by how.", ("outcome", *who))
        self._refusals = self._counter("refusals", "Requests that were refused, by code.", ("code",))
        self._prompt = self._counter("prompt_tokens", "Tokens of prompts that were answered.", who)
        self._cached = self._counter("cached_prompt_tokens", "Of those, taken from the prefix cache.", who)
        self._generated = self._counter("generated_tokens", "Tokens of answers.", who)
        self._ttft = self._histogram(
            "time_to_first_token_seconds", "From asking to the first token.", _SOON_S
        )
        self._gap = self._histogram("inter_token_seconds", "Between two tokens of one answer.", _GAP_S)
        self._whole = self._histogram("request_duration_seconds", "From asking to the end.", _LONG_S)
        self._queue = self._histogram("queue_seconds", "From asking to the first step.", _SOON_S)
        self._step = self._histogram("step_duration_seconds", "One step of the engine.", _GAP_S)
        self._step_tokens = self._histogram("step_tokens", "Tokens that one step computed.", _TOKENS)

    def watch(self, supervisor: Supervisor, book: TurnBook, monitor: Monitor) -> None:
        """Where to look for what stands at the moment of a scrape."""
        self._book = book
        self._registry.register(_Now(supervisor, book, monitor, self._pool))

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """Everything, in the form that the Accept header asks for, and its content type."""
        for turn in self._book.live if self._book else ():
            self._count(turn)
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    # ---- what it hears

    def frame(self, frame: frames.FromEngine) -> None:
        if isinstance(frame, frames.StepDone):
            self._pool.hear(frame.pool)
            if frame.step:
                self._step.observe(frame.step_ms / 1000)
                self._step_tokens.observe(frame.prefill_tokens + frame.decode_rows)
        elif isinstance(frame, frames.Loading | frames.Ready):
            self._pool.begin_again()

    def token(self, turn: Turn, gap_ms: float | None) -> None:
        """A choice of `turn` got tokens, `gap_ms` after its last ones; None for the turn's first."""
        if gap_ms is not None:
            self._gap.observe(gap_ms / 1000)
        elif turn.ttft_ms is not None:
            self._ttft.observe(turn.ttft_ms / 1000)

    def ended(self, turn: Turn) -> None:
        """The engine has let go of this turn, however it ended."""
        who = self._who(turn)
        self._requests.labels(turn.outcome, *who).inc()
        self._count(turn)
        self._counted.pop(turn.id, None)
        timing = turn.timing
        self._whole.observe(timing.total_ms / 1000)
        if turn.started_at is not None:
            self._queue.observe(timing.queue_ms / 1000)
        if turn.first_token_at is not None:
            usage = turn.usage
            _child(self._prompt, who).inc(usage.prompt_tokens)
            _child(self._cached, who).inc(usage.cached_tokens)

    def refused(self, code: str) -> None:
        self._refusals.labels(code).inc()

    def _count(self, turn: Turn) -> None:
        made = turn.tokens_out
        _child(self._generated, self._who(turn)).inc(made - self._counted.get(turn.id, 0))
        self._counted[turn.id] = made

    def _who(self, turn: Turn) -> tuple[str, ...]:
        if not self._by_person:
            return ()
        if turn.person not in self._people and len(self._people) >= MAX_PEOPLE:
            return ("other",)
        self._people.add(turn.person)
        return (turn.person,)

    def _counter(self, name: str, about: str, labels: tuple[str, ...]) -> Counter:
        return Counter(f"homebox_{name}", about, labels, registry=self._registry)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"homebox_{name}", about, buckets=buckets, registry=self._registry)


def _child(counter: Counter, labels: tuple[str, ...]) -> Counter:
    return counter.labels(*labels) if labels else counter


class _Now:
    """A collector in the sense of prometheus_client: what stands at this moment."""

    def __init__(self, supervisor: Supervisor, book: TurnBook, monitor: Monitor, pool: PoolTotals) -> None:
        self._supervisor, self._book, self._monitor, self._pool = supervisor, book, monitor, pool

    def collect(self) -> Iterator[Metric]:
        supervisor, monitor = self._supervisor, self._monitor
        yield InfoMetricFamily("homebox_build", "This daemon.", {"version": homebox.__version__})
        yield GaugeMetricFamily("homebox_uptime_seconds", "Since the daemon started.", monitor.uptime_s)
        states = GaugeMetricFamily("homebox_engine_state", "1 for the state it is in.", labels=["state"])
        for state in EngineState:
            states.add_metric([state], float(supervisor.state is state))
        yield states
        draining = float(self._book.draining)
        yield GaugeMetricFamily("homebox_draining", "1 while nothing new is taken.", draining)
        restarts = supervisor.restarts
        yield CounterMetricFamily("homebox_engine_restarts", "Engines that were replaced.", restarts)
        phases = [stream.phase for stream in supervisor.streams]
        busy = sum(phase in (Phase.PREFILL, Phase.DECODE) for phase in phases)
        yield GaugeMetricFamily("homebox_requests_running", "Answers that are being computed.", busy)
        yield GaugeMetricFamily("homebox_requests_waiting", "Answers that wait.", len(phases) - busy)
        if (blocks := monitor.blocks(supervisor)) is not None:
            pool = GaugeMetricFamily("homebox_blocks", "Blocks of the KV pool, by state.", labels=["state"])
            for name in ("used", "cached", "free"):
                pool.add_metric([name], getattr(blocks, name))
            yield pool
            kept = GaugeMetricFamily(
                "homebox_host_blocks",
                "Blocks kept in host memory, and the most that can be.",
                labels=["state"],
            )
            kept.add_metric(["used"], blocks.host_used)
            kept.add_metric(["total"], blocks.host_total)
            yield kept
            tokens = blocks.block_size
            yield GaugeMetricFamily("homebox_block_size_tokens", "Tokens that a block holds.", tokens)
        hits, queries, preemptions, host = self._pool.totals
        yield CounterMetricFamily("homebox_prefix_hit_tokens", "Found in the prefix cache.", hits)
        yield CounterMetricFamily("homebox_prefix_query_tokens", "Looked for in the prefix cache.", queries)
        yield CounterMetricFamily("homebox_host_hit_tokens", "Brought back from host memory.", host)
        yield CounterMetricFamily("homebox_preemptions", "Answers that gave way for a while.", preemptions)
        yield from device_families(monitor.devices)


# Of a device: the name of the metric, what it says, the field of `Device`, and the unit's factor.
_GPU = (
    ("gpu_utilization_ratio", "Busy, 0 to 1.", "util_percent", 0.01),
    ("gpu_memory_used_bytes", "Memory in use.", "memory_used_bytes", 1),
    ("gpu_memory_total_bytes", "Memory there is.", "memory_total_bytes", 1),
    ("gpu_power_watts", "Power drawn.", "power_w", 1),
    ("gpu_temperature_celsius", "Temperature.", "temperature_c", 1),
)
_CPU = (
    ("engine_cpu_ratio", "The engine's share of all cores, 0 to 1.", "util_percent", 0.01),
    ("engine_memory_bytes", "Memory of the engine's process.", "memory_used_bytes", 1),
)


def device_families(devices: tuple[Device, ...]) -> Iterator[Metric]:
    """A family for each figure that at least one device gives."""
    for kind, table in (("gpu", _GPU), ("cpu", _CPU)):
        ours = [device for device in devices if device.kind == kind]
        for name, about, field, factor in table:
            labels = ["gpu", "name"] if kind == "gpu" else []
            family = GaugeMetricFamily(f"homebox_{name}", about, labels=labels)
            for index, device in enumerate(ours):
                if (value := getattr(device, field)) is not None:
                    family.add_metric([str(index), device.name][: len(labels)], value * factor)
            if family.samples:
                yield family
