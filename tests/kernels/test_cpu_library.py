"""The native kernels are compiled once, taken only from where nobody else can write, or absent with a reason."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from homebox.errors import KernelsMissing
from homebox.kernels.cpu import cache, levels, library
from homebox.kernels.cpu.levels import LEVELS, Processor
from homebox.kernels.cpu.library import Absent
from tests.kernels.cpu_builds import Bench, needs_compiler

HERE = levels.possible(levels.processor())
STARTER = """
import os, sys
from pathlib import Path
from homebox.kernels.cpu.library import decide
found = decide(Path(sys.argv[1]), os.environ, lambda stage, done, total: print(stage, done, total, flush=True))
print("found", found.path, flush=True)
"""
DEADLINE_S = 60


class Starters:
    """Processes that all ask for the kernels, and say how far they are."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.processes: list[subprocess.Popen[str]] = []

    def start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", STARTER, str(self.bench.sources)]
        environ = os.environ | self.bench.environ
        self.processes.append(subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True))
        return self.processes[-1]

    def hold(self) -> None:
        """The compiler waits before each file until `release`."""
        self.bench.use_compiler(f"while [ ! -e {self.bench.folder}/go ]; do sleep 0.05; done")

    def release(self) -> None:
        (self.bench.folder / "go").touch()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def starters(bench: Bench) -> Iterator[Starters]:
    made = Starters(bench)
    yield made
    made.release()
    for process in made.processes:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


# ---- compiled once


@needs_compiler
def test_of_many_that_start_at_once_one_compiles_and_all_have_it(starters: Starters) -> None:
    starters.hold()
    together = [starters.start() for _ in range(5)]
    # Each one is in the middle of it: it compiles, or waits for the one that does.
    first = [said(process) for process in together]
    assert sorted(first) == ["compiling kernels 0 0"] * 4 + ["compiling kernels 0 3"]
    starters.release()
    paths = {process.communicate(timeout=DEADLINE_S)[0].splitlines()[-1] for process in together}
    assert len(paths) == 1 and [process.returncode for process in together] == [0] * 5
    assert sorted(starters.bench.calls) == ["level.cpp", "one.cpp"]


@needs_compiler
def test_a_builder_that_is_killed_leaves_nothing_that_keeps_the_next_from_building(
    starters: Starters,
) -> None:
    starters.hold()
    first = starters.start()
    assert said(first) == "compiling kernels 0 3"
    first.kill()
    first.wait()
    starters.bench.use_compiler("")
    built = starters.bench.native()
    assert {path.name for path in starters.bench.cache.iterdir()} == {built.path.name, "lock"}


@needs_compiler
def test_what_was_compiled_is_loaded_and_its_functions_are_there(bench: Bench) -> None:
    first, second = bench.native(), bench.native()
    assert first.path == second.path and len(bench.calls) == 2
    assert first.level == "portable" and first.functions.hb_level() == b"portable"
    assert not hasattr(first.functions, "_Z3onev"), "only what is meant to be seen is"


@needs_compiler
@pytest.mark.parametrize("file", ["one.cpp", "one.h", "two.cpp"])
def test_another_source_is_another_library(bench: Bench, file: str) -> None:
    before = bench.native().path
    (bench.sources / file).write_text("#define ONE 2\nint two() { return 2; }\n")
    assert bench.native().path != before


@needs_compiler
def test_another_compiler_is_another_library(bench: Bench) -> None:
    before = bench.native().path
    other = bench.folder / "other"
    (bench.folder / "cxx").rename(other)
    assert bench.native(CXX=str(other)).path != before


@needs_compiler
def test_old_libraries_go_and_the_one_in_use_stays(bench: Bench) -> None:
    used = bench.native().path
    for age in range(cache.KEPT + 3):
        old = bench.cache / f"homebox-cpu-portable-{age}.so"
        old.touch()
        os.utime(old, (age, age))
    os.utime(used, (0, 0))
    assert bench.native().path == used, "using it makes it young again"
    (bench.sources / "one.h").write_text("#define ONE 3\n")
    built = bench.native().path
    assert len(list(bench.cache.glob("*.so"))) == cache.KEPT and used.exists() and built.exists()


# ---- taken only from where nobody else can write


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _link(path: Path) -> None:
    path.rename(path.parent / "elsewhere")
    path.symlink_to("elsewhere")


def _second_name(path: Path) -> None:
    os.link(path, path.parent / "second")


def _open_to_all(path: Path) -> None:
    path.chmod(0o777)


def _somebody_elses(path: Path) -> None:
    os.chown(path, 12345, -1)


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
SPOILT = [
    _cut,
    _empty,
    _flip,
    _link,
    _second_name,
    _open_to_all,
    pytest.param(_somebody_elses, marks=as_root),
]


