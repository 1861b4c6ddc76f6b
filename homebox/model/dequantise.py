"""How do quantised bytes become numbers, or groups that the kernels read?

The block formats of GGUF as ggml defines them (ggml-common.h, `block_q4_1`, `block_q8_0`): groups of 32 weights with
one fp16 scale `d`, and for Q4_1 one fp16 minimum `m`:

    Q8_0   2 + 32 bytes   w = d * q,  q is int8
    Q4_1   2 + 2 + 16     w = d * q + m;  byte i holds q[i] in its low and q[i + 16] in its high four bits
"""

from __future__ import annotations

import numpy as np
import torch

from homebox.formats.gguf import TensorType
from homebox.kernels.grouped import GROUP, Grouped

_PLAIN = {TensorType.F32: torch.float32, TensorType.F16: torch.float16, TensorType.BF16: torch.bfloat16}


def dequantise(data: memoryview, kind: TensorType, shape: tuple[int, ...]) -> torch.Tensor:
    """A new fp32 tensor of `shape`, exact: every value of these formats has an fp32."""
    if kind in _PLAIN:
        return plain(data, kind, shape).float()
    return grouped(data, kind, (-1, shape[-1])).dequantised().view(shape)


def plain(data: memoryview, kind: TensorType, shape: tuple[int, ...]) -> torch.Tensor:
    """A new tensor of the type that the file has."""
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy()).view(_PLAIN[kind]).view(shape)


def is_plain(kind: TensorType) -> bool:
    return kind in _PLAIN


def grouped(data: memoryview, kind: TensorType, shape: tuple[int, int]) -> Grouped:
    """The same groups of 32 in the canonical layout; nothing is rounded."""
    blocks = torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy()).view(-1, kind.block_bytes)
    rows, columns = shape
    rows = len(blocks) * GROUP // columns if rows < 0 else rows

    def halves(start: int) -> torch.Tensor:
        return blocks[:, start : start + 2].contiguous().view(torch.float16).view(rows, -1)

    if kind is TensorType.Q8_0:
        return Grouped(8, blocks[:, 2:].contiguous().view(torch.int8).view(rows, columns), halves(0))
    if kind is TensorType.Q4_1:
        packed = blocks[:, 4:]
        codes = torch.cat((packed & 15, packed >> 4), dim=1)
        return Grouped(4, codes.view(rows, columns), halves(0), halves(2))
    raise ValueError(f"no arithmetic for {kind}")
