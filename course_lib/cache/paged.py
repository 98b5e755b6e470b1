"""The paged cache: keys and values in blocks that lie anywhere, found through block tables (arXiv 2309.06180)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from course_lib.batch import Batch
from course_lib.cache.block_manager import BlockManager
from course_lib.cache.slot_cache import SlotCache
from course_lib.cache.store import FLOAT, KVFormat, Space
from course_lib.config import ModelConfig
from course_lib.errors import RequestError


class PagedCache(SlotCache):
    """Keys and values of blocks * block_size slots; slot = block * block_size + offset. Implements `KVCache`.

    Which blocks a sequence has is the manager's affair. Row i is the i-th sequence given to `bind`, so the sequences of
    a step are neighbours wherever their blocks lie. block_tables: int32 [rows, widest table], padded with 0, as of the
    last call of `slots`; on the CPU, for whoever reads them moves them. kv_format: how keys and values are stored.
    Raises RequestError where the memory cannot be reserved.
    """

    def __init__(
        self,
        config: ModelConfig,
        manager: BlockManager,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        kv_format: KVFormat = FLOAT,
    ):
        blocks, block_size = manager.pool.total, manager.block_size
        space = Space(config, blocks, block_size, None, dtype, device)
        super().__init__(space, kv_format, f"{blocks} x {block_size}")
        self.manager = manager
        self.sequences: tuple[int, ...] = ()
        self.block_tables = torch.zeros(0, 0, dtype=torch.int32)
        self._moved: Tensor | None = None  # block_tables on the cache's device

    def bind(self, sequences: Iterable[int]) -> None:
        """Make these sequences of the manager the rows 0, 1, ... of the next forward passes."""
        self.sequences = tuple(sequences)

    @property
    def lengths(self) -> list[int]:
        """Computed tokens of each row."""
        return [len(self.manager.table(seq).tokens) for seq in self.sequences]

    def slots(self, batch: Batch) -> Tensor:
        lengths = self.lengths
        for row, new, cached in zip(batch.rows, batch.query_lens, batch.cached_lens, strict=True):
            if cached != lengths[row]:
                raise RequestError(
                    f"row {row} holds {lengths[row]} tokens, but the batch says its new tokens start at {cached}"
                )
            self.manager.check_writable(self.sequences[row], new)
        self.block_tables, self._moved = self._padded_tables(), None
        rows = torch.tensor(batch.rows).repeat_interleave(torch.tensor(batch.query_lens))
        return slot_numbers(self.block_tables, rows, batch.positions, self.block_size)

    def tables(self, batch: Batch) -> Tensor:
        everybody = batch.rows == tuple(range(len(self.sequences)))
        return self.block_tables if everybody else self.block_tables[list(batch.rows)]

    def read(self, layer: int, first_row: int, rows: int, length: int) -> tuple[Tensor, Tensor]:
        if self._moved is None:
            self._moved = self.block_tables.to(self.keys.device)
        tables = self._moved[first_row : first_row + rows, : self.manager.blocks_needed(length)].flatten()

        def gather(store: Tensor) -> Tensor:
            # index_select copies a block at a time; indexing with a tensor goes element by element.
            return store.flatten(1).index_select(0, tables).view(rows, -1, *store.shape[1:])

        keys, values = self.store.read(layer, gather, slice(first_row, first_row + rows))
        return keys.narrow(1, 0, length), values.narrow(1, 0, length)

    def commit(self, batch: Batch) -> None:
        tokens = batch.token_ids.tolist()
        for row, (start, end) in zip(batch.rows, batch.spans, strict=True):
            self.manager.commit(self.sequences[row], tokens[start:end])

    def truncate(self, row: int, length: int) -> None:
        self.manager.truncate(self.sequences[row], length)

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Perform the copies of `BlockManager.extend` one by one: a target may be the source of a later one."""
        for source, target in copies:
            for blocks in self.store.tensors:
                blocks[:, target] = blocks[:, source]

    @property
    def used_bytes(self) -> int:
        stats = self.manager.stats()
        return self.store.used_bytes([stats.in_use * self.manager.block_size - stats.waste])

    def _padded_tables(self) -> Tensor:
        tables = [self.manager.table(seq).blocks for seq in self.sequences]
        padded = np.zeros((len(tables), max(map(len, tables), default=0)), dtype=np.int32)
        for row, blocks in zip(padded, tables, strict=True):
            row[: len(blocks)] = blocks  # array("i") is read as it lies in memory
        return torch.from_numpy(padded)


def slot_numbers(block_tables: Tensor, rows: Tensor, positions: Tensor, block_size: int) -> Tensor:
    """Slots [T] int64 of the tokens at `positions` [T] in the sequences `rows` [T]; block_tables: int32 [S, blocks].

    int64, because a slot's first element, slot * K * d, passes 2**31 in a pool of a few GB.
    """
    blocks = block_tables[rows, positions // block_size].long()
    return blocks * block_size + positions % block_size
