"""Triton's interpreter runs the kernels here, on the CPU: the same source that is compiled for a GPU."""

from __future__ import annotations

import importlib.util
import platform
from typing import Any

from tests.engine.conftest import engine, tiny_model  # noqa: F401


def _launch_without_looking_at_every_call() -> None:
    """For each function that a kernel calls, each `tl.sum`, the interpreter replaces all of triton.language anew: three
    quarters of its time. Once a launch is enough."""
    import triton.language as tl
    from triton.runtime import interpreter

    patch = interpreter._patch_lang

    def seldom(function: Any) -> Any:
        modules = [value for value in function.__globals__.values() if value is tl or value is tl.core]
        if any(tl.core.is_builtin(module.load) for module in modules):
            return patch(function)
        return interpreter._LangPatchScope()

    interpreter._patch_lang = seldom


if (platform.system(), platform.machine()) == ("Linux", "x86_64") or importlib.util.find_spec("triton"):
    _launch_without_looking_at_every_call()  # where the development extra brings Triton, its absence is a failure
else:
    collect_ignore_glob = ["*"]
