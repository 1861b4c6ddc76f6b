"""Do all kernels compile for every GPU that we mean to run on? Without one: `python -m homebox.kernels.triton.compile`.

What comes out is thrown away; what a target cannot hold (types, shared memory, registers) is found here and not on
somebody's machine. A kernel is compiled as it is launched: with the sizes that tuning.py has for the target, with the options that
the kernel says itself (launch.py), with pointers and strides on 16 bytes, as torch allocates them.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from homebox.kernels.triton.tuning import AMD, Tuning, of, padded


class Target(NamedTuple):
    backend: str
    architecture: int | str
    shared_bytes: int  # that a program may have

    @property
    def tuning(self) -> Tuning:
        return of(divmod(self.architecture, 10)) if isinstance(self.architecture, int) else AMD


TARGETS = {
    "sm_80": Target("cuda", 80, 163 << 10),
    "sm_86": Target("cuda", 86, 99 << 10),
    "sm_89": Target("cuda", 89, 99 << 10),
    "sm_90": Target("cuda", 90, 227 << 10),
    "sm_100": Target("cuda", 100, 227 << 10),
    "sm_120": Target("cuda", 120, 99 << 10),
    "gfx1100": Target("hip", "gfx1100", 64 << 10),
}

SPILLED_BYTES = 128  # of a thread's registers: what a few cost does not show


@dataclass(frozen=True)
class Variant:
    """A kernel with types and constants. `types`: of the arguments that are no constants, in their order; "i32:16" is a multiple of 16.
    `options`: those that come with the launch."""

    module: str
    kernel: str
    types: tuple[str, ...]
    constants: dict[str, Any]
    options: dict[str, Any]


class Compiled(NamedTuple):
    """`registers`: of a thread. `spilled_bytes`: of its registers, in memory."""

    target: str
    kernel: str
    constants: dict[str, Any]
    code_bytes: int = 0
    shared_bytes: int = 0
    registers: int = 0
    spilled_bytes: int = 0
    error: str = ""


def variants(target: Target) -> Iterator[Variant]:
    """Every kernel, with the shapes of the models that we know and each way to store keys and values. The first of a kernel
    is that of a model of 8 billion."""
    from homebox.kernels.attention import KvKind
    from homebox.kernels.triton.linear import ADDED, UNPACKED

    multiply = target.tuning.multiply
    stored = {KvKind.AS_IS: "*bf16", KvKind.INT8: "*i8", KvKind.FP8: "*u8"}

    def attention(dtype: str, kv: str, many: bool, dim: int, shared: int, **constants: Any) -> Variant:
        sizes = target.tuning.attend.of(dim)
        m, warps = (sizes.many, sizes.many_warps) if many else (sizes.few, sizes.few_warps)
        return Variant(
            "paged", "attend",
            (dtype, kv, kv, "*fp32", "*fp32", "*i32", "*i32", "*i32", "*i32", dtype, "*fp32", "*fp32", "i32", "i32", "fp32"),
            {
                "DIM": dim, "PADDED": padded(dim), "SHARED": shared, "M": m, "N": sizes.keys, "BLOCK": 16,
                "SPLIT": sizes.split, "WINDOW": 0, "SOFTCAP": 0.0, **constants,
            },
            {"num_warps": warps, "num_stages": sizes.stages},
        )  # fmt: skip

    for dim, shared in ((128, 4), (64, 3), (80, 4), (96, 1), (256, 2)):
        for kind, kv in stored.items():
            for many in (True, False):
                yield attention("*bf16", kv, many, dim, shared, KV=int(kind))
            yield Variant(
                "enter", "enter",
                ("*bf16", "*fp32", "*fp32", "*bf16", "*bf16", "*i64", "*bf16", kv, kv, "*fp32", "*fp32", "i32", "i32", "fp32"),
                {"DIM": dim, "PADDED": padded(dim), "NORM": True, "KV": int(kind)}, {},
            )  # fmt: skip
        yield Variant(
            "paged", "join", ("*i32", "*i32", "*i32", "*bf16", "*fp32", "*fp32", "i32"),
            {"DIM": dim, "PADDED": padded(dim), "SHARED": shared, "M": target.tuning.attend.few}, {},
        )  # fmt: skip
    for many in (True, False):
        yield attention("*fp16", "*fp16", many, 128, 2, KV=0, WINDOW=1024, SOFTCAP=50.0)
    for size in (4096, 576):
        for add in (True, False):
            yield Variant(
                "rows", "add_and_norm", ("*bf16", "*bf16", "*bf16", "*bf16", "fp32"),
                {"SIZE": size, "PADDED": padded(size), "ADD": add}, {},
            )  # fmt: skip
    yield Variant("rows", "silu_and_multiply", ("*bf16", "*bf16"), {"SIZE": 14336, "TURN": 1024}, {})
    for size in (14336, 4096):
        yield Variant(
            "rows", "round_to_e4m3", ("*bf16", "*u8", "*fp32"), {"SIZE": size, "PADDED": padded(size)}, {}
        )
    for weight, codes, scales in (
        ("int4", "*u8", ("*fp16", "*fp16")), ("int8", "*i8", ("*fp16",)), ("fp8", "*u8", ("*fp32",)),
    ):  # fmt: skip
        for name, sizes, tiles in (
            ("meet", multiply.meet, ({},)), ("multiply", multiply.multiply, ({"M": 16}, {"M": 32}, {"M": 64})),
        ):  # fmt: skip
            for tile, out in product(tiles, ("*fp32", "*bf16")):
                yield Variant(
                    "quantised", f"{name}_{weight}",
                    ("*bf16", codes, *scales, "*bf16", out, "i32", "i32:16", "i32:16", "i32:16"),
                    {"BIAS": False, "N": sizes.outputs, "GROUPS": sizes.groups, **tile},
                    {"num_warps": sizes.warps, "num_stages": sizes.stages},
                )  # fmt: skip
    yield Variant(
        "quantised",
        "add_up",
        ("*fp32", "*bf16", "*bf16", "i32", "i32:16", "i32"),
        {"BIAS": False, "N": ADDED},
        {},
    )
    for dtype in ("*bf16", "*fp32"):
        yield Variant(
            "quantised", "unpack_int4", ("*u8", "*fp16", "*fp16", dtype, "i32:16"), {"GROUPS": UNPACKED}, {}
        )
        yield Variant("quantised", "unpack_int8", ("*i8", "*fp16", dtype, "i32:16"), {"GROUPS": UNPACKED}, {})
    yield from _drawing()


def _drawing() -> Iterator[Variant]:
    from homebox.kernels.triton.sampling import Sizes

    for vocab in (128256, 49152, 262144):
        constants = Sizes().constants(vocab)
        for kernel, arguments in {
            "survey": ("*fp32", "*fp32", "*i32", "i32:16"),
            "settle": ("*fp32", "*i32", "*fp64", "*fp32", "*fp32", "*i32", "*i32", "*i32", "*i32", "i32"),
            "weigh": ("*fp32", "*fp64", "*fp32", "*fp32", "*fp32", "*i32", "*i64", "*i32", "*i64", "i32:16"),
            "choose": ("*fp32", "*fp64", "*fp32", "*fp32", "*i32", "*i64", "*i32", "*i64", "*i32", "i32", "i32:16"),
        }.items():  # fmt: skip
            yield Variant("draw", kernel, arguments, constants, {})


def compile_for(name: str, variant: Variant) -> Compiled:
    """Never raises: what a compiler says is part of the answer."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    target = TARGETS[name]
    kernel = getattr(importlib.import_module(f"homebox.kernels.triton.{variant.module}"), variant.kernel)
    names = kernel.function.arg_names
    constants = {key: value for key, value in variant.constants.items() if key in names}
    types = dict(zip([key for key in names if key not in constants], variant.types, strict=True))
    attributes = {
        (names.index(key),): [["tt.divisibility", 16]]
        for key, kind in types.items()
        if kind.startswith("*") or kind.endswith(":16")
    }
    signature = {key: types.get(key, "constexpr").split(":")[0] for key in names}
    source = ASTSource(kernel.function, signature, constants, attributes)
    options = kernel.options | variant.options
    made = Compiled(name, variant.kernel, constants)
    try:
        binary = triton.compile(
            source, target=GPUTarget(target.backend, target.architecture, 32), options=options
        )
    except Exception as error:
        return made._replace(error=f"{type(error).__name__}: {error}")
    code = binary.asm["cubin" if target.backend == "cuda" else "hsaco"]
    registers, spilled = _registers(target, binary)
    made = made._replace(
        code_bytes=len(code), shared_bytes=binary.metadata.shared, registers=registers, spilled_bytes=spilled
    )
    return made._replace(error=_amiss(target, made, kernel.options, binary))


