"""What is computed for a batch of tokens, when the CPU's own kernels do it?

The decoder of `decoder.py` with any run of its layers in one native call. Weights stay as the file has them: quantised ones in
groups, bf16 as bf16.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from homebox.kernels.attention import Attention
from homebox.kernels.cpu import abi
from homebox.kernels.cpu.abi import Kind
from homebox.kernels.cpu.attention import NativeAttention
from homebox.kernels.cpu.weights import Packed
from homebox.model.spec import DecoderSpec

_NAMES = {Kind.FLOAT32: "fp32", Kind.BFLOAT16: "bf16", Kind.INT8: "int8", Kind.INT4: "int4"}


@dataclass
class NativeLayer:
    attention_norm: torch.Tensor
    q: Packed
    k: Packed
    v: Packed
    output: Packed
    mlp_norm: torch.Tensor
    gate: Packed
    up: Packed
    down: Packed


@dataclass
class NativeWeights:
    embedding: Packed  # [vocab, hidden]
    layers: list[NativeLayer]
    norm: torch.Tensor
    head: Packed  # [vocab, hidden]; the embedding itself where they are tied

    @property
    def nbytes(self) -> int:
        return sum(m.nbytes for m in self._matrices()) + sum(n.nbytes for n in (self.norm, *self._norms()))

    def kinds(self) -> str:
        """The types that the matrices have, most bytes first: "int4 and int8"."""
        sizes: dict[str, int] = {}
        for matrix in self._matrices():
            name = _NAMES[matrix.kind]
            sizes[name] = sizes.get(name, 0) + matrix.nbytes
        return " and ".join(sorted(sizes, key=lambda name: -sizes[name]))

    def _matrices(self) -> list[Packed]:
        layers = [part for layer in self.layers for part in vars(layer).values() if isinstance(part, Packed)]
        tied = self.head is self.embedding
        return [self.embedding, *layers] if tied else [self.embedding, *layers, self.head]

    def _norms(self) -> list[torch.Tensor]:
        return [norm for layer in self.layers for norm in (layer.attention_norm, layer.mlp_norm)]


def runs_natively(spec: DecoderSpec) -> bool:
    """Whether the native step can compute a model of this shape."""
    return (
        spec.head_dim % abi.LANES == 0
        and spec.head_dim <= abi.MOST_DIMENSIONS
        and spec.hidden % abi.GROUP == 0
        and spec.mlp % abi.GROUP == 0
        and spec.heads * spec.head_dim % abi.GROUP == 0
    )


class NativeDecoder:
    """`attention` is the one whose blocks the layers write; there is one decoder for it."""

    device = torch.device("cpu")

    def __init__(self, spec: DecoderSpec, weights: NativeWeights, attention: NativeAttention) -> None:
        self.spec = spec
        self.weights = weights
        self._attention = attention
        self._functions = attention.functions
        self._frequencies = torch.tensor(spec.rope.frequencies(spec.head_dim), dtype=torch.float32)
        self._layers = (abi.Layer * spec.layers)(*map(self._layer, range(spec.layers)))
        model = abi.Model(
            attention.shape, spec.layers, spec.hidden, spec.mlp, len(attention.windows), spec.norm_eps,
            attention.scale, self._frequencies.data_ptr(), weights.embedding.struct, weights.norm.data_ptr(),
            weights.head.struct, self._layers,
        )  # fmt: skip
        self._handle = self._functions.hb_decoder_new(ctypes.byref(model))

    def __del__(self) -> None:
        if handle := getattr(self, "_handle", None):
            self._functions.hb_decoder_free(handle)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """`[tokens, hidden]`: what enters the first layer."""
        ids = ids.to(torch.int32).contiguous()  # already so in a batch of the engine
        if not 0 <= int(ids.min()) <= int(ids.max()) < self.spec.vocab_size:
            raise IndexError(f"a token id is not one of the {self.spec.vocab_size} of the model")
        x = torch.empty(len(ids), self.spec.hidden)
        self._functions.hb_decoder_embed(self._handle, ids.data_ptr(), len(ids), x.data_ptr())
        return x

    def through(
        self, layers: range, x: torch.Tensor, positions: torch.Tensor, attention: Attention
    ) -> torch.Tensor:
        """`x`, changed in place, behind these layers. `attention.plan` was told its tokens' places, the `positions`."""
        assert attention is self._attention
        self._functions.hb_decoder_layers(
            self._handle, self._attention.batches, layers.start, layers.stop, x.data_ptr()
        )
        return x

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        """Hidden states, `[tokens, hidden]`, out of what the last layer left."""
        hidden = torch.empty_like(x)
        self._functions.hb_decoder_norm(self._handle, x.data_ptr(), len(x), hidden.data_ptr())
        return hidden

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, attention: Attention) -> torch.Tensor:
        """Hidden states, `[tokens, hidden]`, of `ids` behind all layers."""
        return self.norm(self.through(range(self.spec.layers), self.embed(ids), positions, attention))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[rows, vocab]`, in fp32."""
        hidden = hidden.contiguous()
        out = torch.empty(len(hidden), self.spec.vocab_size)
        self._functions.hb_decoder_logits(self._handle, hidden.data_ptr(), len(hidden), out.data_ptr())
        return out

    def _layer(self, index: int) -> abi.Layer:
        w = self.weights.layers[index]
        keys, values = self._attention.blocks(index)
        return abi.Layer(
            w.attention_norm.data_ptr(), w.q.struct, w.k.struct, w.v.struct, w.output.struct,
            w.mlp_norm.data_ptr(), w.gate.struct, w.up.struct, w.down.struct, keys, values,
            self._attention.cache.layer_groups[index], 0,
        )  # fmt: skip
