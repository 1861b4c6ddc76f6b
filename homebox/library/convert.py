"""How does the tokeniser inside a GGUF file become a tokenizer.json?

Done once, at install, so that the daemon reads one format only. Byte-level BPE is converted, for the named ways of
splitting text that are listed here with the patterns their models were published with; another one would give other
tokens than the model was trained on, so it is refused by name. The file's metadata has already been checked for form by
`formats/gguf.py`, not for sense.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from homebox.errors import BadFile

_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_2 = _LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")
_CONTROL, _USER_DEFINED = 3, 4
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_NAMES = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "unk_token": "unknown_token_id",
          "pad_token": "padding_token_id"}  # fmt: skip


@dataclass(frozen=True)
class TokenizerFacts:
    """What the manifest says about a tokeniser. `special_tokens` are the names that a chat template may use."""

    bos_token: int | None = None
    add_bos: bool = False
    end_tokens: list[int] = field(default_factory=list)
    special_tokens: dict[str, str] = field(default_factory=dict)


def _split(pattern: str) -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _gpt_2() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt_2()])


SPLITTERS: Mapping[str, Callable[[], Any]] = {
    "gpt-2": _gpt_2,
    "llama-bpe": lambda: _split(_LLAMA_3),
    "qwen2": lambda: _split(_QWEN_2),
    "smollm": _smollm,
}


def convert(metadata: Mapping[str, Any], source: Path, target: Path) -> TokenizerFacts:
    """Write tokenizer.json, and chat_template.jinja where the file has one, into `target`.

    `source` is named in errors. Raises BadFile for a tokeniser of another kind, or one that makes no sense.
    """
    model = metadata.get("tokenizer.ggml.model")
    splitter = metadata.get("tokenizer.ggml.pre")
    if model != "gpt2":
        raise BadFile(
            f"{source}: a tokeniser of the kind {model!r} cannot be converted yet",
            hint="Adopt the model's safetensors folder with its tokenizer.json instead.",
        )
    if not isinstance(splitter, str) or splitter not in SPLITTERS:
        raise BadFile(
            f"{source}: the text splitting {splitter!r} is not known here, and a guess would give wrong tokens",
            hint=f"Known: {', '.join(SPLITTERS)}. Or adopt the model's safetensors folder with its tokenizer.json.",
        )
    tokens = _texts(metadata, "tokenizer.ggml.tokens", source)
    backend = _bpe(tokens, _texts(metadata, "tokenizer.ggml.merges", source), source)
    backend.pre_tokenizer = SPLITTERS[splitter]()
    backend.decoder = decoders.ByteLevel()
    if splitter == "llama-bpe":
        backend.model.ignore_merges = True
    if splitter == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.add_tokens(_added(metadata, tokens, source))
    backend.save(str(target / "tokenizer.json"), pretty=False)
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str) and template:
        (target / "chat_template.jinja").write_text(template, encoding="utf-8", newline="")
    return _facts(metadata, tokens, source, default_bos=splitter == "llama-bpe")


def _bpe(tokens: list[str], merges: list[str], source: Path) -> Tokenizer:
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise BadFile(f"{source}: {len(tokens) - len(vocabulary)} tokens of the vocabulary are there twice")
    pairs: list[tuple[str, str]] = []
    for number, merge in enumerate(merges):
        left, _, right = merge.partition(" ")
        if not (left in vocabulary and right in vocabulary and left + right in vocabulary):
            raise BadFile(f"{source}: merge {number}, {merge!r}, does not fit the vocabulary")
        pairs.append((left, right))
    return Tokenizer(BPE(vocab=vocabulary, merges=pairs, fuse_unk=False, byte_fallback=False))


def _added(metadata: Mapping[str, Any], tokens: list[str], source: Path) -> list[AddedToken]:
    """Control tokens, and those that were added whole later, in the order of their numbers."""
    kinds = metadata.get("tokenizer.ggml.token_type")
    if not isinstance(kinds, list) or len(kinds) != len(tokens):
        raise BadFile(f"{source}: the tokeniser has {len(tokens)} tokens, and not a type for each")
    return [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind in (_CONTROL, _USER_DEFINED)
    ]


def _facts(
    metadata: Mapping[str, Any], tokens: list[str], source: Path, *, default_bos: bool
) -> TokenizerFacts:
    numbers: dict[str, int] = {}
    for key in {*_END_KEYS, *_NAMES.values()}:
        number = metadata.get(f"tokenizer.ggml.{key}")
        if number is None:
            continue
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < len(tokens):
            raise BadFile(f"{source}: {key} is {number!r} in a vocabulary of {len(tokens)} tokens")
        numbers[key] = number
    return TokenizerFacts(
        bos_token=numbers.get("bos_token_id"),
        add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", default_bos)),
        end_tokens=list(dict.fromkeys(numbers[key] for key in _END_KEYS if key in numbers)),
        special_tokens={name: tokens[numbers[key]] for name, key in _NAMES.items() if key in numbers},
    )


def _texts(metadata: Mapping[str, Any], key: str, source: Path) -> list[str]:
    found = metadata.get(key)
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise BadFile(f"{source}: no list of texts under {key}", hint="The file carries no whole tokeniser.")
    return found
