"""What is in a block, and which block holds this?

Content is identified by (the parent block's content id, the block's tokens, extra), compared in full: the hash only
finds candidates and is never trusted. Content ids are never reused, so a child whose parent was forgotten can not be
reached by mistake. The blocks of the pool and the slots of the host tier each have one of these; no tensors here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

ROOT = 0  # the content id of "nothing before"
BLANK = -1  # the content id of a place whose content nobody can name

Key = tuple[int, tuple[int, ...], Hashable]


class Contents:
    """Of so many places, what each holds. `hash_key` may be weak (tests use one byte): it only chooses a bucket."""

    def __init__(self, places: int, hash_key: Callable[[Key], int] = hash) -> None:
        self.id = [BLANK] * places
        self.key: list[Key | None] = [None] * places
        self._hash_key = hash_key
        self._buckets: dict[int, list[int]] = {}

    def find(self, key: Key) -> int | None:
        """The place with exactly this content."""
        for place in self._buckets.get(self._hash_key(key), ()):
            if self.key[place] == key:
                return place
        return None

    def put(self, place: int, key: Key, content: int) -> None:
        """A blank place holds this from now on. No other does."""
        self.id[place], self.key[place] = content, key
        self._buckets.setdefault(self._hash_key(key), []).append(place)

    def forget(self, place: int) -> None:
        hashed = self._hash_key(self.named(place))
        bucket = self._buckets[hashed]
        bucket.remove(place)
        if not bucket:
            del self._buckets[hashed]
        self.id[place], self.key[place] = BLANK, None

    def named(self, place: int) -> Key:
        """The key of a place that is not blank."""
        key = self.key[place]
        assert key is not None
        return key

    def held(self) -> dict[Key, int]:
        """The content id of every key that is in here."""
        return {key: content for key, content in zip(self.key, self.id, strict=True) if key is not None}

    def check(self) -> None:
        """Raises AssertionError where the index does not say what the places do, or two places hold the same."""
        indexed = sorted(place for bucket in self._buckets.values() for place in bucket)
        known = [place for place, content in enumerate(self.id) if content != BLANK]
        assert indexed == known == [p for p, key in enumerate(self.key) if key is not None], (
            "the index is wrong"
        )
        assert len({self.id[place] for place in known}) == len(self.held()) == len(known), "held twice"
