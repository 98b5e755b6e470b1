"""The block pool: which of a cache's blocks are free, and how many block tables hold each of the others.

A block is the unit of paging: room for `block_size` tokens in every layer (arXiv 2309.06180, section 4.1). The pool
knows block ids only, neither tokens nor tensors.
"""

from __future__ import annotations


class BlockPool:
    """Ids 0 .. total-1. refs[b]: number of block tables that hold b. Every method but `check` takes O(1).

    A block without references is on the free list, or cached: a prefix index keeps it because its content may be asked
    for again. Only `put_back` returns it to the free list.
    """

    def __init__(self, total: int):
        self.total = total
        self.refs = [0] * total
        self._free = list(reversed(range(total)))

    @property
    def free(self) -> int:
        """Number of blocks on the free list."""
        return len(self._free)

    def take(self) -> int:
        """A free block, held once. Raises IndexError where none is free: the caller counts before it takes."""
        block = self._free.pop()
        self.refs[block] = 1
        return block

    def retain(self, block: int) -> int:
        """One more table holds the block; returns the new count."""
        self.refs[block] += 1
        return self.refs[block]

    def release(self, block: int) -> int:
        """One table less holds the block; returns the new count."""
        ensure(self.refs[block] > 0, f"block {block} is released more often than it is held")
        self.refs[block] -= 1
        return self.refs[block]

    def put_back(self, block: int) -> None:
        """Return a block that no table holds and no index keeps."""
        ensure(self.refs[block] == 0, f"block {block} goes to the free list while a table holds it")
        self._free.append(block)

    def check(self) -> set[int]:
        """The free list as a set. Raises AssertionError where a block is on it twice."""
        free = set(self._free)
        ensure(len(free) == len(self._free), "a block is on the free list twice")
        return free


def ensure(condition: bool, message: str) -> None:
    """Raise AssertionError with the message where the condition is false; unlike `assert`, also under `python -O`."""
    if not condition:
        raise AssertionError(message)
