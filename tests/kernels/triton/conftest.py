"""Triton's interpreter runs the kernels here, on the CPU: the same source that is compiled for a GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")
