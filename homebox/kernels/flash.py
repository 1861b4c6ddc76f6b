"""FlashAttention 3, where somebody has installed it: may it be used on this GPU, and how is it called?

It reads pages of any size in place, and takes every number of a step from the device, so it can be captured. (Version 2
wants pages of a multiple of 256 tokens, where ours are blocks of 16.) What is not installed is not imported.

What it checks and how it treats its arguments: hopper/flash_attn_interface.py and hopper/flash_api_stable.cpp of
github.com/Dao-AILab/flash-attention; which GPUs it is compiled for: hopper/setup.py.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from homebox.kernels.chunks import Chunks, Segments

MODULE, EXTENSION = "flash_attn_interface", "flash_attn_3"
_DISTRIBUTIONS = ("flash_attn_3", "flash-attn-3", "flashattn-hopper")
# Compiled for 8.0, which 8.6 and 8.9 run as it is, and for 9.0a, which runs on 9.0 alone.
CAPABILITIES = {(8, 0), (8, 6), (8, 9), (9, 0)}
DTYPES = {torch.float16, torch.bfloat16}


class Library(NamedTuple):
    """`build` is another one after it was compiled or installed anew. `load` raises whatever its import raises."""

    name: str
    build: str
    load: Callable[[], Chunks]


class FlashAttention:
    def __init__(self, name: str, attend: Callable[..., Any]) -> None:
        """`attend`: the library's `flash_attn_with_kvcache`."""
        self.name = name
        self._attend = attend

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, segments: Segments, window: int | None, scale: float,
        softcap: float,
    ) -> torch.Tensor:  # fmt: skip
        made: torch.Tensor = self._attend(
            q, k, v, cache_seqlens=segments.seen, page_table=segments.pages, cu_seqlens_q=segments.borders,
            max_seqlen_q=len(q),  # of one row; an upper bound, so that it depends on nothing but a captured step's size
            softmax_scale=scale, causal=True, window_size=(-1, -1) if window is None else (window - 1, 0), softcap=softcap,
            num_splits=1,  # without further sums in an order that depends on the GPU's load
        )  # fmt: skip
        return made


def find(capability: tuple[int, int] | None) -> Library | str | None:
    """The library, why it is of no use here, or None where there is none. `capability`: None is a GPU that is not NVIDIA's."""
    if (found := importlib.util.find_spec(MODULE)) is None:
        return _second()
    version = next(filter(None, map(_version, _DISTRIBUTIONS)), "3")
    name = f"flash-attn {version}"
    if capability is None:
        return f"{name} is installed, but has not been tried yet on a GPU that is not NVIDIA's"
    if capability not in CAPABILITIES:
        return f"{name} is installed, but has no kernels for this GPU (capability {capability[0]}.{capability[1]})"
    return Library(name, _build(found.origin), lambda: _loaded(name))


def _second() -> str | None:
    version = _version("flash-attn")
    if version is None:
        return None
    return f"flash-attn {version} is installed, but reads pages of 256 tokens and multiples of that, where ours have 16"


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _build(interface: str | None) -> str:
    """Sizes and times of what would be loaded."""
    files = [Path(interface)] if interface else []
    if (extension := importlib.util.find_spec(EXTENSION)) is not None:
        for folder in extension.submodule_search_locations or ():
            files += sorted(Path(folder).glob("*.so"))
    found = ((file.name, file.stat()) for file in files if file.is_file())
    return " ".join(f"{name}:{stat.st_size}:{stat.st_mtime_ns}" for name, stat in found)


def _loaded(name: str) -> Chunks:
    return FlashAttention(name, importlib.import_module(MODULE).flash_attn_with_kvcache)
