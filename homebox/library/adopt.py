"""How does a model that is already on this disk get into the library?

A GGUF file, or a folder as the Hugging Face hub has them (config.json, tokenizer.json, *.safetensors). Weights are hard
linked where that is possible and safe, else copied; the rest is copied. Nothing of the model is ever run: code that
comes with it is refused, pickled weights are never opened.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from homebox.errors import BadFile, UsageError
from homebox.formats.gguf import open_gguf
from homebox.formats.safetensors import INDEX, open_folder
from homebox.library import facts
from homebox.library.convert import TokenizerFacts, convert
from homebox.library.files import Progress, bring, fingerprint, silent
from homebox.library.install import install
from homebox.library.store import Library, check_name

_TEMPLATE = "chat_template.jinja"
_SMALL = ("config.json", "generation_config.json", "tokenizer.json", _TEMPLATE, INDEX)
_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")


def adopt(library: Library, path: Path, name: str | None = None, progress: Progress = silent) -> Path:
    """Install what lies at `path` as `name` (default: made from the path) and give the model's directory.

    Raises UsageError for a path or name that cannot be meant, BadFile, with the reason, for a model that this version
    does not run, NoSpace.
    """
    path = path.expanduser()
    if not path.exists():
        raise UsageError(f"{path} does not exist", hint="Give a GGUF file or a folder with *.safetensors.")
    name = check_name(name) if name is not None else suggest_name(path)
    with library.staging(name, progress) as staging:
        if library.installed(name):
            raise UsageError(
                f"a model {name!r} is installed already",
                hint=f"Choose another --name, or: homebox models rm {name}",
            )
        finished = staging / "finished"
        shutil.rmtree(finished, ignore_errors=True)
        finished.mkdir()
        try:
            take = _folder if path.is_dir() else _file
            return take(library, path, name, finished, progress)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def suggest_name(path: Path) -> str:
    """A model name made from a path: `SmolLM2-135M-Instruct.Q4_1.gguf` gives `smollm2-135m-instruct.q4_1`."""
    stem = path.resolve().name.removesuffix(".gguf").lower()
    return check_name(re.sub(r"[^a-z0-9._-]+", "-", stem).strip("-._")[:64] or "?")


def _file(library: Library, path: Path, name: str, finished: Path, progress: Progress) -> Path:
    if path.suffix in facts.PICKLES:
        raise _pickle(path)
    weights = finished / (path.name if path.suffix == ".gguf" else f"{path.name}.gguf")
    with open_gguf(path) as file:
        found = facts.of_gguf(file)
        tokenizer = convert(file.metadata, path, finished)
    bring(path, weights, progress)
    known = [fingerprint(weights, progress)]
    return install(
        library,
        finished,
        name=name,
        source=str(path.resolve()),
        facts=found,
        tokenizer=tokenizer,
        known=known,
        progress=progress,
    )


def _folder(library: Library, path: Path, name: str, finished: Path, progress: Progress) -> Path:
    config = facts.read_json(path / "config.json")
    facts.refuse_code(path / "config.json", config)
    if not any(path.glob("*.safetensors")):
        pickles = sorted(file for file in path.iterdir() if file.suffix in facts.PICKLES)
        if pickles:
            raise _pickle(pickles[0])
    if not (path / "tokenizer.json").is_file():
        raise BadFile(
            f"{path} has no tokenizer.json",
            hint="Save it with a fast tokeniser: AutoTokenizer.from_pretrained(PATH).save_pretrained(PATH)",
        )
    with open_folder(path) as folder:
        found = facts.of_folder(folder, config)
        shards = folder.files
    tokenizer_config = _optional(path / "tokenizer_config.json")
    generation = _optional(path / "generation_config.json")
    for shard in shards:
        bring(shard, finished / shard.name, progress)
    for small in _SMALL:
        if (path / small).is_file():
            shutil.copyfile(path / small, finished / small)
    template = _template(tokenizer_config)
    if template is not None and not (finished / _TEMPLATE).exists():
        (finished / _TEMPLATE).write_text(template, encoding="utf-8", newline="")
    return install(
        library,
        finished,
        name=name,
        source=str(path.resolve()),
        facts=found,
        tokenizer=_tokenizer(path, config, tokenizer_config, generation),
        known=[fingerprint(finished / shard.name, progress) for shard in shards],
        progress=progress,
        generation={key: float(generation[key]) for key in _DEFAULTS if _is_number(generation.get(key))},
    )


def _tokenizer(
    path: Path, config: Mapping[str, Any], tokenizer_config: Mapping[str, Any], generation: Mapping[str, Any]
) -> TokenizerFacts:
    """What the folder's files say of its special tokens, and what its tokeniser really puts before a text."""
    try:
        backend = Tokenizer.from_file(str(path / "tokenizer.json"))
    except Exception as error:  # the tokenizers package raises bare Exception for a file it cannot take
        raise BadFile(f"{path / 'tokenizer.json'}: {error}", hint="Fetch the model again.") from None
    special: dict[str, str] = {}
    for name in _NAMES:
        value = tokenizer_config.get(name)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            special[name] = content
    ends = [*_numbers(generation.get("eos_token_id")), *_numbers(config.get("eos_token_id"))]
    if "eos_token" in special and (end := backend.token_to_id(special["eos_token"])) is not None:
        ends.insert(0, end)
    before = _put_before(path, backend)
    bos = backend.token_to_id(special["bos_token"]) if "bos_token" in special else None
    return TokenizerFacts(
        bos_token=before if before is not None else bos,
        add_bos=before is not None,
        end_tokens=list(dict.fromkeys(ends)),
        special_tokens=special,
    )


def _put_before(path: Path, backend: Tokenizer) -> int | None:
    """The one token that the tokeniser begins a text with, None for none; anything more is refused."""
    plain = backend.encode("a", add_special_tokens=False).ids
    whole = backend.encode("a", add_special_tokens=True).ids
    if whole == plain:
        return None
    if whole[1:] != plain:
        raise BadFile(
            f"{path / 'tokenizer.json'} puts {whole} where the text is {plain}; only a token before it is supported"
        )
    return int(whole[0])


def _template(tokenizer_config: Mapping[str, Any]) -> str | None:
    """The chat template in a tokeniser's configuration: alone, or the one called default."""
    found = tokenizer_config.get("chat_template")
    if isinstance(found, list):
        named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _optional(path: Path) -> dict[str, Any]:
    return facts.read_json(path) if path.is_file() else {}


def _numbers(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [one for one in values if isinstance(one, int) and not isinstance(one, bool)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _pickle(path: Path) -> BadFile:
    return BadFile(
        f"{path} is pickled: opening it can run anything, so it is never opened",
        hint="Take the model as safetensors or GGUF, or convert it on a machine you can spare.",
    )
