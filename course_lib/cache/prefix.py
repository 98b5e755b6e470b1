"""The prefix cache: find the blocks that hold a prefix's keys and values, and keep them while memory allows.

Two structures implement `PrefixIndex`: chained hashes (`prefix_hash.py`, vLLM's) and a radix tree (`prefix_radix.py`,
SGLang's). Given the same calls they find the same prefixes and evict the same blocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable

from course_lib.cache.blocks import ensure

Content = tuple[int, ...]
"""The token ids of one full block. Partly filled blocks are never indexed: their content still changes."""


class PrefixIndex(ABC):
    """Maps prefixes, in whole blocks, to blocks. A block is found only through its whole prefix, as its keys and values
    depend on every token before it. `salt` separates what must not be shared: tenants, LoRA adapters.

    A block is locked while a table holds it. A table holds the whole path to its last block, so the ancestors of a
    locked block are locked. It gives its blocks up last first, so a block is unlocked after those that follow it: the
    one unlocked longest ago has no successor, and LRU eviction needs no search for a leaf.
    """

    def __init__(self):
        self._unlocked: OrderedDict[int, None] = OrderedDict()  # the one unlocked longest ago stands first

    @abstractmethod
    def match(self, contents: Iterable[Content], salt: str = "") -> list[int]:
        """Blocks of the longest indexed prefix. Changes nothing. O(1) per matched block."""

    @abstractmethod
    def insert(self, parent: int | None, content: Content, block: int, salt: str = "") -> int:
        """Index a computed block that follows the indexed block `parent` (None: it is the first of its sequence).

        Returns the canonical block: `block`, which is then locked, or the one that holds this prefix already; the
        caller holds that one instead and gives its own up. O(1), amortised.
        """

    @abstractmethod
    def __contains__(self, block: int) -> bool:
        """True where the block is indexed."""

    @abstractmethod
    def _remove(self, block: int) -> None:
        """Forget a block that has no successor."""

    @abstractmethod
    def _parents(self) -> dict[int, int | None]:
        """Parent of each indexed block, found by walking the structure, which is checked on the way."""

    @property
    def evictable(self) -> int:
        """Number of indexed blocks that no table holds."""
        return len(self._unlocked)

    def lock(self, block: int) -> None:
        """A first table holds the cached block."""
        del self._unlocked[block]

    def unlock(self, block: int) -> None:
        """The last table gave the indexed block up."""
        self._unlocked[block] = None

    def evict(self) -> int:
        """Forget the block unlocked longest ago and return it. Raises KeyError where all are locked."""
        block, _ = self._unlocked.popitem(last=False)
        self._remove(block)
        return block

    def check(self) -> tuple[set[int], set[int]]:
        """(indexed, evictable) blocks. Raises AssertionError where the index contradicts itself. O(blocks)."""
        parents = self._parents()
        order = {block: i for i, block in enumerate(self._unlocked)}
        ensure(order.keys() <= parents.keys(), "an evictable block is not indexed")
        for block, parent in parents.items():
            if parent in order:
                ensure(block in order, f"block {parent} can be evicted, but block {block} after it is locked")
                ensure(order[block] < order[parent], f"block {parent} would be evicted before block {block} after it")
        return set(parents), set(order)
