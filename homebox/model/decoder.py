"""What is computed for a batch of tokens?

The whole decoder, configured by a `DecoderSpec`: embedding, then in each layer normalise, attend, normalise, MLP, each
added to the residual stream; a last norm, and logits only for the rows that need them. Queries, keys and values are
one matmul, so are gate and up. All tokens of a step lie flat, `[tokens, hidden]`, whoever they belong to: only the
attention knows about sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import embedding, linear, rms_norm, silu

from homebox.kernels.attention import Attention
from homebox.model.spec import DecoderSpec


@dataclass
class LayerWeights:
    """`qkv`: `[(heads + 2 * kv_heads) * head_dim, hidden]`, `gate_up`: `[2 * mlp, hidden]`; the rest as usual."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    qkv_bias: torch.Tensor | None = None
    output_bias: torch.Tensor | None = None
    gate_up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None


@dataclass
class Weights:
    embedding: torch.Tensor  # [vocab, hidden]
    layers: list[LayerWeights]
    norm: torch.Tensor
    head: torch.Tensor  # [vocab, hidden]; the embedding itself where tied


class Decoder:
    def __init__(self, spec: DecoderSpec, weights: Weights) -> None:
        self.spec = spec
        self.weights = weights
        device = weights.embedding.device
        self._frequencies = torch.tensor(
            spec.rope.frequencies(spec.head_dim), dtype=torch.float32, device=device
        )

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, attention: Attention) -> torch.Tensor:
        """Hidden states, `[tokens, hidden]`, of `ids` at `positions` (both `[tokens]`); keys and values are written
        through `attention`, whose `plan` was called for this step."""
        spec = self.spec
        rotation = self._rotation(positions)
        x = embedding(ids, self.weights.embedding)
        for index, layer in enumerate(self.weights.layers):
            normed = rms_norm(x, (spec.hidden,), layer.attention_norm, spec.norm_eps)
            qkv = linear(normed, layer.qkv, layer.qkv_bias).view(len(ids), -1, spec.head_dim)
            q, k, v = qkv.split((spec.heads, spec.kv_heads, spec.kv_heads), dim=1)
            attention.write(index, rotate(k, *rotation), v)
            mixed = attention.attend(index, rotate(q, *rotation))
            x = x + linear(mixed.reshape(len(ids), -1), layer.output, layer.output_bias)
            normed = rms_norm(x, (spec.hidden,), layer.mlp_norm, spec.norm_eps)
            gate, up = linear(normed, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
            x = x + linear(silu(gate) * up, layer.down, layer.down_bias)
        return rms_norm(x, (spec.hidden,), self.weights.norm, spec.norm_eps)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[rows, vocab]`, in fp32."""
        return linear(hidden, self.weights.head).float()

    def _rotation(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = positions[:, None].float() * self._frequencies
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of `x`, `[tokens, heads, head_dim]`: the two halves of a head are the pairs that turn (the
    layout of Hugging Face checkpoints)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
