"""Does the house stay as it is while eight people live in it for ten minutes?

HOMEBOX_SOAK_S shortens or lengthens the run, HOMEBOX_SOAK_SEED makes other days. With -s it prints what was done and
what memory did.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from statistics import linear_regression, median

import httpx
import psutil
import pytest

from homebox.daemon.keys import Keys
from homebox.wire import events
from tests.daemon.box import state_with, until

from .people import NAMES, Person, living

pytestmark = [pytest.mark.long, pytest.mark.model, pytest.mark.timeout(3600)]

SOAK_S = float(os.environ.get("HOMEBOX_SOAK_S", "600"))
SEED = int(os.environ.get("HOMEBOX_SOAK_SEED", "1"))
SETTLED_S = min(120.0, SOAK_S / 3)  # models, caches and allocators have found their size
WINDOW_S = min(60.0, SOAK_S / 6)
EVERY_S = min(5.0, SOAK_S / 60)
FLAT = 0.05
MIB = 2**20


class Memory(threading.Thread):
    """Resident bytes of some processes, sampled while it runs."""

    def __init__(self, pids: dict[str, int]) -> None:
        super().__init__()
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._leave = threading.Event()
        self._since = time.monotonic()
        self.samples: dict[str, list[tuple[float, float]]] = {name: [] for name in pids}

    def run(self) -> None:
        while not self._leave.wait(EVERY_S):
            for name, process in self._processes.items():
                at = time.monotonic() - self._since
                self.samples[name].append((at, process.memory_info().rss / MIB))

    def stop(self) -> None:
        self._leave.set()
        self.join()

    def window(self, name: str, since_s: float, until_s: float) -> float:
        """The median in MiB."""
        return median(size for at, size in self.samples[name] if since_s <= at <= until_s)

    def grown(self, name: str) -> float:
        """The last window over the first one after settling, less one."""
        before = self.window(name, SETTLED_S, SETTLED_S + WINDOW_S)
        return self.window(name, SOAK_S - WINDOW_S, SOAK_S + WINDOW_S) / before - 1

    def table(self) -> str:
        lines = [f"{'':8} {'min':>4} " + " ".join(f"{m:>6}" for m in range(int(SOAK_S // 60) + 1))]
        for name, samples in self.samples.items():
            by_minute: dict[int, list[float]] = {}
            for at, size in samples:
                by_minute.setdefault(int(at // 60), []).append(size)
            late = [(at / 60, size) for at, size in samples if at >= SETTLED_S]
            slope = linear_regression([at for at, _ in late], [size for _, size in late]).slope
            sizes = " ".join(f"{median(sizes):6.1f}" for sizes in by_minute.values())
            lines.append(f"{name:8} {'MiB':>4} {sizes}   {slope:+.2f} MiB/min, {self.grown(name):+.1%}")
        return "\n".join(lines)


def test_ten_minutes_of_eight_people_leave_the_house_as_it_was(default_model: Path, tmp_path: Path) -> None:
    state_with(default_model, tmp_path)
    keys = {name: Keys(tmp_path).new(name) for name in NAMES}
    socket = tmp_path / "api.sock"
    command = [sys.executable, "-m", "tests.house.serve_soak", str(tmp_path), str(socket), default_model.name]
    with (
        (tmp_path / "log").open("w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as daemon,
    ):
        try:
            assert daemon.stdout
            address = f"http://127.0.0.1:{int(daemon.stdout.readline())}"
            people, memory, preemptions = live(daemon.pid, str(socket), address, keys, default_model.name)
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(30) == 0
        finally:
            daemon.kill()
        log.seek(0)
        lines = [json.loads(line) for line in log]
    did = sum((person.did for person in people), Counter[str]())
    finished = Counter(line["turn"] for line in lines if line["message"] == "finished")
    reasons = Counter(
        reason for line in lines if line["message"] == "finished" for reason in line["reason"].split(",")
    )
    print(f"\n{memory.table()}\n{dict(did)}\n{dict(reasons)}, {preemptions} preemptions")
    failures = [failure for person in people for failure in person.failures]
    assert not failures, "\n".join(failures[:20])
    assert not [line for line in lines if "traceback" in line or line["level"] in ("error", "critical")]
    assert set(finished.values()) == {1}, "each turn has one end"
    assert {turn for person in people for turn in person.turns} <= set(finished)
    assert preemptions > 0 and set(reasons) == {"stop", "length", "cancelled"}
    for name in memory.samples:
        assert abs(memory.grown(name)) <= FLAT, memory.table()


def live(
    daemon: int, socket: str, address: str, keys: dict[str, str], model: str
) -> tuple[list[Person], Memory, int]:
    """The ten minutes; afterwards nothing runs and no block is used."""
    with httpx.Client(transport=httpx.HTTPTransport(uds=socket), base_url="http://box", timeout=20) as http:

        def snapshot() -> events.Snapshot:
            return events.decode_snapshot(http.get("/homebox/monitor").content)

        until(lambda: http.get("/health").json()["state"] == "ready", within_s=120)
        memory = Memory({"daemon": daemon, "engine": http.get("/health").json()["engine_pid"]})
        memory.start()
        with living(address, keys, model, SEED) as people:
            time.sleep(SOAK_S)  # this is the thing that is tested, not a wait for something
            memory.stop()
        until(lambda: not snapshot().streams, within_s=60)
        now = until(lambda: (s := snapshot()).blocks is not None and s.blocks.used == 0 and s, within_s=5)
        assert (now.running, now.waiting, now.engine_restarts) == (0, 0, 0)
        return people, memory, now.preemptions
