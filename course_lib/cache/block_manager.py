"""The block manager: which blocks each sequence's tokens lie in. It knows token ids and block ids, but no tensors.

A step of an engine: `allocate` for new sequences, `extend` for each sequence of the step, block copies, forward pass,
`commit`. What does not fit now is answered with None and changes nothing; what can never fit raises RequestError.
Source: PagedAttention, arXiv 2309.06180, sections 4.2 to 4.5.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from course_lib.cache.blocks import BlockPool, ensure
from course_lib.cache.prefix import Content, PrefixIndex
from course_lib.errors import RequestError


@dataclass
class BlockTable:
    """One sequence. The token at position p lies in `blocks[p // block_size]`."""

    blocks: array[int] = field(default_factory=lambda: array("i"))  # int32, so that a tensor is made by one copy
    tokens: list[int] = field(default_factory=list)  # those whose keys and values are computed
    indexed: int = 0  # leading blocks that the prefix index knows
    salt: str = ""


@dataclass(frozen=True)
class BlockStats:
    """Blocks now, free + cached + in_use = total; slots of blocks in use that hold no token; prompt tokens so far."""

    total: int
    free: int
    cached: int
    in_use: int
    waste: int
    hit_tokens: int
    asked_tokens: int


class BlockManager:
    """blocks: size of the pool. block_size: tokens per block. index: the prefix cache, None for none."""

    def __init__(self, blocks: int, block_size: int, index: PrefixIndex | None = None):
        if blocks < 1 or block_size < 1:
            raise RequestError(f"a pool of {blocks} blocks of {block_size} tokens is empty; both must be at least 1")
        self.pool = BlockPool(blocks)
        self.block_size = block_size
        self.index = index
        self.tables: dict[int, BlockTable] = {}
        self._hit_tokens = self._asked_tokens = 0

    @property
    def capacity(self) -> int:
        """Tokens in the whole pool: the most that one sequence can have."""
        return self.pool.total * self.block_size

    @property
    def available(self) -> int:
        """Blocks that can be taken now: the free ones and the cached ones."""
        return self.pool.free + (0 if self.index is None else self.index.evictable)

    def blocks_needed(self, tokens: int) -> int:
        """Blocks that so many tokens of one sequence lie in."""
        return -(-tokens // self.block_size)

    def check_fits(self, prompt: int, new: int) -> None:
        """Raise RequestError where a prompt of that length with `new` generated tokens can never fit, even alone."""
        slots = prompt + new - 1  # the last generated token is not fed back
        if slots > self.capacity:
            raise RequestError(
                f"a prompt of {prompt} and {new} new tokens need {self.blocks_needed(slots)} blocks of "
                f"{self.block_size} and the pool has {self.pool.total}; ask for at most {self.capacity + 1} tokens in "
                "all or make the pool larger"
            )

    def can_allocate(self, tokens: Sequence[int], salt: str = "") -> bool:
        """True where `allocate` would succeed now."""
        return self._fits(len(tokens), self._match(tokens, salt))

    def allocate(self, seq: int, tokens: Sequence[int], salt: str = "") -> int | None:
        """Open a table with slots for all `tokens`; returns how many of them the prefix cache has, in whole blocks.

        These count as computed; at least one token is left to feed, for its logits are needed. None where the blocks
        are not there now. Raises RequestError where they never will be.
        """
        self.check_fits(len(tokens), 1)
        hits = self._match(tokens, salt)
        if not self._fits(len(tokens), hits):
            return None
        table = self._open(seq, hits, tokens[: len(hits) * self.block_size], len(hits), salt)
        self._grow(table, len(tokens))
        self._hit_tokens += len(table.tokens)
        self._asked_tokens += len(tokens)
        return len(table.tokens)

    def extend(self, seq: int, new: int) -> list[tuple[int, int]] | None:
        """Make room to write `new` tokens after the computed ones. Needed before each forward pass, prefill included.

        Returns the (source, target) block copies to perform, in order, before anything is written: copy-on-write where
        the first slot lies in a block that is shared or indexed. None, and no change, where the blocks are not there
        now. Raises RequestError where the pool is too small for the sequence alone.
        """
        table = self.table(seq)
        length = len(table.tokens) + new
        if length > self.capacity:
            raise RequestError(
                f"sequence {seq} would have {length} tokens and the pool holds {self.capacity}; stop generating earlier"
            )
        source = self._not_its_own(table) if new else None
        # An indexed block that no other table holds can be evicted once it is given up: its copy costs no block.
        costs = source is not None and self.pool.refs[source] > 1
        if max(0, self.blocks_needed(length) - len(table.blocks)) + costs > self.available:
            return None
        copies = []
        if source is not None:
            self._drop(source)
            target = table.blocks[len(table.tokens) // self.block_size] = self._take()
            copies = [(source, target)] if source != target else []
        self._grow(table, length)
        return copies

    def check_writable(self, seq: int, new: int) -> None:
        """Raise RequestError where `extend` was not called for these tokens."""
        table = self.table(seq)
        length = len(table.tokens) + new
        if self.blocks_needed(length) > len(table.blocks) or (new and self._not_its_own(table) is not None):
            raise RequestError(
                f"sequence {seq} does not have blocks of its own for {length} tokens; "
                f"call extend({seq}, {new}) before the forward pass"
            )

    def commit(self, seq: int, tokens: Sequence[int]) -> None:
        """The sequence's next tokens are computed; blocks that they fill enter the prefix cache.

        Where another block holds the same prefix already, the table switches to that one and gives its own up.
        """
        self.check_writable(seq, len(tokens))
        table = self.table(seq)
        table.tokens.extend(tokens)
        if self.index is None:
            return
        for i in range(table.indexed, len(table.tokens) // self.block_size):
            parent, own = table.blocks[i - 1] if i else None, table.blocks[i]
            content = tuple(table.tokens[i * self.block_size : (i + 1) * self.block_size])
            canonical = self.index.insert(parent, content, own, table.salt)
            if canonical != own:
                self._hold(canonical)
                self._drop(own)
                table.blocks[i] = canonical
            table.indexed = i + 1

    def fork(self, parent: int, child: int) -> None:
        """Give `child` the parent's computed tokens, in the same blocks. It costs none until one of them writes."""
        table = self.table(parent)
        shared = table.blocks[: self.blocks_needed(len(table.tokens))]
        self._open(child, shared, table.tokens, table.indexed, table.salt)

    def truncate(self, seq: int, length: int) -> None:
        """Forget the sequence's tokens from position `length` on, and give up the blocks behind them."""
        table = self.table(seq)
        if not 0 <= length <= len(table.tokens):
            raise RequestError(f"sequence {seq} holds {len(table.tokens)} tokens and cannot be cut to {length}")
        self._shrink(table, self.blocks_needed(length))
        del table.tokens[length:]
        table.indexed = min(table.indexed, length // self.block_size)

    def free(self, seq: int) -> None:
        """Close the table. Indexed blocks stay cached until they are taken again."""
        self._shrink(self.table(seq), 0)
        del self.tables[seq]

    def table(self, seq: int) -> BlockTable:
        """The sequence's block table. Raises RequestError where it has none."""
        if seq not in self.tables:
            raise RequestError(f"sequence {seq} has no block table; allocate it first")
        return self.tables[seq]

    def stats(self) -> BlockStats:
        """Counts of now. It looks at blocks that are not full only, one or two of each table."""
        filled: dict[int, int] = {}  # tokens in such a block; where it is shared, those of the longest holder
        holders: Counter[int] = Counter()
        for table in self.tables.values():
            for i in range(len(table.tokens) // self.block_size, len(table.blocks)):
                block = table.blocks[i]
                filled[block] = max(filled.get(block, 0), len(table.tokens) - i * self.block_size)
                holders[block] += 1
        # A holder that is missing here has the block full.
        waste = sum(self.block_size - n for block, n in filled.items() if holders[block] == self.pool.refs[block])
        total, free, available = self.pool.total, self.pool.free, self.available
        return BlockStats(total, free, available - free, total - available, waste, self._hit_tokens, self._asked_tokens)

    def check_integrity(self) -> None:
        """Recount everything from the tables; raises AssertionError where it differs. O(blocks + tokens), for tests."""
        refs = Counter(block for table in self.tables.values() for block in table.blocks)
        for block, count in enumerate(self.pool.refs):
            ensure(count == refs[block], f"block {block} counts {count} references and is in {refs[block]} tables")
        free = self.pool.check()
        indexed, evictable = (set(), set()) if self.index is None else self.index.check()
        cached = indexed - refs.keys()
        ensure(evictable == cached, f"evictable are {sorted(evictable)}, cached are {sorted(cached)}")
        ensure(not free & (refs.keys() | indexed), "a block is free, and in use or indexed")
        ensure(len(free) + len(cached) + len(refs) == self.pool.total, "free + cached + in use is not the total")
        for seq, table in self.tables.items():
            full, needed = len(table.tokens) // self.block_size, self.blocks_needed(len(table.tokens))
            ensure(len(set(table.blocks)) == len(table.blocks), f"sequence {seq} has a block twice")
            ensure(needed <= len(table.blocks), f"sequence {seq} overran its table")
            if self.index is not None:
                found = self.index.match(self._contents(table.tokens), table.salt)
                ensure(found == list(table.blocks[:full]), f"the index has not sequence {seq}'s tokens in its blocks")
            for block in table.blocks[needed:]:
                ensure(refs[block] == 1 and block not in indexed, f"block {block} is empty, and shared or indexed")

    def _contents(self, tokens: Sequence[int]) -> Iterator[Content]:
        for start in range(0, len(tokens) - self.block_size + 1, self.block_size):
            yield tuple(tokens[start : start + self.block_size])

    def _match(self, tokens: Sequence[int], salt: str) -> list[int]:
        return [] if self.index is None else self.index.match(self._contents(tokens[:-1]), salt)

    def _fits(self, tokens: int, hits: list[int]) -> bool:
        idle = sum(self.pool.refs[block] == 0 for block in hits)  # available now, but not once they are held
        return self.blocks_needed(tokens) - len(hits) + idle <= self.available

    def _not_its_own(self, table: BlockTable) -> int | None:
        """The begun block that the next token falls into, where its content belongs to others too."""
        at, begun = divmod(len(table.tokens), self.block_size)
        if not begun:
            return None
        block = table.blocks[at]
        shared = self.pool.refs[block] > 1 or (self.index is not None and block in self.index)
        return block if shared else None

    def _open(self, seq: int, blocks: Sequence[int], tokens: Sequence[int], indexed: int, salt: str) -> BlockTable:
        if seq in self.tables:
            raise RequestError(f"sequence {seq} has a block table already; free it first")
        for block in blocks:
            self._hold(block)
        self.tables[seq] = BlockTable(array("i", blocks), list(tokens), indexed, salt)
        return self.tables[seq]

    def _grow(self, table: BlockTable, tokens: int) -> None:
        while len(table.blocks) < self.blocks_needed(tokens):
            table.blocks.append(self._take())

    def _shrink(self, table: BlockTable, blocks: int) -> None:
        while len(table.blocks) > blocks:  # the last one first, as the prefix index requires
            self._drop(table.blocks.pop())

    def _take(self) -> int:
        if not self.pool.free:
            self.pool.put_back(self.index.evict())
        return self.pool.take()

    def _hold(self, block: int) -> None:
        if self.pool.retain(block) == 1:
            self.index.lock(block)  # nobody held it, so it was cached

    def _drop(self, block: int) -> None:
        if self.pool.release(block) == 0:
            if self.index is not None and block in self.index:
                self.index.unlock(block)
            else:
                self.pool.put_back(block)
