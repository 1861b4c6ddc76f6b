"""Small tokenisers of the two kinds, made by the reference library, in model directories as the library installs them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from homebox.library.manifest import Manifest
from homebox.text.tokens import Tokenizer as Ours

MARKS = ("<|end|>", "<|start|>", "<s>")
CHATML = (
    "{% for m in messages %}{{ '<|start|>' + m.role + '\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
)


def byte_level() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [
        ("Ġ", "t"),
        ("h", "e"),
        ("Ġt", "he"),
        ("ð", "Ł"),
        ("ðŁ", "ĺ"),
        ("a", "b"),
        ("Ã", "©"),
        ("<", "|"),
    ]
    vocabulary = [*alphabet, *(left + right for left, right in merges)]
    backend = Tokenizer(models.BPE(vocab={token: n for n, token in enumerate(vocabulary)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def sentencepiece() -> Tokenizer:
    pieces = [
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "a",
        "b",
        "c",
        "é",
        "ab",
        "▁a",
        "▁ab",
    ]
    merges = [("a", "b"), ("▁", "a"), ("▁", "ab")]
    model = models.BPE(
        vocab={p: n for n, p in enumerate(pieces)},
        merges=merges,
        byte_fallback=True,
        unk_token="<unk>",
        fuse_unk=True,
    )
    backend = Tokenizer(model)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


def write_model(folder: Path, backend: Tokenizer, template: str | None, **manifest: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    facts = {
        "name": folder.name,
        "source": "test",
        "format": "gguf",
        "architecture": "llama",
        "quantisation": "F32",
        "context": 64,
        "vocab_size": 1000,
        "parameters": 1,
        "files": [],
        "installed_at": time.time(),
    }
    (folder / "manifest.json").write_bytes(msgspec.json.encode(Manifest(**(facts | manifest))))
    return folder


@pytest.fixture(scope="session")
def make_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Make a model directory: a kind of tokeniser, a template, flags of its marks, and what the manifest shall say."""
    kinds = {"byte level": byte_level, "sentencepiece": sentencepiece}

    def build(
        kind: str = "byte level", template: str | None = CHATML, flags: Any = None, **manifest: Any
    ) -> Path:
        backend = kinds[kind]()
        backend.add_special_tokens([AddedToken(mark, normalized=False, **(flags or {})) for mark in MARKS])
        backend.add_tokens([AddedToken("<tool>", normalized=False)])
        if "end_tokens" not in manifest:
            manifest["end_tokens"] = [backend.token_to_id("<|end|>")]
        return write_model(tmp_path_factory.mktemp("model"), backend, template, **manifest)

    return build


@pytest.fixture(scope="session")
def make(make_dir: Callable[..., Path]) -> Callable[..., Ours]:
    """The same, loaded."""
    return lambda *args, **kwargs: Ours.load(make_dir(*args, **kwargs))


@pytest.fixture(scope="session")
def real(default_model: Path) -> Ours:
    """The default model's tokeniser."""
    return Ours.load(default_model)