@pytest.mark.parametrize("spoil", SPOILT)
def test_a_file_that_is_not_whole_or_not_ours_is_not_taken(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    kept = cache.Cache(tmp_path / "kernels")
    kept.open()
    with kept.building(lambda: None) as folder:
        (folder / "some.so").write_bytes(bytes(range(256)) * 20)
        path = kept.publish(folder / "some.so")
    assert kept.find("some.so") == path
    spoil(path)
    assert kept.find("some.so") is None


@needs_compiler
def test_what_is_not_taken_is_compiled_again(bench: Bench, starters: Starters) -> None:
    # Another process: what is spoilt while it is mapped takes us along.
    starters.start().wait()
    (built,) = bench.cache.glob("*.so")
    _cut(built)
    assert bench.native().path == built and len(bench.calls) == 4
    assert bench.native().path == built and len(bench.calls) == 4, "and that one is good"


@pytest.mark.parametrize("spoil", [_open_to_all, pytest.param(_somebody_elses, marks=as_root), _link])
def test_a_directory_that_others_can_write_is_left_alone(bench: Bench, spoil: Callable[[Path], None]) -> None:
    bench.cache.mkdir(parents=True)
    spoil(bench.cache)
    found = bench.absent()
    assert str(bench.cache) in found.why and "remove it" in found.hint and not bench.calls


def test_a_cache_that_cannot_be_written_is_a_reason_with_a_way_out(bench: Bench) -> None:
    (bench.folder / "cache").write_text("no directory")
    found = bench.absent()
    assert str(bench.cache) in found.why and "XDG_CACHE_HOME" in found.hint


# ---- absent, with a reason


def test_without_a_compiler_it_is_said_where_one_was_looked_for_and_what_to_do(bench: Bench) -> None:
    found = bench.absent(CXX="", PATH=str(bench.folder / "nothing"))
    for words in ("no C++ compiler", "$CXX, c++, g++, clang++", "several times slower", "apt install g++"):
        assert words in found.note
    assert "'nowhere/cxx'" in bench.absent(CXX="nowhere/cxx").why


@needs_compiler
def test_what_was_compiled_before_serves_without_a_compiler(bench: Bench) -> None:
    before = bench.native().path
    assert bench.native(CXX="", PATH=str(bench.folder / "nothing")).path == before


@needs_compiler
def test_a_compiler_that_fails_is_quoted(bench: Bench) -> None:
    (bench.sources / "one.cpp").write_text("int one() {\n  return two;\n}\n")
    found = bench.absent()
    assert "one.cpp:2:" in found.why and "two" in found.why and "CXX" in found.hint
    assert not list(bench.cache.glob("*.so")) and not list(bench.cache.glob("building-*"))


@needs_compiler
@pytest.mark.skipif(len(HERE) < 2, reason="this processor has only the portable level")
def test_a_level_that_the_compiler_does_not_know_is_passed_over_and_that_is_said(bench: Bench) -> None:
    program = bench.folder / "cxx"
    program.write_text(program.read_text().replace("\n", '\ncase " $* " in *" -m"*) exit 1 ;; esac\n', 1))
    found = bench.native(HOMEBOX_CPU_LEVEL="")
    assert found.level == "portable" and f"not {HERE[0].name}" in found.passed_over


@needs_compiler
def test_a_compiler_that_makes_something_else_is_no_compiler(bench: Bench) -> None:
    program = bench.folder / "cxx"
    program.write_text('#!/bin/sh\nwhile [ $# -gt 0 ]; do [ "$1" = -o ] && echo x > "$2"; shift; done\n')
    assert "cannot be loaded" in bench.absent().why


def test_a_process_decides_once(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([Absent("no", "hint"), Absent("another", "hint")])
    monkeypatch.setattr(library, "_decided", [])
    monkeypatch.setattr(library, "decide", lambda *_: next(answers))
    assert library.library() is library.library()


# ---- levels


@needs_compiler
@pytest.mark.parametrize("level", HERE, ids=lambda level: level.name)
def test_every_level_of_this_processor_compiles_and_runs(bench: Bench, level: levels.Level) -> None:
    found = bench.decide(HOMEBOX_CPU_LEVEL=level.name)
    if isinstance(found, Absent) and "cannot compile for" in found.why:
        pytest.skip(found.why)
    assert not isinstance(found, Absent), found
    assert found.level == level.name and f"-{level.name}-" in found.path.name


@pytest.mark.parametrize("name", ["fast", "neon" if levels.processor().machine == "x86_64" else "amx"])
def test_a_level_that_cannot_be_is_refused_with_those_that_can(bench: Bench, name: str) -> None:
    found = bench.absent(HOMEBOX_CPU_LEVEL=name)
    assert f"HOMEBOX_CPU_LEVEL is '{name}'" in found.why and "portable" in found.hint


CPUINFO = {
    "portable": ("x86_64", "flags\t: fpu sse2 ssse3\n"),
    "avx2": ("x86_64", "flags\t: sse2 avx2 fma f16c\nbugs\t: avx_vnni\n"),
    "avx2vnni": ("x86_64", "flags\t: sse2 avx2 fma f16c avx_vnni\n"),
    "avx512vnni": ("x86_64", "flags\t: avx2 fma f16c avx512f avx512bw avx512vl avx512dq avx512_vnni\n"),
    "neon": ("aarch64", "Features\t: fp asimd fphp asimdhp asimddp\n"),
}


@pytest.mark.parametrize("level", CPUINFO)
def test_the_best_level_follows_from_what_the_processor_says(level: str) -> None:
    machine, text = CPUINFO[level]
    there = levels.possible(Processor(machine, levels.features(text)))
    assert there[0].name == level and there[-1].name == "portable"
    assert levels.possible(Processor("riscv64", levels.features(text))) == [LEVELS[-1]]


def test_a_level_is_possible_only_where_every_core_has_it() -> None:
    uneven = "flags\t: avx2 fma f16c\n\nflags\t: fma f16c\n"
    assert levels.features(uneven) == {"fma", "f16c"} and levels.features("") == frozenset()


def test_tiles_that_the_system_withholds_are_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def syscall(self, *_: int) -> int:
            return -1

    monkeypatch.setattr("ctypes.CDLL", lambda _: Refusing())
    with pytest.raises(KernelsMissing, match="tiles"):
        levels.permit(LEVELS[0])
    levels.permit(LEVELS[1])
