"""Which bytes does one token stand for?

A tokeniser file says so through its decoder. Two kinds are read, which cover the Llama-like families: byte-level BPE,
where each character of a token stands for one byte (the table published with GPT-2), and SentencePiece-like
vocabularies, where a low line block stands for a space and `<0x0A>` for a byte. Anything else is refused by name, never
guessed at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from homebox.errors import BadFile

_SPACE = "\u2581"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SENTENCEPIECE = {"Sequence", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}


def _printable_bytes() -> dict[str, int]:
    """GPT-2's table: printable bytes stand for themselves, the other 68 for characters from U+0100 on."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in own} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


_BYTES = _printable_bytes()


class Pieces:
    """Bytes of tokens, remembered once they were asked for."""

    def __init__(self, to_bytes: Callable[[str], bytes]) -> None:
        self._to_bytes = to_bytes
        self._known: dict[int, bytes] = {}

    def of(self, token: int, text_of: Callable[[int], str | None]) -> bytes:
        """The bytes of a token; none for an id without a text."""
        if token not in self._known:
            text = text_of(token)
            self._known[token] = b"" if text is None else self._to_bytes(text)
        return self._known[token]


def piece_table(file: Mapping[str, msgspec.Raw]) -> Pieces:
    """The table for a parsed tokenizer.json. Raises BadFile for a decoder of another kind."""
    decoder = msgspec.json.decode(file.get("decoder", b"null"))
    kinds = list(_kinds(decoder))
    if kinds in (["ByteLevel"], ["Sequence", "ByteLevel"]):
        return Pieces(_byte_level)
    if kinds and set(kinds) <= _SENTENCEPIECE and _SPACE in str(decoder):
        return Pieces(_with_byte_fallback if "ByteFallback" in kinds else _sentencepiece)
    raise BadFile(
        f"the tokeniser's decoder {' + '.join(kinds) or 'none'} is not supported",
        hint="Byte-level BPE and SentencePiece-like tokenisers are read.",
    )


def _kinds(decoder: Any) -> Iterator[str]:
    if isinstance(decoder, dict):
        yield str(decoder.get("type"))
        for inner in decoder.get("decoders", []):
            yield from _kinds(inner)


def _byte_level(text: str) -> bytes:
    if all(char in _BYTES for char in text):
        return bytes(_BYTES[char] for char in text)
    return text.encode("utf-8")  # an added token, written as it is


def _sentencepiece(text: str) -> bytes:
    return text.replace(_SPACE, " ").encode("utf-8")


def _with_byte_fallback(text: str) -> bytes:
    byte = _BYTE.fullmatch(text)
    return bytes([int(byte[1], 16)]) if byte else _sentencepiece(text)
