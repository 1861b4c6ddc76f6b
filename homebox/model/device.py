"""What is computed for a batch of tokens, on a GPU?

The decoder of `decoder.py` in few launches: residual and norm in one, norm of heads, rotation and storing in one, the
gate in one; matmuls by the library, or by our own kernels where the weights are quantised. Nothing waits for the device
and nothing depends on what it makes, so that a step can be captured.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import embedding

from homebox.kernels.attention import Attention, Placed, StepWork
from homebox.kernels.triton.attention import TritonAttention
from homebox.kernels.triton.fused import add_and_norm, silu_and_multiply
from homebox.kernels.triton.work import Numbers
from homebox.model.decoder import Weights
from homebox.model.spec import DecoderSpec


class DeviceDecoder:
    """`attention` is the one whose cache the layers write."""

    def __init__(self, spec: DecoderSpec, weights: Weights, attention: TritonAttention) -> None:
        self.spec, self.weights = spec, weights
        self.device = weights.norm.device
        self.windows, self.block_size = attention.windows, attention.cache.block_size
        self._attention = attention
        self._frequencies = torch.tensor(
            spec.rope.frequencies(spec.head_dim), dtype=torch.float32, device=self.device
        )

    def work(self, starts: Numbers, counts: Numbers) -> StepWork:
        return self._attention.work(starts, counts)

    def make_room(self, work: StepWork) -> bool:
        return self._attention.make_room(work)

    def states(self, ids: torch.Tensor, positions: torch.Tensor, placed: Placed, many: bool) -> torch.Tensor:
        """Hidden states, `[tokens, hidden]`, of `ids` at `positions`, both `[tokens]` int32; `many`: whether attention has
        items of many queries."""
        spec, attention, eps = self.spec, self._attention, self.spec.norm_eps
        attention.use(placed, many)
        angles = positions[:, None].float() * self._frequencies
        cosines, sines = angles.cos(), angles.sin()
        x = embedding(ids, self.weights.embedding)
        layers = self.weights.layers
        normed = add_and_norm(x, None, layers[0].attention_norm, eps)
        for index, layer in enumerate(layers):
            queries = attention.enter(index, layer.qkv(normed), cosines, sines, eps)
            mixed = attention.attend(index, queries)
            output = layer.output(mixed.view(len(ids), -1))
            normed = add_and_norm(x, output, layer.mlp_norm, eps)
            made = layer.down(silu_and_multiply(layer.gate_up(normed)))
            last = index + 1 == spec.layers
            normed = add_and_norm(
                x, made, self.weights.norm if last else layers[index + 1].attention_norm, eps
            )
        return normed

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, attention: Attention) -> torch.Tensor:
        """The same for tokens that `attention.plan` was told."""
        assert attention is self._attention
        return self.states(ids.to(self.device), positions.to(self.device), *self._attention.placed())

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[rows, vocab]`, in fp32."""
        return self.weights.head(hidden).float()

    def clear(self, places: Sequence[torch.Tensor]) -> None:
        """Zero keys and values; `places[group]`: `[tokens]` int64, on the CPU."""
        self._attention.cache.clear_places(places)
