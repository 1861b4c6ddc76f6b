"""On the default path a token's numbers are the same to the bit, whoever is computed beside it and in whatever pieces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from homebox.engine.build import Parts, parts
from homebox.kernels.attention import BatchShape
from homebox.wire.frames import Sampling, Start, StepDone, Submit
from tests.engine.conftest import RunningEngine
from tests.kernels.cpu_builds import needs_compiler

pytestmark = [pytest.mark.model, needs_compiler]

LENGTH = 540  # beyond the 512 keys that one thread takes
BESIDE = 32
WIDTH = 34  # blocks of the sequence
KV_BYTES = 64 * 2**20


class Sequence:
    """The default model as the settings have it, and one sequence, told at once into blocks in no order."""

    def __init__(self, model: Path) -> None:
        self.parts: Parts = parts(Start(str(model), kv_bytes=KV_BYTES), lambda *_: None)
        vocabulary = self.parts.compute.spec.vocab_size
        self.ids = torch.randint(3, vocabulary, (LENGTH,), generator=torch.Generator().manual_seed(1))
        self.others = torch.randint(3, vocabulary, (BESIDE,), generator=torch.Generator().manual_seed(2))
        blocks = torch.randperm(self.parts.blocks, generator=torch.Generator().manual_seed(3)).tolist()
        self.table, self.free = blocks[:WIDTH], blocks[WIDTH:]
        self.whole = self.step([0], [LENGTH], [self.table], self.ids)
        self.logits = self.parts.decoder.logits(self.whole)

    def told(self, counts: list[int]) -> torch.Tensor:
        """Hidden states of the sequence's first tokens, in chunks of so many, in other blocks."""
        table = self.free[:WIDTH]
        self.free = self.free[WIDTH:] + table
        hidden, start = [], 0
        for count in counts:
            hidden.append(self.step([start], [count], [table], self.ids[start : start + count]))
            start += count
        return torch.cat(hidden)

    def among_others(self, start: int, count: int) -> torch.Tensor:
        """The states of tokens of the sequence in the middle of 32 others of all lengths."""
        tables = [[block] * WIDTH for block in self.free[-BESIDE:]]  # of whatever is in there
        starts = [(i * 17) % 500 for i in range(BESIDE)]
        half = BESIDE // 2
        hidden = self.step(
            [*starts[:half], start, *starts[half:]],
            [*[1] * half, count, *[1] * half],
            [*tables[:half], self.table, *tables[half:]],
            torch.cat([self.others[:half], self.ids[start : start + count], self.others[half:]]),
        )
        return hidden[half : half + count]

    def step(
        self, starts: list[int], counts: list[int], tables: list[list[int]], ids: torch.Tensor
    ) -> torch.Tensor:
        _, decoder, attention, _ = self.parts
        attention.plan(BatchShape.of(starts, counts, [tables]))
        positions = torch.cat([torch.arange(a, a + n) for a, n in zip(starts, counts, strict=True)])
        return decoder.forward(ids, positions, attention)


@pytest.fixture(scope="module")
def sequence(default_model: Path) -> Iterator[Sequence]:
    with torch.inference_mode():
        yield Sequence(default_model)


def test_the_default_path_is_the_native_one_on_quantised_weights(sequence: Sequence) -> None:
    assert sequence.parts.compute.name.startswith("native ")
    assert sequence.parts.compute.weights == "int4 and int8"


@pytest.mark.parametrize("size", [1, 7, 16, 100])
def test_a_prompt_in_chunks_has_the_bits_of_the_whole(sequence: Sequence, size: int) -> None:
    counts = [size] * {1: 40, 7: 10, 16: 10, 100: 3}[size]
    chunked = sequence.told(counts)
    assert torch.equal(chunked, sequence.whole[: sum(counts)])
    assert torch.equal(sequence.parts.decoder.logits(chunked[-7:]), sequence.logits[: sum(counts)][-7:])


@pytest.mark.parametrize("start", [15, 64, 300, 511, 512, 539])
def test_a_token_alone_has_the_bits_that_it_has_in_a_batch_of_33(sequence: Sequence, start: int) -> None:
    alone = sequence.step([start], [1], [sequence.table], sequence.ids[start : start + 1])
    assert torch.equal(alone, sequence.whole[start : start + 1])
    assert torch.equal(sequence.parts.decoder.logits(alone), sequence.logits[start : start + 1])
    assert torch.equal(sequence.among_others(start, 1), alone)


def test_a_chunk_has_the_bits_that_it_has_beside_32_others(sequence: Sequence) -> None:
    for start, count in ((0, 33), (500, 7)):
        assert torch.equal(sequence.among_others(start, count), sequence.whole[start : start + count])


def test_logits_of_33_rows_are_those_of_each(sequence: Sequence) -> None:
    decoder = sequence.parts.decoder
    for row in (0, 7, 32):
        assert torch.equal(
            decoder.logits(sequence.whole[:33])[row], decoder.logits(sequence.whole[row : row + 1])[0]
        )


def test_an_answer_is_the_same_alone_and_beside_others_that_come_in_small_chunks(default_model: Path) -> None:
    """Three prompts are asked alone first, then again by another person among 17, at most 16 tokens a step."""
    house = RunningEngine(Start(str(default_model), kv_bytes=KV_BYTES, max_chunk_tokens=16, depth=2))
    ids = torch.randint(3, house.ready.vocab_size, (17, 40), generator=torch.Generator().manual_seed(9))
    greedy = Sampling(max_tokens=8, temperature=0.0)
    prompts = [row[: 2 * i + 1].tolist() for i, row in enumerate(ids)]
    asked = (2, 9, 16)
    for i in asked:
        house.submit(Submit(f"alone {i}", "mia", prompts[i], greedy))
        house.run()
    house.submit(*(Submit(str(i), "leo", prompt, greedy) for i, prompt in enumerate(prompts)))
    house.run()
    steps = [frame for frame in house.frames if isinstance(frame, StepDone)]
    assert max(step.running for step in steps) > 5, "they were meant to run together"
    assert max(step.prefill_tokens for step in steps) <= 16
    for i in asked:
        assert len(house.tokens(str(i))) == 8 and house.tokens(str(i)) == house.tokens(f"alone {i}")
