"""For which instructions are the kernels compiled on this processor?

A level is a set of instructions with one name and the compiler's flags for it. The table is ordered, best first; the
best one that the processor has and the compiler can build is used. `HOMEBOX_CPU_LEVEL` names one, for tests and for
finding out what a level is worth.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from homebox.errors import KernelsMissing

SETTING = "HOMEBOX_CPU_LEVEL"
_PROCESSORS = Path("/proc/cpuinfo")
_AVX2 = ("avx2", "fma", "f16c")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni")
_AVX512_FLAGS = (
    "-mavx2",
    "-mfma",
    "-mf16c",
    "-mavx512f",
    "-mavx512bw",
    "-mavx512vl",
    "-mavx512dq",
    "-mavx512vnni",
)
# arch_prctl(2): a process asks for the state of the tiles before it may use them.
_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA = 158, 0x1023, 18


@dataclass(frozen=True)
class Level:
    """`needs`: the processor's features, spelled as in /proc/cpuinfo. `machine`: empty for all."""

    name: str
    machine: str
    needs: tuple[str, ...]
    flags: tuple[str, ...]


LEVELS = (
    Level(
        "amx",
        "x86_64",
        (*_AVX512, "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"),
        (*_AVX512_FLAGS, "-mavx512bf16", "-mamx-tile", "-mamx-int8", "-mamx-bf16"),
    ),
    Level("avx512vnni", "x86_64", _AVX512, _AVX512_FLAGS),
    Level("avx2vnni", "x86_64", (*_AVX2, "avx_vnni"), ("-mavx2", "-mfma", "-mf16c", "-mavxvnni")),
    Level("avx2", "x86_64", _AVX2, ("-mavx2", "-mfma", "-mf16c")),
    Level("neon", "aarch64", ("asimddp", "asimdhp"), ("-march=armv8.2-a+dotprod+fp16",)),
    Level("portable", "", (), ()),
)


@dataclass(frozen=True)
class Processor:
    machine: str
    features: frozenset[str]


def processor(path: Path = _PROCESSORS) -> Processor:
    """This machine's; without /proc/cpuinfo nothing is known of it, and the portable level is left."""
    try:
        text = path.read_text()
    except OSError:
        text = ""
    return Processor(platform.machine(), features(text))


def features(cpuinfo: str) -> frozenset[str]:
    """What every core has, from the text of /proc/cpuinfo (`flags` on x86, `Features` on ARM)."""
    lines = [line.partition(":") for line in cpuinfo.splitlines()]
    cores = [frozenset(words.split()) for key, _, words in lines if key.strip() in ("flags", "Features")]
    return frozenset.intersection(*cores) if cores else frozenset()


def possible(processor: Processor, levels: Iterable[Level] = LEVELS) -> list[Level]:
    """The levels whose instructions this processor has, best first."""
    return [
        level
        for level in levels
        if level.machine in ("", processor.machine) and processor.features.issuperset(level.needs)
    ]


def chosen(processor: Processor, environ: Mapping[str, str]) -> list[Level]:
    """The levels to be tried, best first: the possible ones, or the one that the environment names. Raises
    KernelsMissing for one that is not known or not possible here."""
    here, name = possible(processor), environ.get(SETTING, "")
    if not name:
        return here
    if found := [level for level in here if level.name == name]:
        return found
    known = next((level for level in LEVELS if level.name == name), None)
    lacking = sorted(set(known.needs) - processor.features) if known else []
    why = (
        f"{SETTING} is {name!r}, and this processor has no {', '.join(lacking) or known.machine}"
        if known
        else f"{SETTING} is {name!r}, which is no level"
    )
    raise KernelsMissing(why, hint=f"possible here: {', '.join(level.name for level in here)}")


def permit(level: Level) -> None:
    """Ask the operating system for what a level needs beyond instructions. Granted once, it holds for this process.
    Raises KernelsMissing."""
    if "amx_tile" in level.needs and ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA):
        raise KernelsMissing(
            "the operating system does not give this process the processor's tiles",
            hint="Linux 5.16 or newer does, outside a sandbox that forbids arch_prctl",
        )
