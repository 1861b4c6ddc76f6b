"""The engine's process: it speaks frames, sleeps when idle, and does not outlive its socket."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from homebox.wire import frames
from homebox.wire.frames import Abort, Fault, FromEngine, Loading, Ready, Sampling, Start, StepDone, Submit


class Worker:
    def __init__(self) -> None:
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(60)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "homebox.engine.worker", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stderr=subprocess.PIPE,
        )
        theirs.close()
        self.frames = self._read()

    def send(self, frame: frames.ToEngine) -> None:
        self.sock.sendall(frames.encode(frame))

    def _read(self) -> Iterator[FromEngine]:
        splitter = frames.Splitter("from_engine")
        while data := self.sock.recv(1 << 16):
            yield from splitter.feed(data)  # type: ignore[misc]

    def until(self, kind: type[FromEngine]) -> FromEngine:
        return next(f for f in self.frames if isinstance(f, kind))

    def finished(self, request_id: str) -> list[int]:
        tokens: list[int] = []
        for frame in self.frames:
            for progress in frame.progress if isinstance(frame, StepDone) else ():
                if progress.id == request_id:
                    tokens += progress.tokens
                    if progress.finish:
                        return tokens
        raise AssertionError("the engine went away")


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.process.kill()
    worker.process.wait()
    worker.sock.close()


def greedy(n: int) -> Sampling:
    return Sampling(max_tokens=n, temperature=0.0)


def test_it_loads_answers_sleeps_and_leaves_with_its_socket(worker: Worker, tiny_model: Path) -> None:
    worker.send(Start(str(tiny_model), kv_bytes=2**20))
    loading = []
    for frame in worker.frames:
        if isinstance(frame, Ready):
            break
        assert isinstance(frame, Loading)
        loading.append(frame.stage)
    assert loading[0] == "torch" and "weights" in loading
    process = psutil.Process(worker.process.pid)
    assert process.nice() == os.nice(0) + 5, "the daemon answers first"

    worker.send(Submit("a", "mia", [5, 6, 7], greedy(30)))
    assert len(worker.finished("a")) == 30
    worker.send(Submit("b", "mia", [5, 6, 7], greedy(200)))
    worker.until(StepDone)
    worker.send(Abort("b"))
    assert len(worker.finished("b")) < 200

    # Its threads do not spin while there is nothing to compute.
    before = process.cpu_times()
    with pytest.raises(subprocess.TimeoutExpired):
        worker.process.wait(timeout=2)
    after = process.cpu_times()
    assert after.user + after.system - before.user - before.system <= 0.1

    worker.sock.shutdown(socket.SHUT_RDWR)
    assert worker.process.wait(timeout=10) == 0


def test_it_reads_torch_before_it_is_told_what_to_load(worker: Worker) -> None:
    assert worker.until(Loading) == Loading("torch")


def test_the_socket_closing_in_the_middle_of_an_answer_ends_the_process(
    worker: Worker, tiny_model: Path
) -> None:
    worker.send(Start(str(tiny_model), kv_bytes=2**20))
    worker.until(Ready)
    worker.send(Submit("a", "mia", [5, 6, 7], greedy(250)))
    worker.until(StepDone)
    worker.sock.shutdown(socket.SHUT_RDWR)
    assert worker.process.wait(timeout=10) == 0


@pytest.mark.parametrize(
    "start, complaint",
    [
        (Start("/nowhere"), "no config.json"),
        (Start("/nowhere", device="tpu"), "is not known"),
        pytest.param(
            Start("/nowhere", device="cuda"),
            "sees no GPU",
            marks=pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a GPU"),
        ),
        (Start("/nowhere", version=99), "version 99"),
    ],
)
def test_what_cannot_start_says_why_in_one_frame(worker: Worker, start: Start, complaint: str) -> None:
    worker.send(start)
    fault = worker.until(Fault)
    assert isinstance(fault, Fault) and complaint in fault.message
    assert worker.process.wait(timeout=10) == 1


def test_started_by_hand_it_points_to_serve() -> None:
    done = subprocess.run([sys.executable, "-m", "homebox.engine.worker"], capture_output=True, text=True)
    assert done.returncode == 1 and "homebox serve" in done.stderr and "Traceback" not in done.stderr
