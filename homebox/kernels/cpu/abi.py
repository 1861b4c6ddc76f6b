"""What do the native kernels look like from Python?

The twins of the structures in `native/*.h`, field by field, and the signatures of what the library exports. Addresses
are plain numbers: whoever fills one keeps the tensor behind it alive.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_float, c_int, c_int32, c_int64, c_void_p
from enum import IntEnum

LANES = 16  # outputs of a tile, keys of a block
GROUP = 32  # inputs that share a scale
BLOCK = 16  # tokens of a block
MOST_DIMENSIONS = 512  # of a head


class Kind(IntEnum):
    """How a weight is stored (linear.h)."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2
    INT4 = 3


class KvKind(IntEnum):
    """How keys and values are stored (attention.h)."""

    FLOAT32 = 0
    BFLOAT16 = 1


class Weight(Structure):
    _fields_ = (
        ("kind", c_int32), ("out", c_int32), ("in_", c_int32), ("fine", c_int32), ("data", c_void_p),
        ("bias", c_void_p),
    )  # fmt: skip


class Shape(Structure):
    _fields_ = (("heads", c_int32), ("kv_heads", c_int32), ("head_dim", c_int32), ("kv_kind", c_int32))


class Batch(Structure):
    _fields_ = (
        ("rows", c_int32), ("tokens", c_int32), ("width", c_int32), ("window", c_int32), ("slots", c_void_p),
        ("starts", c_void_p), ("counts", c_void_p), ("tables", c_void_p),
    )  # fmt: skip


class Layer(Structure):
    _fields_ = (
        ("attention_norm", c_void_p), ("q", Weight), ("k", Weight), ("v", Weight), ("output", Weight),
        ("mlp_norm", c_void_p), ("gate", Weight), ("up", Weight), ("down", Weight), ("keys", c_void_p),
        ("values", c_void_p), ("group", c_int32), ("unused", c_int32),
    )  # fmt: skip


class Model(Structure):
    _fields_ = (
        ("shape", Shape), ("layers", c_int32), ("hidden", c_int32), ("mlp", c_int32), ("groups", c_int32),
        ("eps", c_float), ("scale", c_float), ("frequencies", c_void_p), ("embedding", Weight), ("norm", c_void_p),
        ("head", Weight), ("layer", POINTER(Layer)),
    )  # fmt: skip


_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "hb_threads": (None, (c_int, POINTER(c_int))),
    "hb_packed_bytes": (c_int64, (c_int, c_int, c_int)),
    "hb_pack_integer": (None, (c_int, c_int, c_int, c_void_p, c_void_p, c_void_p, c_void_p)),
    "hb_pack_float": (None, (c_int, c_int, c_int, c_void_p, c_void_p)),
    "hb_unpack_rows": (None, (POINTER(Weight), c_void_p, c_int, c_void_p)),
    "hb_multiply": (None, (POINTER(Weight), c_void_p, c_int, c_void_p)),
    "hb_write_kv": (None, (POINTER(Shape), POINTER(Batch), c_void_p, c_void_p, c_void_p, c_void_p)),
    "hb_attend": (None, (POINTER(Shape), POINTER(Batch), c_void_p, c_void_p, c_void_p, c_void_p)),
    "hb_decoder_new": (c_void_p, (POINTER(Model),)),
    "hb_decoder_free": (None, (c_void_p,)),
    "hb_decoder_embed": (None, (c_void_p, c_void_p, c_int, c_void_p)),
    "hb_decoder_layers": (None, (c_void_p, POINTER(Batch), c_int, c_int, c_void_p)),
    "hb_decoder_norm": (None, (c_void_p, c_void_p, c_int, c_void_p)),
    "hb_decoder_logits": (None, (c_void_p, c_void_p, c_int, c_void_p)),
}


def declare(functions: ctypes.CDLL) -> ctypes.CDLL:
    """The library, with the types of all its functions."""
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(functions, name)
        function.restype, function.argtypes = result, arguments
    return functions
