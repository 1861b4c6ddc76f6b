"""What is computed for a batch of tokens?

The whole decoder, configured by a `DecoderSpec`: embedding, then in each layer normalise, attend, normalise, MLP, each
added to the residual stream; a last norm, and logits only for the rows that need them. Queries, keys and values are
one matmul, so are gate and up. All tokens of a step lie flat, `[tokens, hidden]`, whoever they belong to: only the
attention knows about sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn.functional import embedding, rms_norm, silu

from homebox.kernels.attention import Attention
from homebox.kernels.linear import Linear
from homebox.model.spec import DecoderSpec


@dataclass
class LayerWeights:
    """`qkv`: hidden to (heads + 2 * kv_heads) * head_dim, `gate_up`: hidden to 2 * mlp; the rest as usual."""

    attention_norm: torch.Tensor
    qkv: Linear
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


@dataclass
class Weights:
    embedding: torch.Tensor  # [vocab, hidden]
    layers: list[LayerWeights]
    norm: torch.Tensor
    head: Linear  # hidden to vocab


class AnyDecoder(Protocol):
    """What all decoders have, whatever computes them."""

    spec: DecoderSpec
    device: torch.device

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, attention: Attention) -> torch.Tensor:
        """Hidden states, `[tokens, hidden]`, of `ids` behind all layers."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[rows, vocab]`, in fp32."""


class Decoder:
    def __init__(self, spec: DecoderSpec, weights: Weights) -> None:
        self.spec = spec
        self.weights = weights
        self.device = weights.embedding.device
        self._frequencies = torch.tensor(
            spec.rope.frequencies(spec.head_dim), dtype=torch.float32, device=self.device
        )

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """`[tokens, hidden]`: what enters the first layer."""
        return embedding(ids, self.weights.embedding)

    def through(
        self, layers: range, x: torch.Tensor, positions: torch.Tensor, attention: Attention
    ) -> torch.Tensor:
        """What these layers make of `x`, `[tokens, hidden]`, at `positions`, `[tokens]`; keys and values are written
        through `attention`, whose `plan` was told these tokens."""
        spec = self.spec
        rotation = self._rotation(positions)
        for index in layers:
            layer = self.weights.layers[index]
            normed = rms_norm(x, (spec.hidden,), layer.attention_norm, spec.norm_eps)
            qkv = layer.qkv(normed).view(len(x), -1, spec.head_dim)
            q, k, v = qkv.split((spec.heads, spec.kv_heads, spec.kv_heads), dim=1)
            attention.write(index, rotate(k, *rotation), v)
            mixed = attention.attend(index, rotate(q, *rotation))
            x = x + layer.output(mixed.reshape(len(x), -1))
            normed = rms_norm(x, (spec.hidden,), layer.mlp_norm, spec.norm_eps)
            gate, up = layer.gate_up(normed).chunk(2, dim=-1)
            x = x + layer.down(silu(gate) * up)
        return x

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        """Hidden states, `[tokens, hidden]`, out of what the last layer left."""
        return rms_norm(x, (self.spec.hidden,), self.weights.norm, self.spec.norm_eps)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, attention: Attention) -> torch.Tensor:
        """Hidden states, `[tokens, hidden]`, of `ids` behind all layers."""
        return self.norm(self.through(range(self.spec.layers), self.embed(ids), positions, attention))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[rows, vocab]`, in fp32."""
        return self.weights.head(hidden).float()

    def _rotation(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = positions[:, None].float() * self._frequencies
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of `x`, `[tokens, heads, head_dim]`: the two halves of a head are the pairs that turn (the
    layout of Hugging Face checkpoints)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
