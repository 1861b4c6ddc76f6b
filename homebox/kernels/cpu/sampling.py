"""Choosing tokens with the native kernel: native/sampling.cpp behind the interface of kernels/sampling.py."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence

import torch

from homebox.kernels.sampling import Draw, Peaks

_POINTER, _INT64 = ctypes.c_void_p, ctypes.c_int64
_ROWS = (_POINTER, _INT64, _INT64, _INT64)  # logits, rows, vocab, stride
_WISH = struct.Struct("=qqQqddd")  # `struct Wish` in the source
_SEED_MASK = (1 << 64) - 1


class NativeSampling:
    """Rows are shared out among the threads of the kernel library."""

    name = "native"

    def __init__(self, library: ctypes.CDLL) -> None:
        self._peaks = _function(library.hb_sampling_peaks, *_ROWS, _POINTER, _POINTER)
        self._masses = _function(library.hb_sampling_masses, *_ROWS, _POINTER)
        self._likeliest = _function(library.hb_sampling_likeliest, *_ROWS, _INT64, _POINTER)
        self._draw = _function(library.hb_sampling_draw, _POINTER, _INT64, _INT64, _POINTER, _INT64, _POINTER)

    def peaks(self, logits: torch.Tensor) -> Peaks:
        tokens = torch.empty(len(logits), dtype=torch.int64)
        highest = torch.empty(len(logits), dtype=torch.float32)
        self._peaks(*_rows(logits), tokens.data_ptr(), highest.data_ptr())
        return Peaks(tokens.tolist(), highest.tolist())

    def masses(self, logits: torch.Tensor) -> list[int]:
        masses = torch.empty(len(logits), dtype=torch.int64)
        self._masses(*_rows(logits), masses.data_ptr())
        return masses.tolist()

    def likeliest(self, logits: torch.Tensor, count: int) -> list[list[int]]:
        tokens = torch.empty(len(logits), min(count, logits.shape[1]), dtype=torch.int64)
        self._likeliest(*_rows(logits), tokens.shape[1], tokens.data_ptr())
        return tokens.tolist()

    def draw(self, logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
        pointer, rows, vocab, stride = _rows(logits)
        wishes = b"".join([_packed(draw) for draw in draws])
        assert all(0 <= draw.row < rows for draw in draws)
        tokens = torch.empty(len(draws), dtype=torch.int64)
        self._draw(pointer, vocab, stride, wishes, len(draws), tokens.data_ptr())
        return tokens.tolist()


def _packed(draw: Draw) -> bytes:
    row, seed, position, temperature, top_k, top_p, min_p = draw
    return _WISH.pack(row, position, seed & _SEED_MASK, top_k, temperature, top_p, min_p)


def _rows(logits: torch.Tensor) -> tuple[int, int, int, int]:
    """Where the rows lie. The kernel reads what it is told to read, so this is where it is checked."""
    assert logits.dtype == torch.float32 and logits.device.type == "cpu" and logits.stride(1) == 1
    return logits.data_ptr(), logits.shape[0], logits.shape[1], logits.stride(0)


def _function(function: ctypes._NamedFuncPointer, *arguments: type) -> ctypes._NamedFuncPointer:
    function.argtypes, function.restype = arguments, None
    return function
