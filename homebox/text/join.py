"""Which of the tokens that were computed for the last answer does the next prompt begin with?

A model's answer need not be cut into tokens the way its tokeniser would cut the same text, so a conversation that is
tokenised afresh would miss the prefix cache from the answer on. Here the tokens that were computed are laid along the
newly rendered text and used as far as they stand for it exactly: control tokens only where the template has put a mark,
never for text that looks like one. It knows no templates and no caches.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Computed:
    """The ids of one prompt and of what was answered, in one; the first `prompt` of them are the prompt."""

    ids: Sequence[int]
    prompt: int


def shared(
    computed: Computed,
    parts: Sequence[str],
    controls: Sequence[list[int]],
    bytes_of: Callable[[int], bytes],
    special: Container[int],
) -> tuple[list[int], list[str], list[list[int]]]:
    """The ids that can be used, and the parts and controls that are left to be encoded after them.

    `parts` are the texts between control marks, `controls` the ids of those marks (one fewer). The ids are cut where
    tokenising afresh would cut, too (after a control mark), or anywhere in the answer between two characters: a model
    goes on from its own words however they were cut, while a word of a prompt should not be cut in two.

    Raises UnicodeEncodeError for text that is none."""
    ids = computed.ids
    part, at, used = 0, 0, 0  # the place in the text, and how many ids lead to it
    good = (0, 0, 0)
    text = parts[0].encode()
    while used < len(ids):
        if at == len(text) and part < len(controls):
            control = controls[part]
            if list(ids[used : used + len(control)]) == control:
                used, part, at = used + len(control), part + 1, 0
                text = parts[part].encode()
                good = (used, part, 0)
                continue
        token = b"" if ids[used] in special else bytes_of(ids[used])
        if not token or not text.startswith(token, at):
            break
        used, at = used + 1, at + len(token)
        if used >= computed.prompt and not _inside_character(text, at):
            good = (used, part, at)
    used, part, at = good
    left = [parts[part].encode()[at:].decode(), *parts[part + 1 :]]
    return list(ids[:used]), left, list(controls[part:])


def _inside_character(text: bytes, at: int) -> bool:
    return at < len(text) and text[at] & 0xC0 == 0x80
