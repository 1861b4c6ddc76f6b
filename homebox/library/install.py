"""What is the last step that every way into the library shares?

A directory with the weights, the tokeniser and the template gets its manifest, is loaded once the way the daemon will
load it, and then becomes the model in one rename. A model that would fail later fails here, with nothing installed.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from homebox.errors import BadFile
from homebox.library.convert import TokenizerFacts
from homebox.library.facts import Facts
from homebox.library.files import Progress, fingerprint
from homebox.library.manifest import Manifest, WeightFile
from homebox.library.store import Library
from homebox.text.tokens import Tokenizer

MANIFEST = "manifest.json"


def install(
    library: Library,
    staged: Path,
    *,
    name: str,
    source: str,
    facts: Facts,
    tokenizer: TokenizerFacts,
    known: list[WeightFile],
    progress: Progress,
    generation: dict[str, float] | None = None,
    licence: str = "",
) -> Path:
    """Give the model its manifest and its place. `known` are the files whose checksum was taken already.

    Raises BadFile when the tokeniser and the weights do not belong together.
    """
    have = {file.name for file in known}
    others = sorted(path for path in staged.iterdir() if path.name not in have | {MANIFEST})
    manifest = Manifest(
        name=name,
        source=source,
        format=facts.format,
        architecture=facts.architecture,
        quantisation=facts.quantisation,
        context=facts.context,
        vocab_size=facts.vocab_size,
        parameters=facts.parameters,
        files=[*known, *(fingerprint(path, progress) for path in others)],
        licence=licence or facts.licence,
        bos_token=tokenizer.bos_token,
        add_bos=tokenizer.add_bos,
        end_tokens=tokenizer.end_tokens,
        special_tokens=tokenizer.special_tokens,
        generation=generation or {},
        installed_at=time.time(),
    )
    _write(staged, manifest)
    loaded = Tokenizer.load(staged)
    if loaded.vocab_size > manifest.vocab_size:
        raise BadFile(
            f"the tokeniser of {source} has {loaded.vocab_size} tokens, its weights {manifest.vocab_size}",
            hint="They do not belong together: fetch the model again.",
        )
    end = loaded.template_end()
    if end is not None and end not in manifest.end_tokens:
        manifest = msgspec.structs.replace(manifest, end_tokens=[*manifest.end_tokens, end])
        _write(staged, manifest)
    if not manifest.end_tokens:
        raise BadFile(
            f"{source} names no token that ends an answer",
            hint="Its generation_config.json should have an eos_token_id.",
        )
    return library.publish(name, staged)


def _write(folder: Path, manifest: Manifest) -> None:
    """Whole or not at all: the name exists only once the bytes do."""
    partial = folder / f".{MANIFEST}"
    with partial.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    partial.rename(folder / MANIFEST)
