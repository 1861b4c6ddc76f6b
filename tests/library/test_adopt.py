"""Taking in models from this disk: what is taken, and what is refused before anything is installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from homebox.errors import BadFile, UsageError
from homebox.library.adopt import adopt, suggest_name
from homebox.library.store import Library
from homebox.text.tokens import Tokenizer
from tests.library.small_models import write_gguf, write_json


def edit(path: Path, **changes: object) -> None:
    write_json(path, json.loads(path.read_text()) | changes)


def test_a_gguf_file_becomes_a_model_that_answers_with_its_own_facts(
    library: Library, gguf_file: Path
) -> None:
    where = adopt(library, gguf_file)
    model = library.read("tiny-chat.q8_0")
    assert where == library.path(model.name)
    assert (model.format, model.architecture, model.quantisation) == ("gguf", "llama", "Q8_0")
    assert (model.context, model.parameters, model.licence) == (128, 64 * 64, "cc0-1.0")
    assert model.end_tokens == [2, 1]  # the file's own, then the one its template writes
    assert model.source == str(gguf_file)
    tokenizer = Tokenizer.load(where)
    assert tokenizer.vocab_size == model.vocab_size
    assert (
        tokenizer.decode(tokenizer.render([{"role": "user", "content": "the"}])) == "user\nthe\nassistant\n"
    )


def test_a_safetensors_folder_becomes_a_model_with_its_generation_defaults(
    library: Library, folder: Path
) -> None:
    where = adopt(library, folder)
    model = library.read("tiny-llama")
    assert (model.format, model.architecture, model.quantisation) == ("safetensors", "llama", "BF16")
    assert (model.context, model.vocab_size, model.parameters) == (64, 300, 20)
    assert (model.bos_token, model.add_bos, model.end_tokens) == (0, True, [2, 1])
    assert model.generation == {"temperature": 0.6, "top_k": 40}
    assert model.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|endoftext|>"}
    assert {path.name for path in where.iterdir()} >= {"config.json", "chat_template.jinja", "tokenizer.json"}
    assert library.verify("tiny-llama") == model
    assert Tokenizer.load(where).encode("ab")[0] == 0


def test_weights_are_linked_when_only_we_can_write_them_else_copied(
    library: Library, gguf_file: Path, tmp_path: Path
) -> None:
    gguf_file.chmod(0o644)
    linked = adopt(library, gguf_file, "linked") / gguf_file.name
    assert linked.samefile(gguf_file)
    gguf_file.chmod(0o664)
    copied = adopt(library, gguf_file, "copied") / gguf_file.name
    assert not copied.samefile(gguf_file)
    assert copied.read_bytes() == gguf_file.read_bytes()
    alias = tmp_path / "alias.gguf"
    alias.symlink_to(gguf_file)
    assert not (adopt(library, alias, "alias") / "alias.gguf").is_symlink()


def test_a_template_comes_from_its_own_file_first_then_from_a_list_of_named_ones(
    library: Library, folder: Path
) -> None:
    edit(
        folder / "tokenizer_config.json",
        chat_template=[{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}],
    )
    assert (adopt(library, folder, "a") / "chat_template.jinja").read_text() == "d"
    (folder / "chat_template.jinja").write_bytes(b"own\r\n")
    assert (adopt(library, folder, "b") / "chat_template.jinja").read_bytes() == b"own\r\n"


REFUSED = {
    "code of its own": (lambda f: edit(f / "config.json", auto_map={"AutoModel": "x.Y"}), "never run"),
    "another architecture": (lambda f: edit(f / "config.json", model_type="mamba"), "'mamba' is not supported"),
    "another class": (lambda f: edit(f / "config.json", architectures=["LlamaForTokenClassification"]), "not supported"),
    "quantised weights": (lambda f: edit(f / "config.json", quantization_config={"bits": 4}), "quantised"),
    "no context length": (lambda f: edit(f / "config.json", max_position_embeddings="long"), "max_position_embeddings"),
    "a config that is a list": (lambda f: (f / "config.json").write_text("[]"), "config.json"),
    "no config": (lambda f: (f / "config.json").unlink(), "is missing"),
    "no tokeniser": (lambda f: (f / "tokenizer.json").unlink(), "no tokenizer.json"),
    "a broken tokeniser": (lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer.json"),
    "a broken template": (lambda f: (f / "chat_template.jinja").write_text("{% if"), "chat template"),
    "a template of no text": (lambda f: (f / "chat_template.jinja").write_bytes(b"\xff"), "utf-8"),
    "fewer weights than tokens": (lambda f: edit(f / "config.json", vocab_size=100), "100"),
    "a missing shard": (lambda f: (f / "model-00002-of-00002.safetensors").unlink(), "00002"),
    "odd tensors": (
        lambda f: save_file({"b": torch.ones(4, dtype=torch.int8)}, f / "model-00002-of-00002.safetensors"),
        "is I8",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_folder_we_cannot_run_is_refused_with_the_reason_and_leaves_nothing(
    name: str, library: Library, folder: Path
) -> None:
    spoil, words = REFUSED[name]
    spoil(folder)
    with pytest.raises(BadFile, match=words):
        adopt(library, folder, "tiny")
    assert [path.name for path in library.root.iterdir()] == [".lock-tiny"]


def test_pickled_weights_are_never_taken(library: Library, folder: Path, tmp_path: Path) -> None:
    for shard in folder.glob("*.safetensors"):
        shard.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(BadFile, match="pickled"):
        adopt(library, folder)
    with pytest.raises(BadFile, match="pickled"):
        adopt(library, folder / "pytorch_model.bin", "x")


def test_a_gguf_file_we_cannot_run_is_refused_with_the_reason(library: Library, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    for options, words in (
        ({"arch": "mamba"}, "'mamba' is not supported"),
        ({"pre": "tekken"}, "'tekken' is not known"),
        ({"model": "bert"}, "'bert' cannot be converted"),
        ({"kind": "Q4_K"}, "Q4_K, which is not supported"),
    ):
        with pytest.raises(BadFile, match=words) as caught:
            adopt(library, write_gguf(path, **options), "tiny")
        assert caught.value.hint
    path.write_bytes(b"GGUF")
    with pytest.raises(BadFile, match=str(path)):
        adopt(library, path, "tiny")


def test_names_are_made_from_paths_kept_unique_and_checked(
    library: Library, gguf_file: Path, tmp_path: Path
) -> None:
    assert suggest_name(Path("/x/Llama 3.2 (1B)/")) == "llama-3.2-1b"
    adopt(library, gguf_file, "tiny")
    with pytest.raises(UsageError, match="installed already"):
        adopt(library, gguf_file, "tiny")
    with pytest.raises(UsageError, match="cannot be a model's name"):
        adopt(library, gguf_file, "../x")
    with pytest.raises(UsageError, match="does not exist"):
        adopt(library, tmp_path / "none")
