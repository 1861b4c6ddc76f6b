"""`SamplingKernel` on a GPU: draw.py, row by row what kernels/sampling.py says, to the token.

What the gathered tokens of a row do not reach, a nearly flat distribution or a very large top-k, goes the reference's way
on the same device: it sorts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from homebox.kernels.sampling import ONE, REFERENCE, Draw, Peaks, uniform
from homebox.kernels.triton import draw as kernels

TOKENS = 1024  # of a block
MOST = 2048  # tokens of a row that are gathered
LOOK = 6.0  # temperatures below the highest that are gathered first
_MOST_INVERSE = 1e300


class TritonSampling:
    name = "triton"

    def peaks(self, logits: torch.Tensor) -> Peaks:
        zeros = torch.zeros(len(logits), dtype=torch.int32, device=logits.device)
        highest, tokens, _ = self._settle(logits, zeros, zeros.float())
        return Peaks(tokens.tolist(), highest.tolist())

    def masses(self, logits: torch.Tensor) -> list[int]:
        return REFERENCE.masses(logits)

    def likeliest(self, logits: torch.Tensor, count: int) -> list[list[int]]:
        return REFERENCE.likeliest(logits, count)

    def draw(self, logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
        rows = logits[[draw.row for draw in draws]]
        tokens, missed = self.draw_rows(rows, draws)
        found: list[int] = tokens.tolist()
        for i in missed.nonzero().flatten().tolist():
            found[i] = REFERENCE.draw(rows, [draws[i]._replace(row=i)])[0]
        return found

    def draw_rows(self, logits: torch.Tensor, draws: Sequence[Draw]) -> tuple[torch.Tensor, torch.Tensor]:
        """On the device: a token for each row, and whether its gathered tokens did not reach. Temperature 0 is the
        likeliest."""
        device, (count, vocab) = logits.device, logits.shape
        logits = logits.contiguous()

        def numbers(values: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        blocks = -(-vocab // TOKENS)
        padded = 1 << (blocks - 1).bit_length()
        inverse = numbers(
            [min(1.0 / d.temperature, _MOST_INVERSE) if d.temperature else 0.0 for d in draws], torch.float64
        )
        least = numbers([math.ceil(min(d.min_p, 1.0) * ONE) for d in draws], torch.int64)
        top_k = numbers([min(d.top_k, vocab) for d in draws], torch.int32)
        top_p = numbers([d.top_p for d in draws], torch.float64)
        ranked = numbers(
            [int(d.temperature > 0 and bool(d.top_k or d.top_p < 1.0)) for d in draws], torch.int32
        )
        drawn = numbers([uniform(d.seed, d.position) for d in draws], torch.float64)
        temperature = numbers([min(d.temperature, 1e30) for d in draws], torch.float32)
        highest, tokens, floors = self._settle(logits, top_k, temperature)
        sums = torch.empty(count, blocks, dtype=torch.int64, device=device)
        exact = {"enable_fp_fusion": False}
        kernels.weigh[(count, blocks)](
            logits, highest, inverse, least, ranked, sums, vocab, TOKENS=TOKENS, **exact
        )
        kernels.pick[(count,)](
            logits, highest, inverse, least, ranked, drawn, sums, tokens, blocks, vocab, TOKENS=TOKENS,
            BLOCKS=padded, **exact,
        )  # fmt: skip
        counts = torch.zeros(count, dtype=torch.int32, device=device)
        items = torch.empty(count, MOST, dtype=torch.int64, device=device)
        missed = torch.zeros(count, dtype=torch.int32, device=device)
        kernels.gather[(count, blocks)](
            logits, floors, ranked, counts, items, vocab, TOKENS=TOKENS, MOST=MOST, **exact
        )
        kernels.choose[(count,)](
            counts, items, highest, inverse, least, top_k, top_p, ranked, drawn, sums, tokens, missed, blocks, vocab,
            BLOCKS=padded, MOST=MOST, num_warps=8, **exact,
        )  # fmt: skip
        return tokens, missed

    def _settle(
        self, logits: torch.Tensor, top_k: torch.Tensor, temperature: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits = logits.contiguous()
        count, vocab = logits.shape
        blocks = -(-vocab // TOKENS)
        peaks = torch.empty(count, blocks, device=logits.device)
        places = torch.empty(count, blocks, dtype=torch.int32, device=logits.device)
        kernels.survey[(count, blocks)](logits, peaks, places, vocab, TOKENS=TOKENS)
        highest, floors = (torch.empty(count, device=logits.device) for _ in "hf")
        tokens = torch.empty(count, dtype=torch.int32, device=logits.device)
        kernels.settle[(count,)](
            peaks, places, top_k, temperature, highest, tokens, floors, blocks, vocab,
            BLOCKS=1 << (blocks - 1).bit_length(), LOOK=LOOK,
        )  # fmt: skip
        return highest, tokens, floors
