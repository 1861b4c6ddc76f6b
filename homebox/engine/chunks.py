"""Who computes attention for chunks of prompts here: our own kernel, or a library that is installed?

A library is asked three things. Is it known to run on this GPU? Does it say what our kernel says? Is it a tenth faster? The
answer is remembered, and asked for again when anything changes that it depends on. What is said of a library that is
installed and not used is a note for people; without one nothing is said, and nothing imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch

from homebox.errors import KernelsMissing
from homebox.kernels.chunks import Chunks
from homebox.kernels.device import Device
from homebox.kernels.flash import Library
from homebox.kernels.remembered import Finding, Remembered

if TYPE_CHECKING:
    from homebox.kernels.triton.trial import Shapes

FILE = "attention.json"
# It has to win by this much: with it, the last bits of an answer depend on how its prompt was cut.
WINS_BY = 0.10


class Trial(Protocol):
    """kernels/triton/trial.py."""

    BOUND: dict[torch.dtype, float]

    def error(self, chunks: Chunks, shapes: Shapes, device: Device) -> float: ...

    def milliseconds(self, chunks: Chunks, shapes: Shapes, device: Device) -> tuple[float, float]: ...


@dataclass(frozen=True)
class Chosen:
    """`chunks`: None is our own kernel."""

    chunks: Chunks | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"triton, chunks by {self.chunks.name}" if self.chunks else "triton"


OWN = Chosen()


def choose(
    library: Library | str | None, shapes: Shapes, *, about: dict[str, str], cache: Path, device: Callable[[], Device],
    trial: Trial,
) -> Chosen:  # fmt: skip
    """`library`: as kernels/flash.py finds it. `about`: what the answer depends on beside library and shapes; `cache`: the
    directory where it is remembered. Raises what a device raises that has not survived the trial."""
    if library is None:
        return OWN
    if isinstance(library, str):
        return Chosen(notes=[f"{library}: our own kernels compute"])
    about = about | {"library": library.name, "build": library.build, "shapes": repr(tuple(shapes))}
    try:
        remembered = Remembered(cache, FILE)
        found = remembered.find(about)
        if found is None:
            found = _tried(library, shapes, about, remembered, device(), trial)
    except (KernelsMissing, OSError) as error:
        return Chosen(
            notes=[f"{library.name} is not tried, since what comes of it cannot be remembered: {error}"]
        )
    except torch.OutOfMemoryError:
        return Chosen(
            notes=[f"{library.name} is not tried: no memory is left for that; our own kernels compute"]
        )
    if not found.taken:
        return Chosen(notes=[f"{library.name} is not used for prompts: {found.why}"])
    try:
        return Chosen(library.load())
    except Exception as error:  # whatever an import may raise
        return Chosen(notes=[f"{library.name} is not used for prompts: {_said(error)}"])


def _tried(
    library: Library,
    shapes: Shapes,
    about: dict[str, str],
    remembered: Remembered,
    device: Device,
    trial: Trial,
) -> Finding:
    """A kernel that reads where it must not takes the whole process with it, so the worst is remembered first."""
    remembered.put(
        Finding(about, False, f"an engine ended while it was tried; to try again, remove {remembered.path}")
    )
    try:
        why = _compared(library.load(), shapes, device, trial)
    except torch.OutOfMemoryError:
        device.release()
        remembered.forget(about)
        raise
    except Exception as error:  # a library may raise anything
        why = _said(error)
    device.wait(device.mark())
    device.release()
    found = Finding(about, not why, why)
    remembered.put(found)
    return found


def _compared(chunks: Chunks, shapes: Shapes, device: Device, trial: Trial) -> str:
    """Why it is not used, or nothing."""
    off, bound = trial.error(chunks, shapes, device), trial.BOUND[shapes.dtype]
    if off > bound:
        return f"its answers are {off:.2g} from ours, of which {bound:g} is rounding"
    ours, theirs = trial.milliseconds(chunks, shapes, device)
    if theirs > ours * (1 - WINS_BY):
        return (
            f"it takes {theirs:.2f} ms where our own kernels take {ours:.2f}, and is to win by {WINS_BY:.0%}"
        )
    return ""


def _said(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
