"""Triton's interpreter runs the kernels here, on the CPU: the same source that is compiled for a GPU."""

from __future__ import annotations

import pytest

triton = pytest.importorskip("triton")

with triton.knobs.runtime.scope():
    triton.knobs.runtime.interpret = True  # asked when a kernel is defined
    import homebox.kernels.triton.enter
    import homebox.kernels.triton.paged
    import homebox.kernels.triton.quantised
    import homebox.kernels.triton.rows  # noqa: F401
