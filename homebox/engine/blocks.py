"""Which block of KV memory belongs to whom, and what does it hold?

A block holds the keys and values of `block_size` consecutive tokens. Every block is in exactly one place:

    free     blank, in the free list
    cached   nobody uses it, but its content is known: a hit until it is reused, least recently used first.
             The free list *is* the prefix cache; there is no second structure.
    used     referenced by `refs` block tables (or by frees that wait for a running step)

What a content is, and how it is found, is said in `contents.py`. Sequences free their tables from the tail, so children
are evicted before their parents. What is evicted goes on in the host tier, where there is one (`tier.py`): a hit is a
block, or a slot there that costs a block and a move.

`KVSpace` puts the pools of all layer groups under one roof and knows about steps: what a running step may still read
is freed when that step completes. No tensors here: the pool hands out numbers.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

from homebox.engine.contents import BLANK, ROOT, Contents, Key
from homebox.engine.request import Sequence
from homebox.engine.tier import Moves, Tier

BEHIND_WINDOW = -1  # in a block table: this block was given back, no query can see it any more
ON_HOST = -1  # in a hit: no block has this content


@dataclass(frozen=True)
class Group:
    """Layers that share one block table. `window`: how many tokens back a query sees; None is all of them."""

    layers: tuple[int, ...]
    window: int | None = None


class Hit(NamedTuple):
    """Where a content is: in `block`, or in `slot` of the host tier where that is ON_HOST."""

    content: int
    block: int
    slot: int = -1


class BlockPool:
    """The blocks of one group, and `host_slots` for what is evicted."""

    def __init__(
        self, total: int, block_size: int, hash_key: Callable[[Key], int] = hash, host_slots: int = 0
    ) -> None:
        self.total = total
        self.block_size = block_size
        self.refs = [0] * total
        self.contents = Contents(total, hash_key)
        self.tier = Tier(host_slots, hash_key)
        self._free: deque[int] = deque(range(total))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._next_content = ROOT + 1

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def available(self) -> int:
        """Blocks that `allocate` can give: free ones, and cached ones whose content would be evicted."""
        return len(self._free) + len(self._cached)

    @property
    def used(self) -> int:
        return self.total - self.available

    def allocate(self) -> int:
        """One blank block with one reference. The caller has checked `available`."""
        if self._free:
            block = self._free.popleft()
        else:
            block, _ = self._cached.popitem(last=False)
            self.tier.keep(block, self.contents.named(block), self.contents.id[block])
            self.contents.forget(block)
        self.refs[block] = 1
        return block

    def find(self, key: Key) -> Hit | None:
        """Where exactly this content is: in a used or cached block, or on the host. Pure."""
        if (block := self.contents.find(key)) is not None:
            return Hit(self.contents.id[block], block)
        if (slot := self.tier.find(key)) is not None:
            return Hit(self.tier.contents.id[slot], ON_HOST, slot)
        return None

    def take(self, block: int) -> None:
        """One more reference to a used or cached block."""
        if self.refs[block] == 0:
            del self._cached[block]
        self.refs[block] += 1

    def adopt(self, hits: Seq[Hit]) -> list[int]:
        """A reference to each of these contents, in blocks that may have to be filled from the host first. The caller has
        checked `available`."""
        # In this order: what is evicted to make room for some of them must be none of the others.
        for hit in hits:
            if hit.block == ON_HOST:
                self.tier.want(hit.slot)
            else:
                self.take(hit.block)
        return [self._bring(hit.slot) if hit.block == ON_HOST else hit.block for hit in hits]

    def _bring(self, slot: int) -> int:
        block, kept = self.allocate(), self.tier.contents
        self.contents.put(block, kept.named(slot), kept.id[slot])
        self.tier.move_back(slot, block)
        return block

    def touch(self, hit: Hit) -> None:
        """Somebody goes on from this content and needs no block of it."""
        if hit.block == ON_HOST:
            self.tier.touch(hit.slot)
        elif self.refs[hit.block] == 0:
            self._cached.move_to_end(hit.block)

    def give_back(self, blocks: Iterable[int]) -> None:
        """One reference less to each; at none, a block with known content stays as a cache entry. In this order: of
        cached blocks the first is evicted first."""
        refs, content, free, cached = self.refs, self.contents.id, self._free, self._cached
        for block in blocks:
            refs[block] -= 1
            if refs[block] == 0:
                if content[block] == BLANK:
                    free.append(block)
                else:
                    cached[block] = None

    def seal(self, block: int, key: Key) -> int:
        """The block is full and computed: name its content. Returns the block that holds this content from now on:
        the same one, or an older one with equal content, with a reference taken; the caller gives back its own."""
        known = self.find(key)
        if known is None:
            self.contents.put(block, key, self._next_content)
            self._next_content += 1
        elif known.block == ON_HOST:  # computed anew: by the same name, so that its children there are found
            self.contents.put(block, key, known.content)
        else:
            self.take(known.block)
            return known.block
        return block

    def check(self, references: dict[int, int], *, parents_outlive: bool) -> None:
        """The invariant: free + cached + used = total, every reference explained, no child outlives its parent.
        Raises AssertionError. Run at every step in tests, and when idle in production."""
        free, cached = set(self._free), set(self._cached)
        assert len(free) == len(self._free), "a block is free twice"
        used = {block for block in range(self.total) if self.refs[block]}
        assert not (free & cached or free & used or cached & used), "a block is in two places"
        assert len(free) + len(cached) + len(used) == self.total, "a block is nowhere"
        assert {b: self.refs[b] for b in used} == references, "a reference nobody can explain"
        ids = self.contents.id
        assert all(ids[b] == BLANK for b in free), "a free block has content"
        assert all(ids[b] != BLANK for b in cached), "a cached block has no content"
        self.contents.check()
        if parents_outlive:
            held = self.contents.held()
            alive = {ROOT, *held.values()}
            assert all(parent in alive for parent, _, _ in held), "a child outlived its parent"
        self.tier.check(self.contents, parents_outlive=parents_outlive)


class KVSpace:
    """Block tables of sequences over all groups, and frees that wait for running steps."""

    def __init__(
        self,
        groups: Seq[Group],
        total: Seq[int],
        block_size: int,
        hash_key: Callable[[Key], int] = hash,
        host_slots: int = 0,
    ) -> None:
        """`host_slots`: of each group; 0 is no host tier."""
        self.groups = tuple(groups)
        self.block_size = block_size
        self.pools = [BlockPool(n, block_size, hash_key, host_slots) for n in total]
        self.brought_tokens = 0  # that were to be had from the host
        self._windowed = any(group.window is not None for group in self.groups)
        self._waiting: deque[tuple[int, int, Seq[int]]] = deque()  # (step, group, blocks), frees in order
        self.launched = 0
        self.completed = 0

    # -- steps

    def launch(self, step: int) -> None:
        self.launched = step

    def complete(self, step: int) -> bool:
        """Step `step` has ended: what only it could still read is free now. True if that was anything."""
        self.completed = step
        before = len(self._waiting)
        while self._waiting and self._waiting[0][0] <= step:
            _, group, blocks = self._waiting.popleft()
            self.pools[group].give_back(blocks)
        return len(self._waiting) < before

    def _give_back(self, group: int, blocks: Seq[int]) -> None:
        if self.launched > self.completed:
            self._waiting.append((self.launched, group, blocks))
        else:
            self.pools[group].give_back(blocks)

    # -- questions

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def held(self, seq: Sequence) -> int:
        return sum(map(len, seq.tables)) - seq.behind

    def available(self) -> int:
        """Blocks that every group can give now."""
        return min(pool.available for pool in self.pools)

    def arriving(self) -> int:
        """Blocks that become available in the scarcest group when the running steps complete."""
        waiting = Counter((group, block) for _, group, blocks in self._waiting for block in blocks)
        coming = [pool.available for pool in self.pools]
        for (group, block), count in waiting.items():
            coming[group] += self.pools[group].refs[block] == count
        return min(coming) - self.available()

    def holders(self, sequences: Seq[Sequence]) -> tuple[dict[str, tuple[int, int]], int]:
        """Who uses the used blocks: for each person how many only their sequences use, and how many of those are in
        several of their tables; and how many are in tables of several persons. What waits for a step is nobody's."""
        own: Counter[str] = Counter()
        doubled: Counter[str] = Counter()
        shared = 0
        for g in range(len(self.pools)):
            held: dict[str, set[int]] = {}
            twice: dict[str, set[int]] = {}
            for seq in sequences:
                table = set(seq.tables[g]) - {BEHIND_WINDOW} if seq.tables else set()
                mine = held.setdefault(seq.person, set())
                twice.setdefault(seq.person, set()).update(mine & table)
                mine |= table
            seen: set[int] = set()
            common: set[int] = set()
            for blocks in held.values():
                common |= seen & blocks
                seen |= blocks
            shared += len(common)
            for person, blocks in held.items():
                own[person] += len(blocks - common)
                doubled[person] += len(twice[person] - common)
        return {person: (own[person], doubled[person]) for person in own}, shared

    def capacity_tokens(self) -> int:
        """The longest sequence that could be alone in here."""
        sizes = [
            pool.total for group, pool in zip(self.groups, self.pools, strict=True) if group.window is None
        ]
        return min(sizes or [pool.total for pool in self.pools]) * self.block_size

    def match(self, seq: Sequence) -> list[list[Hit]]:
        """Known contents that this sequence could adopt behind what it holds, per group, equally many. At least its last token is
        left to compute. Pure: admission and prefix lookup are one query."""
        if seq.submit.sampling.prompt_logprobs is not None:
            return [[] for _ in self.pools]
        most = (len(seq.tokens) - 1) // self.block_size - seq.sealed
        found: list[list[Hit]] = []
        for pool, chain in zip(self.pools, seq.chains or [ROOT] * len(self.pools), strict=True):
            hits: list[Hit] = []
            for i in range(seq.sealed, seq.sealed + most):
                hit = pool.find(self._key(seq, i, chain))
                if hit is None:
                    break
                hits.append(hit)
                chain = hit.content
            most = len(hits)
            found.append(hits)
        return [hits[:most] for hits in found]

    def spared(self, seq: Sequence, hits: list[list[Hit]]) -> int:
        """Of matched contents, how many cost nothing of what is available, in the scarcest group: somebody uses the block
        already, or it is behind the window. An unused block is taken from what is available, and what is on the host
        needs one from there."""
        spared = []
        for group, pool, found in zip(self.groups, self.pools, hits, strict=True):
            behind = self._newly_behind(group, seq, len(found))
            spared.append(behind + sum(not self._costs(pool, hit) for hit in found[behind:]))
        return min(spared)

    def first(self, seq: Sequence, hits: list[list[Hit]], moves: int) -> tuple[list[list[Hit]], int]:
        """Of matched contents as many, from the beginning, as there are blocks for and as can be had with so many coming back
        from the host; and how many do."""
        moved = [any(hit.block == ON_HOST for hit in places) for places in zip(*hits, strict=True)]
        if sum(moved) <= moves and len(moved) - self.spared(seq, hits) <= self.available():
            return hits, sum(moved)
        room, count = self.available(), 0
        for i, places in enumerate(zip(*hits, strict=True)):
            room -= any(map(self._costs, self.pools, places))
            if room < 0 or count + moved[i] > moves:
                return [found[:i] for found in hits], count
            count += moved[i]
        return hits, count

    @staticmethod
    def _costs(pool: BlockPool, hit: Hit) -> bool:
        return hit.block == ON_HOST or pool.refs[hit.block] == 0

    # -- changes

    def adopt(self, seq: Sequence, hits: list[list[Hit]]) -> None:
        """Put matched contents into the sequence's tables, behind what is computed of it. They need no computing."""
        if not seq.tables:
            groups = len(self.groups)
            seq.tables, seq.chains, seq.told = [[] for _ in range(groups)], [ROOT] * groups, [0] * groups
        seq.computed = (seq.sealed + len(hits[0])) * self.block_size
        self._leave_window(seq)
        brought: set[int] = set()
        for g, (group, pool, found) in enumerate(zip(self.groups, self.pools, hits, strict=True)):
            behind = self._newly_behind(group, seq, len(found))
            for hit in reversed(found[:behind]):
                pool.touch(hit)
            brought.update(i for i in range(behind, len(found)) if found[i].block == ON_HOST)
            seq.tables[g] += [BEHIND_WINDOW] * behind + pool.adopt(found[behind:])
            seq.behind += behind
            if found:
                seq.chains[g] = found[-1].content
        seq.sealed += len(hits[0])
        seq.scheduled = seq.computed
        self.brought_tokens += len(brought) * self.block_size

    def missing(self, seq: Sequence, tokens: int) -> int:
        """Blocks that the sequence still needs, in each group, to hold `tokens`."""
        return max(0, self.blocks_for(tokens) - len(seq.tables[0]))

    def extend(self, seq: Sequence, tokens: int) -> bool:
        """Make room for the first `tokens` of the sequence; False, and nothing changed, where blocks are short."""
        if tokens <= len(seq.tables[0]) * self.block_size:
            return True  # as in all but a few steps
        more = self.missing(seq, tokens)
        if more > self.available():
            return False
        for pool, table in zip(self.pools, seq.tables, strict=True):
            table.extend(pool.allocate() for _ in range(more))
        return True

    def settle(self, seq: Sequence) -> None:
        """A step of this sequence has completed: put its newly full blocks in the index, and give back what no
        later query can see. Where equal content exists already: adopt that first, then free our own."""
        while (seq.sealed + 1) * self.block_size <= seq.computed:
            i = seq.sealed
            for g, pool in enumerate(self.pools):
                own = seq.tables[g][i]
                block = pool.seal(own, self._key(seq, i, seq.chains[g]))
                seq.chains[g] = pool.contents.id[block]
                if block != own:
                    self._replace(seq, g, i, block)
                    self._give_back(g, (own,))
            seq.sealed += 1
        self._leave_window(seq)

    def news(self, seq: Sequence) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """What changed in the sequence's tables since the last call: (group, from which entry on, blocks). A step
        costs what is new in it, not what the tables hold."""
        for group, table in enumerate(seq.tables):
            known = seq.told[group]
            if known < len(table):
                seq.told[group] = len(table)
                yield group, known, tuple(table[known:])

    def noted_moves(self) -> int:
        """What the plan that is being made has to move as it stands."""
        return sum(pool.tier.noted for pool in self.pools)

    def moves(self) -> list[Moves]:
        """Of each group, what the plan that is launched now has to move before it computes anything."""
        return [pool.tier.take() for pool in self.pools]

    def release(self, seq: Sequence) -> None:
        """Give everything back, tail first, so that children are evicted before their parents."""
        for g, table in enumerate(seq.tables):
            self._give_back(g, [block for block in reversed(table) if block != BEHIND_WINDOW])
        seq.tables, seq.chains, seq.sealed, seq.behind = [], [], 0, 0
        seq.computed = seq.scheduled = seq.chunk = seq.depth = 0

    def _leave_window(self, seq: Sequence) -> None:
        if not self._windowed:
            return
        for g, group in enumerate(self.groups):
            # Only sealed blocks leave: the chain of keys must have passed them.
            behind = min(self._behind(group, seq.computed), seq.sealed)
            for i in range(behind - 1, -1, -1):
                if seq.tables[g][i] == BEHIND_WINDOW:
                    break
                self._give_back(g, (seq.tables[g][i],))
                seq.tables[g][i] = BEHIND_WINDOW  # nobody looks there any more, so nobody is told
                seq.behind += 1

    def _behind(self, group: Group, computed: int) -> int:
        """How many blocks at the beginning of a sequence no later query of it sees."""
        if group.window is None:
            return 0
        # The next query is at position `computed`; it sees back to computed - window + 1.
        return max(0, (computed - group.window + 1) // self.block_size)

    def _newly_behind(self, group: Group, seq: Sequence, more: int) -> int:
        """How many of `more` blocks behind its sealed ones no later query of it sees."""
        return max(0, self._behind(group, (seq.sealed + more) * self.block_size) - seq.sealed)

    def _replace(self, seq: Sequence, group: int, index: int, block: int) -> None:
        seq.tables[group][index] = block
        seq.told[group] = min(seq.told[group], index)

    def _key(self, seq: Sequence, index: int, parent: int) -> Key:
        start, end = index * self.block_size, (index + 1) * self.block_size
        # Timing must not tell one member what another asked: a block is shared across persons only where the daemon
        # vouches for all of it.
        person = "" if end <= seq.submit.shared_prefix else seq.person
        return parent, tuple(seq.tokens[start:end]), (seq.submit.adapter, person)

    def check(self, sequences: Seq[Sequence]) -> None:
        """The invariant over everything: see `BlockPool.check`."""
        for seq in sequences:
            for table, group in zip(seq.tables, self.groups, strict=False):  # who waits has no tables
                behind = min(self._behind(group, seq.computed), seq.sealed)
                assert table.count(BEHIND_WINDOW) == behind, "a block behind the window is held"
            assert seq.behind == sum(table.count(BEHIND_WINDOW) for table in seq.tables)
        for g, (pool, group) in enumerate(zip(self.pools, self.groups, strict=True)):
            references: dict[int, int] = {}
            for block in [b for s in sequences if s.tables for b in s.tables[g]]:
                if block != BEHIND_WINDOW:
                    references[block] = references.get(block, 0) + 1
            for block in [b for _, of, blocks in self._waiting if of == g for b in blocks]:
                references[block] = references.get(block, 0) + 1
            pool.check(references, parents_outlive=group.window is None)
