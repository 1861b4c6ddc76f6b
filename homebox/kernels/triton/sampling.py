"""`SamplingKernel` on a GPU: draw.py, row by row what kernels/sampling.py says, to the token.

`choose` is what a step calls, inside a graph if it likes: tensors in, tensors out, nothing that waits for the device and
nothing that allocates. All that a row is asked for lies in one tensor, so that a step copies it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from homebox.kernels.sampling import REFERENCE, Draw, Peaks, wish
from homebox.kernels.triton import draw as kernels

# The columns of a wish, and what is wrong with a row, as numbers of the CPU.
COLUMNS, NUMBER = kernels.WISH.value, kernels.NUMBER.value
BROKEN, EMPTY = kernels.BROKEN.value, kernels.EMPTY.value


@dataclass(frozen=True)
class Sizes:
    """`block`: tokens that are looked at together; 0: so many that a row has 128 to 256 blocks, or blocks of 1024. `most`: tokens
    of a row that are handed in for top-k and top-p. `look`: temperatures below the highest where they end."""

    block: int = 0
    most: int = 4096
    look: float = 8.0

    def constants(self, vocab: int) -> dict[str, float]:
        """Of the kernels, by their names."""
        block = self.block or min(max(_power_of_two(-(-vocab // 256)), 128), 1024)
        return {
            "TOKENS": block,
            "BLOCKS": max(2, _power_of_two(-(-vocab // block))),
            "MOST": self.most,
            "LOOK": self.look,
            "SHIFT": (vocab - 1).bit_length(),
        }


class Room:
    """What the kernels tell each other of up to `rows` rows. A step at a time uses it."""

    def __init__(self, rows: int, vocab: int, device: torch.device, sizes: Sizes) -> None:
        self.constants = sizes.constants(vocab)
        self.blocks = -(-vocab // int(self.constants["TOKENS"]))

        def new(dtype: torch.dtype, *columns: int) -> torch.Tensor:
            return torch.empty(rows, *columns, dtype=dtype, device=device)

        self.peaks, self.places = new(torch.float32, self.blocks), new(torch.int32, self.blocks)
        self.sums = new(torch.int64, self.blocks)
        self.highest, self.floors = new(torch.float32), new(torch.float32)
        self.kinds, self.counts = new(torch.int32), new(torch.int32)
        self.items = new(torch.int64, sizes.most)


class TritonSampling:
    name = "triton"

    def __init__(self, sizes: Sizes = Sizes()) -> None:
        self.sizes = sizes

    def room(self, rows: int, vocab: int, device: torch.device) -> Room:
        return Room(rows, vocab, device, self.sizes)

    def choose(
        self,
        logits: torch.Tensor,
        wishes: torch.Tensor,
        tokens: torch.Tensor,
        flags: torch.Tensor,
        room: Room,
    ) -> None:
        """Into `tokens`, `[rows]` of whole numbers, the token of each row of `logits`, `[rows, vocab]` fp32, contiguous, and into `flags`,
        `[rows]` int32, 0, or BROKEN or EMPTY where there is none: `tokens` then has some token of the vocabulary.
        `wishes`: `[rows, COLUMNS]` fp64, contiguous, each row as `wish` makes it."""
        (rows, vocab), blocks = logits.shape, room.blocks

        def constants(*names: str) -> dict[str, float]:
            return {name: room.constants[name] for name in names}

        kernels.survey[(rows, blocks)](logits, room.peaks, room.places, vocab, **constants("TOKENS"))
        kernels.settle[(rows,)](
            room.peaks, room.places, wishes, room.highest, room.floors, room.kinds, room.counts, tokens, flags, blocks,
            **constants("BLOCKS", "LOOK"),
        )  # fmt: skip
        kernels.weigh[(rows, blocks)](
            logits, wishes, room.peaks, room.highest, room.floors, room.kinds, room.sums, room.counts, room.items, vocab,
            **constants("TOKENS", "MOST", "SHIFT"),
        )  # fmt: skip
        kernels.choose[(rows,)](
            logits, wishes, room.highest, room.floors, room.kinds, room.sums, room.counts, room.items, tokens, blocks,
            vocab, **constants("TOKENS", "BLOCKS", "MOST", "SHIFT"),
        )  # fmt: skip

    def peaks(self, logits: torch.Tensor) -> Peaks:
        tokens, _, room = self._chosen(logits, [Draw(row, 0, 0, 0.0) for row in range(len(logits))])
        return Peaks(tokens.tolist(), room.highest.tolist())

    def masses(self, logits: torch.Tensor) -> list[int]:
        return REFERENCE.masses(logits)

    def likeliest(self, logits: torch.Tensor, count: int) -> list[list[int]]:
        return REFERENCE.likeliest(logits, count)

    def draw(self, logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
        tokens, _, _ = self._chosen(logits[[draw.row for draw in draws]], draws)
        found: list[int] = tokens.tolist()
        return found

    def _chosen(self, logits: torch.Tensor, draws: Sequence[Draw]) -> tuple[torch.Tensor, torch.Tensor, Room]:
        """`choose`, with tensors of its own: a draw for each row."""
        rows, vocab = logits.shape
        wishes = torch.tensor([wish(draw, vocab) for draw in draws], dtype=torch.float64)
        tokens, flags = (torch.empty(rows, dtype=torch.int32, device=logits.device) for _ in "tf")
        room = self.room(rows, vocab, logits.device)
        self.choose(logits.contiguous(), wishes.to(logits.device), tokens, flags, room)
        return tokens, flags, room


class TritonChooser:
    """`choose` with room of its own, for one step at a time."""

    def __init__(self, rows: int, vocab: int, device: torch.device) -> None:
        sizes = Sizes()
        self._sampling = TritonSampling(replace(sizes, most=min(sizes.most, _power_of_two(vocab))))
        self._room = self._sampling.room(rows, vocab, device)

    def choose(
        self, logits: torch.Tensor, wishes: torch.Tensor, tokens: torch.Tensor, flags: torch.Tensor
    ) -> None:
        self._sampling.choose(logits.contiguous(), wishes, tokens, flags, self._room)


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
