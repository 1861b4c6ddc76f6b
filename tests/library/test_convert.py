"""The tokeniser out of a GGUF file, against the one transformers makes of the same file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from homebox.errors import BadFile
from homebox.formats.gguf import open_gguf
from homebox.library.convert import SPLITTERS, convert
from tests.library.small_models import CONTROL, vocabulary, write_gguf

ODD = [
    "",
    " ",
    "Hello, world!  How's it going? I'm, you've, he'll, WE'RE, they'd, DON'T 'tis",
    "1 12 123 1234 12345.6789e-10 0x1F ½ ² ٣٤٥ １２３",
    "def f(x):\n    return {'a': [x ** 2, x != 3]}  # ok\n\n\n\t\tif x:\r\n        pass\r\n",
    "   leading and trailing   \n \n\t ",
    "日本語のテキスト、中文文本。한국어 텍스트",
    "👪 👨‍👩‍👧‍👦 🇵🇹 👍🏽 🫠 ❤️",
    "e\u0301 é ﬁ Å Å ǆ naïve Zoë coöperate",
    "العربية עברית हिन्दी ไทย",
    "a\u00a0b\u2003c\u200bd\ufeffe\u2028f\x00g\x7f",
    "<|im_start|>user\nhi<|im_end|> <|endoftext|><repo_name>",
    "http://example.org/a?b=c&d=%20#e_f snake_case CamelCase kebab-case",
    "!!!???...---___***///\\\\\\|||",
]
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)


@pytest.fixture(scope="module")
def metadata(default_model: Path) -> dict[str, Any]:
    (path,) = default_model.glob("*.gguf")
    with open_gguf(path) as file:
        return dict(file.metadata)


def as_published(backend: Tokenizer, splitter: str) -> Tokenizer:
    """Put back what a GGUF file does not say and transformers' conversion therefore leaves out."""
    if splitter == "llama-bpe":  # whole words of the vocabulary come before merges in Llama 3's own tokeniser
        backend.model.ignore_merges = True
    if splitter == "qwen2":
        backend.normalizer = normalizers.NFC()
    if splitter == "smollm":  # digit by digit, then GPT-2's pattern
        words = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
        splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in (r"\p{N}", words)]
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    return backend


@pytest.mark.model
@pytest.mark.parametrize("splitter", SPLITTERS)
def test_any_text_becomes_the_tokens_that_transformers_conversion_gives(
    splitter: str, metadata: dict[str, Any], tmp_path: Path
) -> None:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer

    convert(metadata | {"tokenizer.ggml.pre": splitter}, Path("x.gguf"), tmp_path)
    ours = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    converted, _ = convert_gguf_tokenizer(
        "llama",
        {
            "tokenizer_type": "gpt2",
            "pre_tokenizer_type": splitter,
            "tokens": metadata["tokenizer.ggml.tokens"],
            "merges": metadata["tokenizer.ggml.merges"],
            "token_type": metadata["tokenizer.ggml.token_type"],
        },
    )
    theirs = as_published(converted, splitter)

    def same(text: str) -> None:
        ids = ours.encode(text, add_special_tokens=False).ids
        assert ids == theirs.encode(text, add_special_tokens=False).ids
        assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids, skip_special_tokens=False)

    for text in ODD:
        same(text)
    settings(max_examples=60, deadline=None)(given(ANY_TEXT)(same))()


def test_control_tokens_are_special_and_user_defined_ones_are_only_whole(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "t.gguf")
    with open_gguf(path) as file:
        facts = convert(file.metadata, path, tmp_path)
    added = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).get_added_tokens_decoder()
    assert {token.content: token.special for token in added.values()} == dict.fromkeys(CONTROL, True) | {
        "<tool>": False
    }
    assert [added[number].content for number in sorted(added)] == [*CONTROL, "<tool>"]
    assert facts.end_tokens == [2]
    assert facts.special_tokens == {"eos_token": "<|endoftext|>"}


def test_the_end_tokens_are_all_that_the_file_names_and_llama_3_begins_with_bos(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "t.gguf", pre="llama-bpe")
    with open_gguf(path) as file:
        named = {
            "tokenizer.ggml.eot_token_id": 1,
            "tokenizer.ggml.eom_token_id": 2,
            "tokenizer.ggml.bos_token_id": 0,
        }
        facts = convert(file.metadata | named, path, tmp_path)
        assert (facts.end_tokens, facts.bos_token, facts.add_bos) == ([2, 1], 0, True)
        facts = convert(file.metadata | named | {"tokenizer.ggml.add_bos_token": False}, path, tmp_path)
        assert not facts.add_bos


SENSELESS = {
    "no tokens": ("tokenizer.ggml.tokens", None, "tokens"),
    "tokens that are numbers": ("tokenizer.ggml.tokens", [1, 2], "tokens"),
    "a token twice": ("tokenizer.ggml.tokens", ["a", "a"], "there twice"),
    "a merge of nothing": ("tokenizer.ggml.merges", ["ab"], "merge 0"),
    "a merge of strangers": ("tokenizer.ggml.merges", ["Ġ Q"], "merge 0"),
    "types for others": ("tokenizer.ggml.token_type", [1], "not a type for each"),
    "an end beyond the vocabulary": ("tokenizer.ggml.eos_token_id", 10**6, "1000000"),
    "a splitter that is a number": ("tokenizer.ggml.pre", 7, "7"),
    "no kind": ("tokenizer.ggml.model", None, "None"),
}


@pytest.mark.parametrize("name", SENSELESS)
def test_a_tokeniser_that_makes_no_sense_is_refused(name: str, tmp_path: Path) -> None:
    key, value, words = SENSELESS[name]
    path = write_gguf(tmp_path / "t.gguf")
    with open_gguf(path) as file, pytest.raises(BadFile, match=words) as caught:
        convert(file.metadata | {key: value}, path, tmp_path)
    assert str(path) in caught.value.message
    assert len(vocabulary()) == len(set(vocabulary()))
