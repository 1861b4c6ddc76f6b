"""What tests of the compiled library share: tiny sources, a compiler that counts, and an environment of one's own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from homebox.errors import KernelsMissing
from homebox.kernels.cpu import compiler
from homebox.kernels.cpu.library import SOURCES, Absent, Native, decide


def _real() -> str:
    try:
        return compiler.find(os.environ).command[0]
    except KernelsMissing:
        return ""


REAL = _real()
needs_compiler = pytest.mark.skipif(not REAL, reason="there is no C++ compiler here")


@dataclass
class Bench:
    """A cache, two source files and a compiler that writes a line into `calls` for each file it compiles."""

    folder: Path

    def __post_init__(self) -> None:
        self.sources.mkdir()
        (self.sources / "level.cpp").write_text((SOURCES / "level.cpp").read_text())
        (self.sources / "one.cpp").write_text('#include "one.h"\nint one() { return ONE; }\n')
        (self.sources / "one.h").write_text("#define ONE 1\n")
        self.use_compiler("")

    @property
    def sources(self) -> Path:
        return self.folder / "sources"

    @property
    def cache(self) -> Path:
        return self.folder / "cache" / "kernels"

    @property
    def calls(self) -> list[str]:
        """What was compiled, in order."""
        log = self.folder / "calls"
        return log.read_text().split() if log.exists() else []

    def use_compiler(self, before: str) -> None:
        """The real one, behind lines of shell that run before each compilation of a source file."""
        program = self.folder / "new"
        program.write_text(
            f'#!/bin/sh\nfor word; do case "$word" in probe*|/*/probe.cpp) break ;; *.cpp)\n{before}\n'
            f'echo "$word" >> {self.folder}/calls ;; esac; done\nexec {REAL} "$@"\n'
        )
        program.chmod(0o755)
        program.replace(self.folder / "cxx")  # the one before may be running

    @property
    def environ(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "CXX": str(self.folder / "cxx"),
            "CACHE_DIRECTORY": str(self.folder / "cache"),
            "HOMEBOX_CPU_LEVEL": "portable",
        }

    def decide(self, **environ: str) -> Native | Absent:
        return decide(self.sources, self.environ | environ, lambda *_: None)

    def native(self, **environ: str) -> Native:
        found = self.decide(**environ)
        assert isinstance(found, Native), found
        return found

    def absent(self, **environ: str) -> Absent:
        found = self.decide(**environ)
        assert isinstance(found, Absent), found
        return found
