"""What is this model, in numbers?

One decoder serves many families; what differs between them is data, and this is that data. Read from a Hugging Face
`config.json` (field names of transformers' LlamaConfig) or from GGUF metadata (the `<arch>.*` keys of the GGUF
specification). A field that we do not understand and that would change the result is an error, never ignored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from homebox.errors import BadFile

# Families whose arithmetic the decoder knows. The hidden layout has room for the rest (ENGINE: model code).
HF_FAMILIES = ("llama",)
GGUF_FAMILIES = ("llama",)
MOST_LAYERS, MOST = 4096, 2**31  # beyond these a file is not to be believed

_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@dataclass(frozen=True)
class Rope:
    """Rotary embedding. `kind`: "default", "linear" (positions divided by `factor`), or "llama3" (long wavelengths
    divided, short ones kept, smooth between; Llama 3.1 model card)."""

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192

    def frequencies(self, dim: int) -> list[float]:
        """Radians a position for each of the dim / 2 rotated pairs."""
        base = [self.theta ** (-i / dim) for i in range(0, dim, 2)]
        if self.kind == "linear":
            return [f / self.factor for f in base]
        if self.kind == "llama3":
            return [self._llama3(f) for f in base]
        return base

    def _llama3(self, frequency: float) -> float:
        wavelength = 2 * math.pi / frequency
        if wavelength > self.original_context / self.low_freq_factor:
            return frequency / self.factor
        if wavelength < self.original_context / self.high_freq_factor:
            return frequency
        smooth = self.original_context / wavelength - self.low_freq_factor
        smooth /= self.high_freq_factor - self.low_freq_factor
        return (1 - smooth) * frequency / self.factor + smooth * frequency


@dataclass(frozen=True)
class DecoderSpec:
    """All that the decoder needs to know. Sizes in elements, `context` in tokens. `windows[layer]`: how far back a
    query sees, None is all."""

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab_size: int
    context: int
    norm_eps: float
    rope: Rope = field(default_factory=Rope)
    tied_head: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    windows: tuple[int | None, ...] = ()

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "mlp", "vocab_size", "context"):
            if not 1 <= getattr(self, name) < (MOST_LAYERS if name == "layers" else MOST):
                raise BadFile(f"the model says {name} = {getattr(self, name)}")
        if not self.windows:
            object.__setattr__(self, "windows", (None,) * self.layers)
        if self.heads % self.kv_heads:
            raise BadFile(f"{self.heads} query heads cannot share {self.kv_heads} key heads")


def gguf_name(name: str) -> str:
    """What GGUF calls the tensor that checkpoints of Hugging Face call `name`."""
    stem, kind = name.rsplit(".", 1)
    layer = ""
    if stem.startswith("model.layers."):
        _, _, index, stem = stem.split(".", 3)
        layer = f"blk.{index}."
    return f"{layer}{_GGUF_NAMES[stem]}.{kind}"


def from_hf(config: dict[str, Any], where: str) -> DecoderSpec:
    """The spec of a Hugging Face `config.json`. Raises BadFile naming what is not supported."""
    family = config.get("model_type")
    if "auto_map" in config:
        raise BadFile(f"{where}: the model brings its own code (auto_map), which homebox never runs")
    if family not in HF_FAMILIES:
        raise BadFile(
            f"{where}: family {family!r} is not supported yet", hint=f"Supported: {', '.join(HF_FAMILIES)}."
        )
    if config.get("hidden_act", "silu") != "silu":
        raise BadFile(
            f"{where}: activation {config['hidden_act']!r} is not supported; the Llama family uses silu"
        )
    if config.get("quantization_config"):
        raise BadFile(
            f"{where}: quantised safetensors are not supported yet; use the bf16 original or a GGUF"
        )
    try:
        heads = int(config["num_attention_heads"])
        return DecoderSpec(
            family=family,
            layers=int(config["num_hidden_layers"]),
            hidden=int(config["hidden_size"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
            mlp=int(config["intermediate_size"]),
            vocab_size=int(config["vocab_size"]),
            context=int(config.get("max_position_embeddings", 2048)),
            norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope=_hf_rope(config, where),
            tied_head=bool(config.get("tie_word_embeddings", False)),
            attention_bias=bool(config.get("attention_bias", False)),
            mlp_bias=bool(config.get("mlp_bias", False)),
        )
    except KeyError as error:
        raise BadFile(f"{where}: {error.args[0]} is missing") from None
    except (TypeError, ValueError) as error:
        raise BadFile(f"{where}: {error}") from None


def _hf_rope(config: dict[str, Any], where: str) -> Rope:
    # transformers 5 writes rope_parameters (with rope_theta inside), 4 wrote rope_theta and rope_scaling.
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind not in ("default", "linear", "llama3"):
        raise BadFile(
            f"{where}: rope type {kind!r} is not supported", hint="Supported: default, linear, llama3."
        )
    return Rope(
        theta=theta,
        kind=kind,
        factor=float(rope.get("factor", 1.0)),
        low_freq_factor=float(rope.get("low_freq_factor", 1.0)),
        high_freq_factor=float(rope.get("high_freq_factor", 4.0)),
        original_context=int(rope.get("original_max_position_embeddings", 8192)),
    )


def from_gguf(metadata: dict[str, Any], tensors: dict[str, tuple[int, ...]], where: str) -> DecoderSpec:
    """The spec of a GGUF file; `tensors` are names and shapes. Raises BadFile naming what is not supported."""
    family = metadata.get("general.architecture")
    if family not in GGUF_FAMILIES:
        raise BadFile(
            f"{where}: architecture {family!r} is not supported yet",
            hint=f"Supported: {', '.join(GGUF_FAMILIES)}.",
        )

    def get(key: str, default: Any = None) -> Any:
        value = metadata.get(f"{family}.{key}", default)
        if value is None:
            raise BadFile(f"{where}: {family}.{key} is missing")
        return value

    if int(get("expert_count", 0)):
        raise BadFile(f"{where}: mixtures of experts are not supported yet")
    if get("rope.scaling.type", "none") not in ("none", "linear"):
        raise BadFile(
            f"{where}: rope scaling {get('rope.scaling.type')!r} is not supported in GGUF files yet"
        )
    if "rope_freqs.weight" in tensors:
        raise BadFile(
            f"{where}: this file scales its rotary frequencies (Llama 3.1); only the safetensors form is supported yet"
        )
    try:
        heads, hidden = int(get("attention.head_count")), int(get("embedding_length"))
        head_dim = int(get("attention.key_length", hidden // heads))
        if int(get("rope.dimension_count", head_dim)) != head_dim:
            raise BadFile(f"{where}: only part of each head is rotated, which is not supported yet")
        return DecoderSpec(
            family=family,
            layers=int(get("block_count")),
            hidden=hidden,
            heads=heads,
            kv_heads=int(get("attention.head_count_kv", heads)),
            head_dim=head_dim,
            mlp=int(get("feed_forward_length")),
            vocab_size=tensors["token_embd.weight"][0],
            context=int(get("context_length")),
            norm_eps=float(get("attention.layer_norm_rms_epsilon")),
            rope=Rope(
                theta=float(get("rope.freq_base", 10000.0)),
                kind="linear" if get("rope.scaling.type", "none") == "linear" else "default",
                factor=float(get("rope.scaling.factor", 1.0)),
            ),
            tied_head="output.weight" not in tensors,
            attention_bias="blk.0.attn_q.bias" in tensors,
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise BadFile(f"{where}: {error!r} in the metadata") from None
