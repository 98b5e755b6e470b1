"""The plain cache: every row gets room for the longest sequence it could become, in one piece."""

from __future__ import annotations

import torch
from torch import Tensor

from course_lib.batch import Batch
from course_lib.cache.slot_cache import SlotCache
from course_lib.cache.store import FLOAT, KVFormat, Space
from course_lib.config import ModelConfig
from course_lib.errors import RequestError


class ContiguousCache(SlotCache):
    """Pre-allocated keys and values, of rows * stride slots; row r owns those from r * stride on.

    Implements `KVCache`. block_size: a row's room is rounded up to a multiple, stride, so that kernels which read
    blocks can read it; capacity stays the limit. kv_format: how keys and values are stored. Raises RequestError where
    the memory cannot be reserved.
    """

    def __init__(
        self,
        config: ModelConfig,
        rows: int,
        capacity: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        block_size: int = 1,
        kv_format: KVFormat = FLOAT,
    ):
        self.rows, self.capacity = rows, capacity
        block_size = kv_format.block_size or block_size
        self.stride = -(-capacity // block_size) * block_size
        space = Space(config, rows * self.stride // block_size, block_size, rows, dtype, device)
        super().__init__(space, kv_format, f"{rows} x {capacity}")
        self.lengths = [0] * rows

    def slots(self, batch: Batch) -> Tensor:
        check_rows(batch, self.lengths, self.capacity)
        starts = [row * self.stride for row, n in zip(batch.rows, batch.query_lens, strict=True) for _ in range(n)]
        return batch.positions + torch.tensor(starts)

    def tables(self, batch: Batch) -> Tensor:
        blocks = self.stride // self.block_size
        first = torch.tensor(batch.rows, dtype=torch.int32)[:, None] * blocks
        return first + torch.arange(blocks, dtype=torch.int32)

    def read(self, layer: int, first_row: int, rows: int, length: int) -> tuple[Tensor, Tensor]:
        blocks = -(-length // self.block_size)

        def gather(store: Tensor) -> Tensor:  # a view; narrow takes half the time of an index
            return store.view(self.rows, -1, *store.shape[1:]).narrow(0, first_row, rows).narrow(1, 0, blocks)

        keys, values = self.store.read(layer, gather, slice(first_row, first_row + rows))
        return keys.narrow(1, 0, length), values.narrow(1, 0, length)

    def commit(self, batch: Batch) -> None:
        for row, new in zip(batch.rows, batch.query_lens, strict=True):
            self.lengths[row] += new

    def truncate(self, row: int, length: int) -> None:
        if not 0 <= length <= self.lengths[row]:
            raise RequestError(f"row {row} holds {self.lengths[row]} tokens and cannot be cut to {length}")
        self.store.truncate(row, length)
        self.lengths[row] = length

    @property
    def used_bytes(self) -> int:
        return self.store.used_bytes(self.lengths)


def check_rows(batch: Batch, lengths: list[int], capacity: int) -> None:
    """Raise RequestError where the batch does not begin where a row ends, or a row would overflow."""
    for row, new, cached in zip(batch.rows, batch.query_lens, batch.cached_lens, strict=True):
        if cached != lengths[row]:
            raise RequestError(
                f"row {row} holds {lengths[row]} tokens, but the batch says its new tokens start at {cached}"
            )
        if cached + new > capacity:
            raise RequestError(
                f"row {row} has room for {capacity} tokens and would hold {cached + new}; "
                "build the cache with a larger capacity or stop generating earlier"
            )
