"""How do quantised bytes become numbers?

The block formats of GGUF as ggml defines them (ggml-common.h, `block_q4_1`, `block_q8_0`): groups of 32 weights with
one fp16 scale `d`, and for Q4_1 one fp16 minimum `m`:

    Q8_0   2 + 32 bytes   w = d * q,  q is int8
    Q4_1   2 + 2 + 16     w = d * q + m;  byte i holds q[i] in its low and q[i + 16] in its high four bits
"""

from __future__ import annotations

import numpy as np
import torch

from homebox.formats.gguf import TensorType

_PLAIN = {TensorType.F32: torch.float32, TensorType.F16: torch.float16, TensorType.BF16: torch.bfloat16}


def dequantise(data: memoryview, kind: TensorType, shape: tuple[int, ...]) -> torch.Tensor:
    """A new fp32 tensor of `shape`, exact: every value of these formats has an fp32."""
    raw = torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())
    if kind in _PLAIN:
        return raw.view(_PLAIN[kind]).float().view(shape)
    blocks = raw.view(-1, kind.block_bytes)
    scale = blocks[:, 0:2].contiguous().view(torch.float16).float()
    if kind is TensorType.Q8_0:
        return (blocks[:, 2:].contiguous().view(torch.int8).float() * scale).view(shape)
    if kind is TensorType.Q4_1:
        minimum = blocks[:, 2:4].contiguous().view(torch.float16).float()
        codes = blocks[:, 4:]
        q = torch.cat((codes & 15, codes >> 4), dim=1).float()
        return (q * scale + minimum).view(shape)
    raise ValueError(f"no arithmetic for {kind}")
