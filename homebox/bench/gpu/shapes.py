"""Which models are measured? Shapes with random weights: how fast a model is does not depend on what it has learnt."""

from __future__ import annotations

import torch

from homebox.kernels.attention import KvKind
from homebox.kernels.fp8 import quantise
from homebox.kernels.grouped import GROUP, Bits, Grouped
from homebox.kernels.linear import Linear, PlainLinear
from homebox.kernels.triton.checks import FEW_ROWS, ROWS, Heads, Scope
from homebox.kernels.triton.linear import Fp8Linear, GroupedLinear
from homebox.model.decoder import LayerWeights, Weights
from homebox.model.spec import DecoderSpec, Rope

SHAPES: dict[str, DecoderSpec] = {
    # Llama 3.1 8B
    "8B": DecoderSpec(
        "llama", 32, 4096, 32, 8, 128, 14336, 128_256, 131_072, 1e-5, Rope(theta=500_000.0), tied_head=False
    ),
    # Qwen3 0.6B, without its norms of heads
    "0.6B": DecoderSpec("llama", 28, 1024, 16, 8, 128, 3072, 151_936, 40_960, 1e-6, tied_head=True),
    "tiny": DecoderSpec("llama", 1, 64, 2, 1, 32, 64, 256, 512, 1e-5, tied_head=True),
}


# What is checked of the kernels: around what these models have, and what others may.
SCOPE = Scope(
    dtype=torch.bfloat16,
    attention=(
        Heads(32, 8, 128),
        Heads(32, 8, 128, kind=KvKind.INT8),
        Heads(32, 8, 128, kind=KvKind.FP8),
        Heads(16, 8, 128),
        Heads(9, 3, 64),
        Heads(8, 8, 80, window=700),
        Heads(8, 4, 96),
        Heads(8, 1, 256, window=512, softcap=50.0),
    ),
    rows=ROWS,
    size=4096,
    tokens=65,
    weights=((4096, 4096), (28672, 4096), (4096, 14336)),
    kinds=("int4", "int8", "fp8"),
    products=(1, 4, 16, 33, 200),
    vocab=128_256,
    draws=36,
)
SMALL_SCOPE = Scope(
    torch.float32, tuple(Heads(4, 2, 64, kind=kind) for kind in KvKind), FEW_ROWS, 96, 3, ((96, 64),),
    ("int4", "int8", "fp8"), (1, 3), 700, 2,
)  # fmt: skip


def weights(spec: DecoderSpec, kind: str, dtype: torch.dtype, device: torch.device) -> Weights:
    """Random ones; `kind` is "dense", "int8", "int4" or "fp8" (the head then is in int8)."""
    generator = torch.Generator(device).manual_seed(1)
    spread = 0.02

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator, dtype=dtype, device=device) * spread

    def linear(rows: int, columns: int, kind: str = kind) -> Linear:
        if kind == "dense":
            return PlainLinear(matrix(rows, columns))
        if kind == "fp8":
            return Fp8Linear(quantise(matrix(rows, columns)), None, device)
        return GroupedLinear(_grouped(rows, columns, 4 if kind == "int4" else 8, generator), None, device)

    def norm() -> torch.Tensor:
        return torch.ones(spec.hidden, dtype=dtype, device=device)

    heads = (spec.heads + 2 * spec.kv_heads) * spec.head_dim
    layers = [
        LayerWeights(
            attention_norm=norm(),
            qkv=linear(heads, spec.hidden),
            output=linear(spec.hidden, spec.heads * spec.head_dim),
            mlp_norm=norm(),
            gate_up=linear(2 * spec.mlp, spec.hidden),
            down=linear(spec.hidden, spec.mlp),
        )
        for _ in range(spec.layers)
    ]
    embedding = matrix(spec.vocab_size, spec.hidden)
    head: Linear = PlainLinear(embedding)
    if kind != "dense":
        head = linear(spec.vocab_size, spec.hidden, "int8")
    elif not spec.tied_head:
        head = linear(spec.vocab_size, spec.hidden)
    return Weights(embedding, layers, norm(), head)


def streamed_bytes(weights: Weights) -> int:
    """What a step of one token reads of them: all but the embedding, of which it reads a row."""
    parts = [part for layer in weights.layers for part in vars(layer).values()]
    return sum(part.nbytes for part in [*parts, weights.norm, weights.head])


def _grouped(rows: int, columns: int, bits: Bits, generator: torch.Generator) -> Grouped:
    """Codes at random, with scales that make numbers of the size of a model's."""
    device, groups = generator.device, columns // GROUP
    scales = torch.full((rows, groups), 0.02 / (4 if bits == 4 else 64), dtype=torch.float16, device=device)
    if bits == 8:
        codes = torch.randint(
            -127, 128, (rows, columns), generator=generator, dtype=torch.int8, device=device
        )
        return Grouped(8, codes, scales)
    codes = torch.randint(0, 16, (rows, columns), generator=generator, dtype=torch.uint8, device=device)
    return Grouped(4, codes, scales, scales * -7.5)
