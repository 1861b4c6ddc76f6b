"""How fast is the engine on this device, beside what its memory allows and beside transformers?"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from homebox.bench.figures import percentile
from homebox.bench.gpu.house import Answer, House
from homebox.bench.gpu.shapes import SHAPES, streamed_bytes, weights
from homebox.kernels.attention import KvKind
from homebox.kernels.triton.sampling import TritonChooser
from homebox.model.spec import DecoderSpec


@dataclass(frozen=True)
class Row:
    """A line of the table. `bound`: what the figure is compared with; `goal`: of the ratio, or of the figure where there is no
    bound; `better`: "more" or "less"."""

    model: str
    what: str
    value: float
    unit: str
    bound: float | None = None
    of: str = ""
    goal: float | None = None
    better: str = "more"


@dataclass(frozen=True)
class Sizes:
    """How much is done. `streams` together, `tokens` each, a document of `document`, a chat of `chat`."""

    streams: int = 32
    prompt: int = 100
    tokens: int = 128
    document: int = 32_000
    readers: int = 8
    chat: int = 8_000
    kv_tokens: int = 60_000
    chunk: int = 2048
    slots: int = 64
    baseline_tokens: int = 48
    copied: int = 1 << 30


SMALL = Sizes(2, 3, 2, 10, 1, 18, 256, 8, 2, 2, 1 << 20)


def bandwidth(device: torch.device, sizes: Sizes) -> float:
    """Bytes a second that copying in the device's memory moves, read and written."""
    source = torch.empty(sizes.copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = []
    for _ in range(12):
        _finish(device)
        began = time.perf_counter()
        for _ in range(4):
            target.copy_(source)
        _finish(device)
        times.append((time.perf_counter() - began) / 4)
    return 2 * sizes.copied / median(times)


def engine(shape: str, kind: str, device: torch.device, sizes: Sizes) -> Iterator[Row]:
    """One model, with "fp8" keys and values in fp8 as well: one stream, many, a document beside readers, a chat that is gone on with."""
    spec, dtype = SHAPES[shape], _dtype(device)
    name = f"{shape} {kind}"
    reads = bandwidth(device, sizes)
    loaded = weights(spec, kind, dtype, device)
    _finish(device)
    began = time.perf_counter()
    house = House(
        spec, loaded, TritonChooser(max(64, sizes.slots), spec.vocab_size, device), kv_tokens=sizes.kv_tokens, dtype=dtype,
        device=device, chunk=sizes.chunk, slots=sizes.slots, host_tokens=2 * sizes.chat,
        kind=KvKind.FP8 if kind == "fp8" else KvKind.AS_IS,
    )  # fmt: skip
    yield Row(name, "ready after the weights", time.perf_counter() - began, "s", goal=5.0, better="less")
    rng = random.Random(1)

    def prompt(length: int) -> list[int]:
        return [rng.randrange(spec.vocab_size) for _ in range(length)]

    house.ask(prompt(sizes.prompt), sizes.tokens)  # what is compiled and captured on first use
    house.run()
    alone = house.ask(prompt(sizes.prompt), sizes.tokens)
    house.run()
    gap_ms = median(alone.gaps_ms())
    goal = 0.8 if kind == "dense" else 0.6
    bound = reads / streamed_bytes(loaded)
    yield Row(name, "one stream", 1e3 / gap_ms, "tok/s", bound, "of copying the weights", goal)
    yield Row(name, "first token of one", alone.ttft_s * 1e3, "ms", better="less")
    for again in (False, True):
        began, house.busy_s = time.perf_counter(), 0.0
        answers = [house.ask(prompt(sizes.prompt), sizes.tokens) for _ in range(sizes.streams)]
        house.run()
        took = time.perf_counter() - began
        if again:
            made = sum(len(answer.tokens) for answer in answers)
            yield Row(name, f"{sizes.streams} streams", made / took, "tok/s", 1e3 / gap_ms, "one stream")
            yield Row(name, "device busy meanwhile", house.busy_s / took, "", goal=0.98)
            yield Row(
                name,
                "gap of a stream, p50",
                median(g for a in answers for g in a.gaps_ms()),
                "ms",
                better="less",
            )
    yield from _victim(name, house, spec, sizes, rng)
    yield from _second_turn(name, house, spec, sizes, rng)


def _victim(name: str, house: House, spec: DecoderSpec, sizes: Sizes, rng: random.Random) -> Iterator[Row]:
    def prompt(length: int) -> list[int]:
        return [rng.randrange(spec.vocab_size) for _ in range(length)]

    most = spec.context - sizes.prompt - 8
    readers = [house.ask(prompt(sizes.prompt), min(4000, most)) for _ in range(sizes.readers)]
    house.run(lambda: all(len(each.tokens) >= min(64, most // 4) for each in readers))
    calm_s = readers[0].at_s[0]
    document = house.ask(prompt(min(sizes.document, most)), 2)
    asked_s = document.asked_s
    question: list[Answer] = []

    def read() -> bool:
        if not question and time.perf_counter() > asked_s + 0.1:
            question.append(house.ask(prompt(min(20, sizes.prompt)), 2))
        return bool(document.at_s)

    house.run(read)
    if not question:
        question.append(house.ask(prompt(min(20, sizes.prompt)), 2))
    house.run(lambda: bool(question[0].at_s))
    end_s = document.at_s[0]
    alone = [g for each in readers for g in each.gaps_ms(calm_s, asked_s)]
    meanwhile = [g for each in readers for g in each.gaps_ms(asked_s, end_s)]
    for request in list(house.scheduler.live):
        house.engine.abort(request)
    house.run()
    if alone and meanwhile:
        bound = max(2 * percentile(alone, 0.99), 20.0)
        yield Row(
            name, f"gap p99 beside a document of {sizes.document}", percentile(meanwhile, 0.99), "ms", bound, "of what it may be",
            1.0, "less",
        )  # fmt: skip
    yield Row(name, "a question beside it", question[0].ttft_s * 1e3, "ms", goal=500.0, better="less")
    yield Row(name, "the document", document.ttft_s, "s", better="less")


def _second_turn(
    name: str, house: House, spec: DecoderSpec, sizes: Sizes, rng: random.Random
) -> Iterator[Row]:
    chat = [rng.randrange(spec.vocab_size) for _ in range(min(sizes.chat, spec.context - 60))]
    first = house.ask(chat, 4, person="mia")
    house.run()
    yield Row(name, f"a chat of {len(chat)} tokens, first turn", first.ttft_s * 1e3, "ms", better="less")
    chat += first.tokens
    for where in ("the device", "host memory"):
        if where == "host memory":
            # Others ask until nothing of the chat is left on the device.
            for _ in range(2 * house.kv_tokens // max(sizes.chat, 1)):
                house.ask(
                    [rng.randrange(spec.vocab_size) for _ in range(min(sizes.chat, spec.context - 60))], 2
                )
            house.run()
        chat += [rng.randrange(spec.vocab_size) for _ in range(16)]
        turn = house.ask(chat, 2, person="mia")
        house.run()
        chat += turn.tokens
        goal = 150.0 if where == "host memory" else None
        yield Row(name, f"its next turn, KV in {where}", turn.ttft_s * 1e3, "ms", goal=goal, better="less")


def transformers(shape: str, device: torch.device, sizes: Sizes) -> Iterator[Row]:
    """The same shape in transformers: `generate` one at a time, and its continuous batching."""
    from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM

    spec = SHAPES[shape]
    config = LlamaConfig(
        vocab_size=spec.vocab_size, hidden_size=spec.hidden, intermediate_size=spec.mlp, num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads, num_key_value_heads=spec.kv_heads, head_dim=spec.head_dim,
        max_position_embeddings=spec.context, tie_word_embeddings=spec.tied_head,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    name = f"{shape} dense"
    before = torch.get_default_dtype()
    torch.set_default_dtype(_dtype(device))
    try:
        with device:
            model: Any = LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)
    generator = torch.Generator().manual_seed(1)
    greedy = GenerationConfig(
        do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=sizes.baseline_tokens
    )
    rates = []
    for _ in range(3):
        ids = torch.randint(spec.vocab_size, (1, sizes.prompt), generator=generator).to(device)
        _finish(device)
        began = time.perf_counter()
        with torch.inference_mode():
            model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=greedy)
        _finish(device)
        rates.append(sizes.baseline_tokens / (time.perf_counter() - began))
    yield Row(name, "transformers, one at a time", median(rates[1:]), "tok/s")
    pages = -(-sizes.streams * (sizes.prompt + sizes.tokens + 256) // 256)
    most = max(512, sizes.streams)
    cache = ContinuousBatchingConfig(
        page_size=256, num_blocks=2 * pages, max_batch_tokens=most, allow_block_sharing=False
    )
    took = []
    for _ in range(2):
        with torch.inference_mode():
            manager = model.init_continuous_batching(
                generation_config=greedy, continuous_batching_config=cache
            )
            manager.start()
            began = time.perf_counter()
            for i in range(sizes.streams):
                asked = torch.randint(spec.vocab_size, (sizes.prompt,), generator=generator).tolist()
                manager.add_request(asked, request_id=str(i), max_new_tokens=sizes.tokens, eos_token_id=-1)
            ended = 0
            while ended < sizes.streams and time.perf_counter() - began < 120 and manager.is_running():
                result = manager.get_result(timeout=1)
                ended += result is not None and result.is_finished()
            took.append(time.perf_counter() - began)
            manager.stop(block=True)
        if ended < sizes.streams:
            return
    yield Row(name, "transformers, continuous", sizes.streams * sizes.tokens / took[-1], "tok/s")


def _dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
