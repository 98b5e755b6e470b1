"""Keys that a cache stores as they were before RoPE, as attention needs them."""

from __future__ import annotations

import torch
from torch import Tensor

from course_lib.cache import KVCache
from course_lib.rope import Rope


class RotatedOnRead:
    """What `attention.attend` asks of a cache, for one forward pass: `read` rotates each key by its position.

    That is work for every cached token in every step, where a key that is stored rotated was turned once.
    """

    def __init__(self, cache: KVCache, rope: Rope):
        self.cache, self.rope = cache, rope
        self._tables: dict[int, tuple[Tensor, Tensor]] = {}  # of the keys 0 .. length - 1

    def read(self, layer: int, first_row: int, rows: int, length: int) -> tuple[Tensor, Tensor]:
        keys, values = self.cache.read(layer, first_row, rows, length)
        positions = self.key_positions(layer, first_row, rows, length)
        if positions is not None:
            tables = self.rope.tables(positions.flatten().to(keys.device))
            tables = tuple(table.view(*positions.shape, *table.shape[1:]) for table in tables)
        else:
            if length not in self._tables:
                self._tables[length] = self.rope.tables(torch.arange(length, device=keys.device))
            tables = self._tables[length]
        return Rope.rotate(keys, tables), values

    def key_positions(self, layer: int, first_row: int, rows: int, length: int) -> Tensor | None:
        return self.cache.key_positions(layer, first_row, rows, length)
