"""What all caches that number their slots have in common: a store, and nothing about whose slot is whose."""

from __future__ import annotations

from torch import Tensor

from course_lib.cache.store import KVFormat, Space


class SlotCache:
    """The part of `KVCache` that does not depend on who addresses the slots.

    shape: the size in the user's words, for the error message. Raises RequestError where the memory cannot be reserved.
    """

    def __init__(self, space: Space, kv_format: KVFormat, shape: str):
        self.format, self.block_size = kv_format, space.block_size
        self.store = kv_format.reserve(space, shape)
        self.keys, self.values = self.store.keys, self.store.values

    def write(self, layer: int, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        self.store.write(layer, keys, values, slots)

    def key_positions(self, layer: int, first_row: int, rows: int, length: int) -> None:
        return None  # every key is kept, in order

    def by_block(self, store: Tensor) -> Tensor:
        """A view [L, blocks, block_size, ...] of keys or values."""
        return store.unflatten(1, (-1, self.block_size))

    @property
    def nbytes(self) -> int:
        return self.store.nbytes
