"""Are the native kernels here, and if not, why not?

`library` answers once a process: `Native` with the loaded functions, or `Absent` with the reason in a person's words.
The engine asks while it starts; `python -m homebox.kernels.cpu` asks ahead of time. What is loaded was compiled on this
machine, from the sources beside this file, for a level of instructions that the processor has.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from homebox.errors import KernelsMissing
from homebox.kernels.cpu import cache as caches
from homebox.kernels.cpu import compiler as compilers
from homebox.kernels.cpu import levels
from homebox.kernels.cpu.cache import Cache
from homebox.kernels.cpu.compiler import Compiler
from homebox.kernels.cpu.levels import Level

SOURCES = Path(__file__).parent / "native"
STAGE = "compiling kernels"

Report = Callable[[str, int, int], None]  # stage, done, total


@dataclass(frozen=True)
class Native:
    """`functions`: what the library exports. `passed_over`: why a better level is not used; empty if it is the best."""

    level: str
    path: Path
    functions: ctypes.CDLL
    passed_over: str = ""


@dataclass(frozen=True)
class Absent:
    why: str
    hint: str

    @property
    def note(self) -> str:
        """One line for people: what is missing, what that costs, and what to do."""
        return f"{self.why}: the reference kernels run, several times slower; {self.hint}"


_decided: list[Native | Absent] = []


def library(report: Report = lambda *_: None) -> Native | Absent:
    """The native kernels for this process. The first call may compile, for as long as that takes, and reports how far it
    is; all later ones have the same answer. For the main thread."""
    if not _decided:
        _decided.append(decide(SOURCES, os.environ, report))
    return _decided[0]


def decide(sources: Path, environ: Mapping[str, str], report: Report) -> Native | Absent:
    """Load the library of the best level that can be had, from the cache or compiled now."""
    passed: list[KernelsMissing] = []
    try:
        wanted = levels.chosen(levels.processor(), environ)
        cache = Cache(caches.folder(environ))
        cache.open()
        compiler = _compiler(environ)
        for level in wanted:
            try:
                levels.permit(level)
                path, functions = _obtain(cache, sources, level, compiler, report)
            except KernelsMissing as error:
                passed.append(error)
            else:
                why = f"{level.name} kernels run, not {wanted[0].name}: {passed[0].message}" if passed else ""
                return Native(level.name, path, functions, why)
    except KernelsMissing as error:
        passed.insert(0, error)
    first = passed[0]
    return Absent(first.message, first.hint or "")


def _compiler(environ: Mapping[str, str]) -> Compiler | KernelsMissing:
    """What was compiled before is good without a compiler, so that its absence is only the reason for later."""
    try:
        return compilers.find(environ)
    except KernelsMissing as error:
        return error


def _obtain(
    cache: Cache, sources: Path, level: Level, compiler: Compiler | KernelsMissing, report: Report
) -> tuple[Path, ctypes.CDLL]:
    known = f"homebox-cpu-{level.name}-{_digest(sources, level)}"
    if isinstance(compiler, KernelsMissing):
        if (path := cache.find(f"{known}-*.so")) and (functions := _load(path, level)):
            return path, functions
        raise compiler
    name = f"{known}-{hashlib.sha256(repr(compiler).encode()).hexdigest()[:6]}.so"
    if (path := cache.find(name)) and (functions := _load(path, level)):
        return path, functions
    with cache.building(lambda: report(STAGE, 0, 0)) as folder:
        if path := cache.find(name):  # another process has built it meanwhile
            if functions := _load(path, level):
                return path, functions
            path.unlink()
        if level.flags and not compiler.accepts(level.flags, folder):
            raise KernelsMissing(
                f"{compiler.command[0]} ({compiler.version}) cannot compile for {level.name}",
                hint="a newer compiler could",
            )
        flags = [*level.flags, f'-DHB_LEVEL="{level.name}"']
        path = cache.publish(
            compiler.build(sources, flags, folder, name, lambda done, total: report(STAGE, done, total))
        )
    if functions := _load(path, level):
        return path, functions
    raise KernelsMissing(
        f"{path} was compiled and cannot be loaded",
        hint="is the file system of this directory mounted noexec? Set XDG_CACHE_HOME to another one",
    )


def _digest(sources: Path, level: Level) -> str:
    """Of all that decides what comes out of the same compiler."""
    digest = hashlib.sha256(repr((level, compilers.COMPILE_FLAGS, compilers.LINK_FLAGS)).encode())
    for file in sorted([*sources.glob("*.cpp"), *sources.glob("*.h")]):
        digest.update(f"{file.name} {file.stat().st_size}\n".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _load(path: Path, level: Level) -> ctypes.CDLL | None:
    """None for what the loader refuses, and for what is not the library that its name says."""
    try:
        functions = ctypes.CDLL(str(path))
        functions.hb_level.restype = ctypes.c_char_p
    except (OSError, AttributeError):
        return None
    return functions if functions.hb_level() == level.name.encode() else None
