"""Do all kernels compile for every GPU that we mean to run on? Without one: `python -m homebox.kernels.triton.compile`.

What comes out is thrown away; a kernel that a target cannot hold (types, shared memory) is found here and not on
somebody's machine. Floating-point fusion is set, not left to a default: fused multiply-adds wherever they fit, except
where a kernel says otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

# target: backend, architecture, threads of a warp, shared bytes of a program
TARGETS: dict[str, tuple[str, int | str, int, int]] = {
    "sm_80": ("cuda", 80, 32, 163 << 10),
    "sm_86": ("cuda", 86, 32, 99 << 10),
    "sm_89": ("cuda", 89, 32, 99 << 10),
    "sm_90": ("cuda", 90, 32, 227 << 10),
    "sm_100": ("cuda", 100, 32, 227 << 10),
    "sm_120": ("cuda", 120, 32, 99 << 10),
    "gfx1100": ("hip", "gfx1100", 32, 64 << 10),
}


class Variant(NamedTuple):
    """A kernel with types and constants. `types`: of the arguments that are no constants, in their order."""

    module: str
    kernel: str
    types: tuple[str, ...]
    constants: dict[str, Any]
    options: dict[str, Any]


class Compiled(NamedTuple):
    target: str
    kernel: str
    constants: dict[str, Any]
    code_bytes: int
    shared_bytes: int
    error: str


def variants() -> Iterator[Variant]:
    """Every kernel, with the shapes of the models that we know and each way to store keys and values."""
    from homebox.kernels.attention import KvKind
    from homebox.kernels.triton.tuning import OTHERS, padded

    sizes = OTHERS.attend
    stored = {KvKind.AS_IS: "*bf16", KvKind.INT8: "*i8", KvKind.FP8: "*u8"}
    for dim, shared in ((64, 3), (80, 4), (96, 1), (128, 4), (256, 2)):
        for kind, kv in stored.items():
            for m, warps in ((sizes.few, sizes.few_warps), (sizes.many, sizes.many_warps)):
                yield Variant(
                    "paged", "attend",
                    ("*bf16", kv, kv, "*fp32", "*fp32", "*i32", "*i32", "*i32", "*i32", "*bf16", "*fp32", "*fp32", "i32", "i32", "fp32"),
                    {
                        "DIM": dim, "PADDED": padded(dim), "SHARED": shared, "M": m, "N": sizes.keys, "BLOCK": 16,
                        "SPLIT": sizes.split, "WINDOW": 0, "SOFTCAP": 0.0, "KV": int(kind),
                    },
                    {"num_warps": warps, "num_stages": sizes.stages},
                )  # fmt: skip
            yield Variant(
                "enter", "enter",
                ("*bf16", "*fp32", "*fp32", "*bf16", "*bf16", "*i64", "*bf16", kv, kv, "*fp32", "*fp32", "i32", "i32", "fp32"),
                {"DIM": dim, "PADDED": padded(dim), "NORM": True, "KV": int(kind)},
                {"num_warps": 1},
            )  # fmt: skip
        yield Variant(
            "paged", "join", ("*i32", "*i32", "*i32", "*bf16", "*fp32", "*fp32", "i32"),
            {"DIM": dim, "PADDED": padded(dim), "SHARED": shared, "M": sizes.few}, {"num_warps": 4},
        )  # fmt: skip
    yield Variant(
        "paged", "attend",
        ("*fp16", "*fp16", "*fp16", "*fp32", "*fp32", "*i32", "*i32", "*i32", "*i32", "*fp16", "*fp32", "*fp32", "i32", "i32", "fp32"),
        {
            "DIM": 128, "PADDED": 128, "SHARED": 2, "M": sizes.many, "N": sizes.keys, "BLOCK": 16, "SPLIT": sizes.split,
            "WINDOW": 1024, "SOFTCAP": 50.0, "KV": 0,
        },
        {"num_warps": sizes.many_warps, "num_stages": sizes.stages},
    )  # fmt: skip
    for size in (576, 4096):
        for add in (False, True):
            yield Variant(
                "rows", "add_and_norm", ("*bf16", "*bf16", "*bf16", "*bf16", "fp32"),
                {"SIZE": size, "PADDED": padded(size), "ADD": add}, {"num_warps": 4},
            )  # fmt: skip
    yield Variant(
        "rows", "silu_and_multiply", ("*bf16", "*bf16"), {"SIZE": 14336, "TURN": 1024}, {"num_warps": 4}
    )
    multiply = OTHERS.multiply
    for m in (16, 32, 64):
        constants = {"BIAS": False, "M": m, "N": multiply.outputs, "GROUPS": multiply.groups}
        options = {"num_warps": multiply.warps, "num_stages": multiply.stages}
        numbers = ("*bf16", "*bf16", "i32", "i32", "i32")
        yield Variant(
            "quantised", "multiply_int4", ("*bf16", "*u8", "*fp16", "*fp16", *numbers), constants, options
        )
        yield Variant("quantised", "multiply_int8", ("*bf16", "*i8", "*fp16", *numbers), constants, options)


def compile_for(target: str, variant: Variant) -> Compiled:
    """Never raises: what a compiler says is part of the answer."""
    import importlib

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    backend, architecture, warp, shared_limit = TARGETS[target]
    kernel = getattr(importlib.import_module(f"homebox.kernels.triton.{variant.module}"), variant.kernel)
    names = [name for name in kernel.arg_names if name not in variant.constants]
    types = dict(zip(names, variant.types, strict=True))
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=variant.constants)
    options = variant.options | {"enable_fp_fusion": True}
    try:
        made = triton.compile(source, target=GPUTarget(backend, architecture, warp), options=options)
        code, shared = made.asm["cubin" if backend == "cuda" else "hsaco"], made.metadata.shared
    except Exception as error:
        return Compiled(target, variant.kernel, variant.constants, 0, 0, f"{type(error).__name__}: {error}")
    too_much = f"{shared} bytes of shared memory, {shared_limit} there" if shared > shared_limit else ""
    return Compiled(target, variant.kernel, variant.constants, len(code), shared, too_much)


def compile_all(targets: list[str], processes: int) -> list[Compiled]:
    work = [(target, variant) for variant in variants() for target in targets]
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(compile_for, *zip(*work, strict=True), chunksize=1))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--targets", default=",".join(TARGETS), help="[%(default)s]")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", help="a line for each kernel and target")
    asked = parser.parse_args()
    targets = asked.targets.split(",")
    if unknown := set(targets) - set(TARGETS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(TARGETS)}")
    made = compile_all(targets, asked.processes)
    for one in made:
        if asked.json:
            print(json.dumps(one._asdict()))
        elif one.error:
            print(f"{one.target} {one.kernel} {one.constants}: {one.error}")
    failed = sum(bool(one.error) for one in made)
    print(f"{len(made) - failed} of {len(made)} compiled, for {', '.join(targets)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
