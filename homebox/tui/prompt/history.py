"""Which of my earlier prompts is the one before this one?

The person's own messages of this conversation and what was sent or cleared since the screen was opened; nothing is
written anywhere. What is being typed is the newest entry, and whatever is changed on the way stays changed until
something is sent. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from homebox.tui.prompt.composing import Draft


class History:
    """Entries oldest first; `_at` is the one in the prompt, one past the last where it is what is being typed."""

    def __init__(self) -> None:
        self._told: list[str] = []
        self._since: list[Draft] = []
        self._entries: list[Draft] = []
        self._changed: dict[int, Draft] = {}
        self._at = 0
        self._cleared = False

    @property
    def has_cleared(self) -> bool:
        """The newest entry was cleared away and never sent."""
        return self._cleared

    def remember(self, texts: Iterable[str]) -> None:
        """The person's messages of another conversation, oldest first."""
        self._told = list(texts)
        self._begin_again()

    def add(self, draft: Draft, *, cleared: bool = False) -> None:
        """Something was sent, or cleared away."""
        if draft.empty:
            return
        if not self._since or self._since[-1].whole != draft.whole:
            self._since.append(draft)
        self._cleared = cleared
        self._begin_again()

    def step(self, by: int, now: Draft) -> Draft | None:
        """What stands `by` entries further; None where there is no more. `now` is what is in the prompt."""
        to = self._at + by
        if not 0 <= to <= len(self._entries):
            return None
        self._changed[self._at] = now
        self._at = to
        if to in self._changed:
            return self._changed[to]
        return self._entries[to] if to < len(self._entries) else Draft()

    def _begin_again(self) -> None:
        since = {draft.whole for draft in self._since}
        told = [Draft.of(text) for text in self._told if text not in since]
        self._entries = told + self._since
        self._changed.clear()
        self._at = len(self._entries)
