"""Which C++ compiler is here, and how does it make the kernels' sources into one library?

The sources are plain C++17 without torch's headers, so any compiler of the last years will do. Each file is compiled
by a process of its own, several at once, and all are linked into one shared object. It knows nothing of where the
result is kept.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from homebox.errors import KernelsMissing

NAMES = ("c++", "g++", "clang++")
# No fast-math: the order of sums, NaN and infinity are part of what the kernels promise.
COMPILE_FLAGS = (
    "-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off",
    "-pthread", "-Wall", "-Wextra",
)  # fmt: skip
LINK_FLAGS = ("-shared", "-pthread")
COMPILE_S = 600.0  # a compiler that takes longer is broken
VERSION_S = 10.0
_HEARD_EVERY_S = 1.0  # whoever waits for us hears at least so often that we live

Progress = Callable[[int, int], None]  # files done, files in all


@dataclass(frozen=True)
class Compiler:
    """`version`: the first line of what it says of itself."""

    command: tuple[str, ...]
    version: str

    def accepts(self, flags: Sequence[str], folder: Path) -> bool:
        """Whether it, with its assembler, knows these flags: a line is compiled with them."""
        probe = folder / "probe.cpp"
        probe.write_text("int probe() { return 0; }\n")
        command = [*self.command, *COMPILE_FLAGS, *flags, "-c", str(probe), "-o", f"{probe}.o"]
        return _run(command, folder, folder).returncode == 0

    def build(self, sources: Path, flags: Sequence[str], folder: Path, name: str, progress: Progress) -> Path:
        """`folder/name`, made of every .cpp in `sources`; `folder` is left with the object files. Raises
        KernelsMissing with the compiler's first complaint."""
        files = sorted(sources.glob("*.cpp"))
        objects = [folder / f"{file.stem}.o" for file in files]
        commands = [
            [*self.command, *COMPILE_FLAGS, *flags, "-c", file.name, "-o", str(made)]
            for file, made in zip(files, objects, strict=True)
        ]
        progress(0, len(files) + 1)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            running = {pool.submit(self._check, command, sources, folder) for command in commands}
            try:
                while running:
                    done, running = wait(running, _HEARD_EVERY_S, FIRST_COMPLETED)
                    for one in done:
                        one.result()
                    progress(len(files) - len(running), len(files) + 1)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        made = folder / name
        self._check([*self.command, *LINK_FLAGS, *map(str, objects), "-o", str(made)], folder, folder)
        progress(len(files) + 1, len(files) + 1)
        return made

    def _check(self, command: Sequence[str], here: Path, scratch: Path) -> None:
        done = _run(command, here, scratch)
        if done.returncode:
            raise KernelsMissing(
                f"{self.command[0]} ({self.version}) cannot compile the kernels: {_complaint(done)}",
                hint="name another compiler with CXX and restart homebox",
            )


def find(environ: Mapping[str, str]) -> Compiler:
    """The one that CXX names, else the first of the usual names that runs. Raises KernelsMissing."""
    named = environ.get("CXX", "").strip()
    for command in [shlex.split(named)] if named else [[name] for name in NAMES]:
        program = shutil.which(command[0], path=environ.get("PATH", os.defpath))
        if program is None:
            continue
        try:
            said = subprocess.run(
                [program, *command[1:], "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                errors="replace", timeout=VERSION_S, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            continue
        if said.returncode == 0:
            return Compiler((program, *command[1:]), said.stdout.partition("\n")[0].strip())
    if named:
        raise KernelsMissing(
            f"no C++ compiler found (CXX names {named!r}, which does not run)",
            hint=f"unset CXX, so that {', '.join(NAMES)} are looked for, and restart homebox",
        )
    raise KernelsMissing(
        f"no C++ compiler found (looked for $CXX, {', '.join(NAMES)})",
        hint="install one (Debian, Ubuntu: sudo apt install g++) and restart homebox",
    )


def _run(command: Sequence[str], here: Path, scratch: Path) -> subprocess.CompletedProcess[str]:
    """In C's language, so that a complaint can be found in what it says, and with its own temporary files in `scratch`.
    Raises KernelsMissing where it does not end or cannot be run."""
    try:
        return subprocess.run(
            command, cwd=here, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=COMPILE_S, check=False, env={**os.environ, "LC_ALL": "C", "TMPDIR": str(scratch)},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        why = f"it did not end within {COMPILE_S:.0f} s"
    except OSError as error:
        why = error.strerror or str(error)
    raise KernelsMissing(
        f"{command[0]} cannot compile the kernels: {why}", hint="name another compiler with CXX"
    )


def _complaint(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    of_note = [line for line in lines if "error" in line.lower()]
    if done.returncode < 0:
        return f"it was ended by signal {-done.returncode}"
    return next(iter(of_note or lines), f"it ended with {done.returncode}")[:300]
