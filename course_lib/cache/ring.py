"""The cache of models with sliding windows: a layer with a window keeps what later queries can still see, no more.

Layers without a window keep every token. The bytes are those of `ModelConfig.kv_bytes`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from course_lib.batch import Batch
from course_lib.cache.contiguous import check_rows
from course_lib.cache.ring_layers import RingLayers, RowsRead
from course_lib.cache.store import FLOAT, KVFormat, Space
from course_lib.config import ModelConfig
from course_lib.errors import RequestError


class RingCache:
    """Keys and values of `rows` sequences of up to `capacity` tokens; implements `KVCache` for the torch backend.

    Each layer is read before the next one is written. kv_format: how keys and values are stored, one that stores every
    token by itself. Raises RequestError for another one, or where the memory cannot be reserved.
    """

    def __init__(
        self,
        config: ModelConfig,
        rows: int,
        capacity: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        kv_format: KVFormat = FLOAT,
    ):
        self.rows, self.capacity, self.sinks, self.format = rows, capacity, config.sinks, kv_format
        self.lengths = [0] * rows
        self._longest = [0] * rows  # most tokens that each row held since nothing of it was dropped
        self._starts: dict[int, tuple[int, int]] = {}  # of a pass: row -> (its first token in the batch, new tokens)
        space = Space(config, rows * capacity, 1, None, dtype, device)
        self._groups: list[RingLayers] = []
        self._places: dict[int, tuple[int, int]] = {}  # layer -> (which group, its number in the group)
        for window in dict.fromkeys(config.windows):
            layers = [layer for layer, other in enumerate(config.windows) if other == window]
            self._places |= {layer: (len(self._groups), place) for place, layer in enumerate(layers)}
            self._groups.append(RingLayers(window, layers, rows, capacity, space, kv_format))

    def slots(self, batch: Batch) -> Tensor:
        """int64 [groups, T]: layers of another window have other slots. Raises RequestError if a row would overflow."""
        check_rows(batch, self.lengths, self.capacity)
        starts = [start for start, _ in batch.spans]
        self._starts = dict(zip(batch.rows, zip(starts, batch.query_lens, strict=True), strict=True))
        return torch.stack([group.begin(batch) for group in self._groups])

    def tables(self, batch: Batch) -> Tensor:
        raise RequestError("a ring cache has no block tables; use the torch backend, or a contiguous or paged cache")

    def write(self, layer: int, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        for group in self._groups:
            group.store_chunk()
        number, place = self._places[layer]
        self._groups[number].write(place, keys, values, slots[number])

    def read(self, layer: int, first_row: int, rows: int, length: int) -> tuple[Tensor, Tensor]:
        """As in `KVCache`, but of the keys that the layer keeps, which stand at `key_positions`."""
        number, place = self._places[layer]
        return self._groups[number].read(place, self._rows(first_row, rows, length))

    def key_positions(self, layer: int, first_row: int, rows: int, length: int) -> Tensor | None:
        number, _ = self._places[layer]
        return self._groups[number].positions(self._rows(first_row, rows, length))

    def commit(self, batch: Batch) -> None:
        for group in self._groups:
            group.end()
        self._starts = {}
        for row, new in zip(batch.rows, batch.query_lens, strict=True):
            self.lengths[row] += new
            self._longest[row] = max(self._longest[row], self.lengths[row])

    def truncate(self, row: int, length: int) -> None:
        """Forget the row's tokens from position `length` on. Raises RequestError where its windows need dropped ones.

        Once a ring has turned, one token can be cut off: the next query again sees the W - 1 that are left.
        """
        if not 0 <= length <= self.lengths[row]:
            raise RequestError(f"row {row} holds {self.lengths[row]} tokens and cannot be cut to {length}")
        longest = self._longest[row]
        dropped = any(longest > group.room for group in self._groups)
        if dropped and self.sinks < length < longest - 1:
            raise RequestError(
                f"row {row} has held {longest} tokens, so its windows have dropped keys that position {length} needs; "
                f"cut it to {longest - 1} or more, or to {self.sinks} or fewer and feed the rest again"
            )
        self.lengths[row] = length
        if not dropped or length <= self.sinks:
            self._longest[row] = length

    @property
    def nbytes(self) -> int:
        return sum(group.store.nbytes for group in self._groups)

    @property
    def used_bytes(self) -> int:
        return sum(group.store.used_bytes([min(n, group.room) for n in self.lengths]) for group in self._groups)

    def _rows(self, first_row: int, rows: int, length: int) -> RowsRead:
        chosen = slice(first_row, first_row + rows)
        return RowsRead(chosen, self.lengths[chosen], *self._starts.get(first_row, (0, 0)), length)
