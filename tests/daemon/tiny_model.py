"""A model directory without weights: a byte-level tokeniser with few merges, a ChatML template, a manifest."""

from __future__ import annotations

from pathlib import Path

import msgspec
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from homebox.library.manifest import Manifest

CONTEXT = 1024
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CORPUS = [
    "what is for dinner tonight and who is going to cook the soup for us",
    "the cat sat on the table and the dog ran over the garden wall",
    "tell me a story about a small boat on a large sea with many fish",
    "<think> the answer </think> user assistant system",
]


def build(library: Path, name: str = "tiny", context: int = CONTEXT) -> Path:
    """Write `<library>/<name>` and return it."""
    folder = library / name
    folder.mkdir(parents=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[
            AddedToken(mark, special=True, normalized=False)
            for mark in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
        ],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    manifest = Manifest(
        name=name,
        source="test",
        format="gguf",
        architecture="llama",
        quantisation="F32",
        context=context,
        vocab_size=tokenizer.get_vocab_size(),
        parameters=1000,
        files=[],
        end_tokens=[0, 2],
        generation={"temperature": 0.7},
        installed_at=1_700_000_000.0,
    )
    (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    return folder
