"""A whole engine in this process, with random weights, and when its tokens came."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import torch

from homebox.engine.blocks import Group, KVSpace
from homebox.engine.budget import StepTime, chunk_load
from homebox.engine.core import Engine
from homebox.engine.device_runner import Chooser, DeviceRunner
from homebox.engine.scheduler import Limits, Scheduler
from homebox.kernels.attention import KvKind, PagedCache
from homebox.kernels.device import device_for
from homebox.kernels.host import HostBlocks
from homebox.kernels.triton.attention import TritonAttention
from homebox.model.decoder import Weights
from homebox.model.device import DeviceDecoder
from homebox.model.spec import DecoderSpec
from homebox.wire.frames import FromEngine, Sampling, StepDone, Submit

BLOCK = 16
_MEASURED = (1, 1, 64, 64, 512, 512)


@dataclass
class Answer:
    asked_s: float
    at_s: list[float] = field(default_factory=list)  # when each token came
    tokens: list[int] = field(default_factory=list)

    @property
    def ttft_s(self) -> float:
        return self.at_s[0] - self.asked_s

    def gaps_ms(self, since_s: float = 0.0, until_s: float = float("inf")) -> list[float]:
        times = [t for t in self.at_s if since_s <= t <= until_s]
        return [(b - a) * 1e3 for a, b in pairwise(times)]


class House:
    def __init__(
        self,
        spec: DecoderSpec,
        weights: Weights,
        chooser: Chooser,
        *,
        kv_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        slots: int = 64,
        chunk: int = 2048,
        depth: int = 2,
        host_tokens: int = 0,
        kind: KvKind = KvKind.AS_IS,
    ) -> None:
        """`kv_tokens`, `host_tokens`: for how many there is room on the device, and in the machine's own memory."""
        blocks = -(-kv_tokens // BLOCK)
        cache = PagedCache(
            layer_groups=(0,) * spec.layers, blocks=(blocks,), block_size=BLOCK, kv_heads=spec.kv_heads,
            head_dim=spec.head_dim, dtype=dtype, device=device, kind=kind,
        )  # fmt: skip
        attention = TritonAttention(cache, (None,), spec.heads)
        decoder = DeviceDecoder(spec, weights, attention)
        host = -(-host_tokens // BLOCK)
        self.runner = DeviceRunner(
            device_for(device), decoder, chooser, slots=slots, chunk=chunk, depth=depth,
            host=HostBlocks(cache, host) if host else None,
        )  # fmt: skip
        self.kv_tokens = blocks * BLOCK
        space = KVSpace([Group(tuple(range(spec.layers)))], [blocks], BLOCK, host_slots=host)
        step_time = StepTime()
        for i, tokens in enumerate(_MEASURED):
            tokens = min(tokens, chunk, spec.context - 1)
            elapsed = self.runner.measure(tokens)
            if i % 2:
                step_time.observe(chunk_load(0, tokens), elapsed)
        limits = Limits(spec.context, slots, chunk, prefill_step_ms=100.0, moves_beside=True)
        self.scheduler = Scheduler(limits, space, step_time)
        self.engine = Engine(self.scheduler, self.runner, self._hear, depth=depth)
        self.answers: dict[str, Answer] = {}
        self.busy_s = 0.0
        self._count = 0

    def _hear(self, frame: FromEngine) -> None:
        if not isinstance(frame, StepDone):
            return
        now = time.perf_counter()
        self.busy_s += frame.step_ms / 1e3
        for progress in frame.progress:
            answer = self.answers[progress.id]
            answer.at_s += [now] * len(progress.tokens)
            answer.tokens += progress.tokens

    def ask(self, prompt: list[int], tokens: int, person: str = "") -> Answer:
        self._count += 1
        name = f"r{self._count}"
        answer = self.answers[name] = Answer(time.perf_counter())
        sampling = Sampling(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        self.engine.submit(Submit(name, person or name, prompt, sampling))
        return answer

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        while not until() and self.engine.step():
            pass
