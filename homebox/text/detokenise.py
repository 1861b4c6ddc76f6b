"""Which text can be shown now, while tokens are still arriving?

A token may end in the middle of a character. The bytes of such a character are held back until it is whole, so that
nobody ever sees U+FFFD where a character was on its way; bytes that can no longer become one are U+FFFD at once. What
all pushes and the flush gave, joined, is what `Tokenizer.decode` gives for all tokens together. Each token costs only
its own bytes. The daemon holds one of these for each answer; stop strings and reasoning come after it.
"""

from __future__ import annotations

import codecs

from homebox.text.tokens import Tokenizer


class Detokeniser:
    """For one answer. `length` is the number of characters given so far: the offset where the next token's text begins.

    A token that only completes a part of a character gives an empty text, and the one that completes it the whole
    character.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self.length = 0
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def push(self, token: int) -> str:
        """The text that this token makes certain; control tokens give none unless `skip_special` is off."""
        text = self._decode(self._tokenizer.token_bytes(token, skip_special=self._skip_special))
        self.length += len(text)
        return text

    def flush(self) -> str:
        """At the end of the answer: a character that never became whole, as U+FFFD."""
        text = self._decode(b"", True)
        self.length += len(text)
        return text
