"""How is a kernel compiled? As it says itself, wherever it is launched, and in the compile test.

What depends on the GPU and the shape comes with a launch, from tuning.py. What does not is said at the kernel, floating-point
fusion among it: a default may change with a version or with the environment, and with it a sampled token.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import triton


class Kernel:
    """`kernel[grid](*arguments, **constants)`, as in Triton."""

    def __init__(self, function: Any, options: dict[str, Any]) -> None:
        self.function = function
        self.options = options

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        return partial(self.function[grid], **self.options)


def kernel(*, exact: bool = False, **options: Any) -> Callable[[Callable[..., None]], Kernel]:
    """`exact`: every step rounds once, no multiply is fused with an add. `options`: `num_warps`, where it is always the same."""

    def made(function: Callable[..., None]) -> Kernel:
        return Kernel(triton.jit(function), {"enable_fp_fusion": not exact, **options})

    return made
