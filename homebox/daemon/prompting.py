"""Which tokens does the engine get for these messages, or for this text?

The one place where dialects meet templates and the tokeniser. Large texts are turned into tokens by a process of their
own, so that one person's document does not hold up everybody's next token.
"""

from __future__ import annotations

from collections.abc import Sequence

from homebox.daemon.text_process import TextProcess
from homebox.errors import InvalidRequest
from homebox.text.join import Computed
from homebox.text.tokens import Tokenizer
from homebox.wire.requests import Message

INLINE_CHARACTERS = 8_192  # at most about five milliseconds of tokenising


class Prompts:
    """`large` does what is too much for the event loop."""

    def __init__(self, tokenizer: Tokenizer, large: TextProcess) -> None:
        self._tokenizer, self._large = tokenizer, large

    async def of_chat(self, messages: Sequence[Message], computed: Computed | None = None) -> list[int]:
        """The conversation through the model's template; a last message of the assistant is left open and continued.
        It begins with the tokens that were `computed` before, as far as they stand for it.

        Raises InvalidRequest where there are no messages, the template refuses them or they take too long."""
        if not messages:
            raise InvalidRequest("there are no messages", param="messages")
        plain = [{"role": message.role, "content": message.content} for message in messages]
        go_on = messages[-1].role == "assistant"
        if sum(len(message.content) for message in messages) <= INLINE_CHARACTERS:
            return self._tokenizer.render(plain, continue_last=go_on, computed=computed)
        return await self._large.render(plain, continue_last=go_on, computed=computed)

    async def of_text(self, text: str) -> list[int]:
        """Raises InvalidRequest for text that is no Unicode or takes too long."""
        if len(text) <= INLINE_CHARACTERS:
            return self._tokenizer.encode(text)
        return await self._large.encode(text)

    async def close(self) -> None:
        await self._large.close()


def template_preamble(tokenizer: Tokenizer) -> list[int]:
    """The tokens that the model's template writes before anybody's first word, the same for everyone: the daemon
    vouches for them, so that they are computed once for the whole house. Empty for a model without a template."""
    try:
        first, second = (tokenizer.render([{"role": "user", "content": text}]) for text in ("a", "b"))
    except InvalidRequest:
        return []
    return first[: next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), 0)]
