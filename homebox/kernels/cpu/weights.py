"""How does a weight get into the layout that the native kernels read?

In come plain float matrices or `Grouped` ones; out comes `Packed`: tiles in memory of their own (linear.h says how they
lie). Packing changes no value.
"""

from __future__ import annotations

import ctypes

import torch

from homebox.kernels.cpu import abi
from homebox.kernels.cpu.abi import Kind
from homebox.kernels.cpu.memory import Arena
from homebox.kernels.grouped import GROUP, Grouped

_FLOATS = {torch.float32: Kind.FLOAT32, torch.bfloat16: Kind.BFLOAT16}


class Packed:
    """A weight, `[out, in]`, and its bias. `struct` is what the kernels get; it is valid as long as this object is."""

    def __init__(
        self,
        functions: ctypes.CDLL,
        arena: Arena,
        kind: Kind,
        shape: tuple[int, int],
        bias: torch.Tensor | None,
        fine: bool,
    ) -> None:
        out, inner = shape
        self.functions = functions
        self.kind, self.shape = kind, shape
        self.data = arena.take(functions.hb_packed_bytes(kind, out, inner))
        self.bias = None
        if bias is not None:
            self.bias = torch.zeros(-(-out // abi.LANES) * abi.LANES)
            self.bias[:out] = bias
        self.struct = abi.Weight(
            kind,
            out,
            inner,
            fine,
            self.data.data_ptr(),
            self.bias.data_ptr() if self.bias is not None else None,
        )
        self.nbytes = self.data.nbytes + (self.bias.nbytes if self.bias is not None else 0)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`[rows, in]` fp32 to `[rows, out]`."""
        x = x.contiguous()
        out = torch.empty(len(x), self.shape[0])
        self.functions.hb_multiply(ctypes.byref(self.struct), x.data_ptr(), len(x), out.data_ptr())
        return out

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """These rows of the weight as fp32, `[len(indices), in]`."""
        indices = indices.to(torch.int64).contiguous()
        out = torch.empty(len(indices), self.shape[1])
        self.functions.hb_unpack_rows(
            ctypes.byref(self.struct), indices.data_ptr(), len(indices), out.data_ptr()
        )
        return out


def pack(
    functions: ctypes.CDLL,
    arena: Arena,
    weight: torch.Tensor | Grouped,
    bias: torch.Tensor | None = None,
    *,
    fine: bool = False,
) -> Packed:
    """fp32 and bf16 matrices keep their type, other floats become fp32; grouped ones keep their bits. The second
    dimension is a multiple of 32. `fine`: an integer weight meets its inputs rounded to 12 bits, not to 8."""
    out, inner = weight.shape
    assert inner % GROUP == 0, f"{inner} inputs are no groups of {GROUP}"
    if isinstance(weight, Grouped):
        kind = Kind.INT4 if weight.bits == 4 else Kind.INT8
        packed = Packed(functions, arena, kind, (out, inner), bias, fine)
        codes, scales = weight.codes.contiguous(), weight.scales.contiguous()
        minimums = weight.minimums.contiguous() if weight.minimums is not None else None
        functions.hb_pack_integer(
            kind, out, inner, codes.data_ptr(), scales.data_ptr(),
            minimums.data_ptr() if minimums is not None else None, packed.data.data_ptr(),
        )  # fmt: skip
        return packed
    values = (weight if weight.dtype in _FLOATS else weight.float()).contiguous()
    packed = Packed(functions, arena, _FLOATS[values.dtype], (out, inner), bias, fine)
    functions.hb_pack_float(packed.kind, out, inner, values.data_ptr(), packed.data.data_ptr())
    return packed