def _amiss(target: Target, made: Compiled, options: dict[str, Any], binary: Any) -> str:
    if made.shared_bytes > target.shared_bytes:
        return f"{made.shared_bytes} bytes of shared memory, {target.shared_bytes} there"
    if made.spilled_bytes > SPILLED_BYTES:
        return f"{made.spilled_bytes} bytes of registers do not fit"
    # Only in PTX: elsewhere a conversion is made of them.
    fused = re.search(r"\bfma\.rn\.f(64|32)", binary.asm.get("ptx", ""))
    if fused and not options["enable_fp_fusion"]:
        return f"{fused[0]} in a kernel in which every step is to round"
    return ""


def _registers(target: Target, binary: Any) -> tuple[int, int]:
    """How many a thread has, and bytes of them that are spilled."""
    if target.backend == "hip":
        said = binary.asm["amdgcn"]
        counts = {
            key: int(value) for key, value in re.findall(r"\.(vgpr_count|vgpr_spill_count): +(\d+)", said)
        }
        return counts["vgpr_count"], 4 * counts["vgpr_spill_count"]
    import triton

    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(binary.asm["cubin"])
        tool = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(cubin)]
        said = subprocess.run(tool, capture_output=True, text=True, check=True).stdout
    counts = {key: int(value) for key, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", said)}
    return counts["REG"], counts["STACK"] + counts["LOCAL"]


def shapes_for(names: Iterable[str]) -> list[tuple[str, Variant]]:
    return [(name, variant) for name in names for variant in variants(TARGETS[name])]


def choice() -> list[tuple[str, Variant]]:
    """A small one: every kernel once, in its first variant, and every target."""
    first: dict[str, list[tuple[str, Variant]]] = {}
    for name, variant in shapes_for(TARGETS):
        of_kernel = first.setdefault(variant.kernel, [])
        if name not in [target for target, _ in of_kernel]:
            of_kernel.append((name, variant))
    return [of_kernel[place % len(TARGETS)] for place, of_kernel in enumerate(first.values())]


def compile_all(work: list[tuple[str, Variant]], processes: int) -> list[Compiled]:
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(compile_for, *zip(*work, strict=True), chunksize=1))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--targets", default=",".join(TARGETS), help="[%(default)s]")
    parser.add_argument(
        "--choice", action="store_true", help="every kernel and every target once, nothing more"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", help="a line for each kernel and target")
    asked = parser.parse_args()
    targets = asked.targets.split(",")
    if unknown := set(targets) - set(TARGETS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(TARGETS)}")
    made = compile_all(choice() if asked.choice else shapes_for(targets), asked.processes)
    for one in made:
        if asked.json:
            print(json.dumps(one._asdict()))
        elif one.error:
            print(f"{one.target} {one.kernel} {one.constants}: {one.error}")
    failed = sum(bool(one.error) for one in made)
    print(f"{len(made) - failed} of {len(made)} compiled", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
