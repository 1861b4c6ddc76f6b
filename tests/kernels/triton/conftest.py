"""Triton's interpreter runs the kernels here, on the CPU: the same source that is compiled for a GPU."""

from __future__ import annotations

import importlib.util
import platform
from typing import Any

from tests.engine.conftest import engine, tiny_model  # noqa: F401


def _prepare_the_interpreter() -> None:
    """For each function that a kernel calls, each `tl.sum`, it replaces all of triton.language anew: three quarters of
    its time. Once a launch is enough. And that of 3.6, which torch 2.11 pins, has a loop's bounds as arrays, which
    numpy 2.4 takes for no numbers."""
    import triton.language as tl
    from triton.runtime import interpreter

    patch, patch_tensor = interpreter._patch_lang, interpreter._patch_lang_tensor

    def seldom(function: Any) -> Any:
        modules = [value for value in function.__globals__.values() if value is tl or value is tl.core]
        if any(tl.core.is_builtin(module.load) for module in modules):
            return patch(function)
        return interpreter._LangPatchScope()

    def with_bounds(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    interpreter._patch_lang, interpreter._patch_lang_tensor = seldom, with_bounds


if (platform.system(), platform.machine()) == ("Linux", "x86_64") or importlib.util.find_spec("triton"):
    _prepare_the_interpreter()  # where the development extra brings Triton, its absence is a failure
else:
    collect_ignore_glob = ["*"]
