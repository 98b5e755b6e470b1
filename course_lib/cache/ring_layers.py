"""The layers of one window in a ring cache: where in a row of it a token lies, and when it is stored.

A row has s + W slots. The first s tokens, the sinks, have slots of their own; the others go round in a ring of W: the
token at position p >= s lies in slot s + (p - s) % W. There it replaces the one at p - W, which no query from p on
sees.

Order matters when several tokens come at once. The first of t new tokens still sees the W - 1 before it, and the others
replace t - 1 of these. A ring of W + t - 1 slots would do, if the longest t were known and short. Here a chunk that
would replace anything attends first and is stored afterwards, so W slots do for chunks of any length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.batch import Batch
from course_lib.cache.store import KVFormat, Space, Store
from course_lib.windows import kept_tokens


class RowsRead(NamedTuple):
    """Neighbouring rows that are read. held: tokens of each before the pass. length: of the longest, new ones included.

    start: the first one's first new token in the batch, where those of the others follow; new: how many each has.
    """

    chosen: slice
    held: list[int]
    start: int
    new: int
    length: int


class _Chunk(NamedTuple):
    """New tokens of one layer, which attend before they are stored: what `Store.write` takes, and a store of their own.

    So they too are read as the format has them, and what a query reads does not depend on how a prompt was cut.
    """

    place: int
    keys: Tensor
    values: Tensor
    slots: Tensor
    store: Store


class RingLayers:
    """The layers of one window: their memory, and where in a row of it a token lies. `room`: slots of a row."""

    def __init__(
        self,
        window: int | None,
        layers: Sequence[int],
        rows: int,
        capacity: int,
        space: Space,
        kv_format: KVFormat,
    ):
        config = space.config
        self.rows, self.room = rows, kept_tokens(capacity, window, config.sinks)
        self.ring, self.sinks = (capacity, 0) if window is None else (window, config.sinks)
        shape = replace(config, layers=len(layers), windows=(window,) * len(layers))
        self.space = replace(space, config=shape, blocks=rows * self.room)
        self.store = kv_format.for_layers(layers).reserve(self.space, f"{len(layers)} layers of {rows} x {self.room}")
        self.formats = [kv_format.for_layers([layer]) for layer in layers]
        self.late = False  # in this pass, tokens attend before they are stored
        self.kept: Tensor | None = None  # int64, those of them that are stored
        self.chunk: _Chunk | None = None

    def begin(self, batch: Batch) -> Tensor:
        """Prepare a pass; returns the slots, int64 [T]."""
        news, cached, rows = (torch.tensor(each) for each in (batch.query_lens, batch.cached_lens, batch.rows))
        position, first = batch.positions, (rows * self.room).repeat_interleave(news)
        self.late, self.chunk = bool(((news > 1) & (cached + news > self.room)).any()), None
        if self.late:
            ends = (cached + news).repeat_interleave(news)
            kept = (position >= ends - self.ring) | (position < self.sinks)
            self.kept = kept.nonzero().flatten().to(self.space.device)
        around = self.sinks + (position - self.sinks) % self.ring
        return first + torch.where(position < self.sinks, position, around)

    def write(self, place: int, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        if not self.late:
            self.store.write(place, keys, values, slots)
            return
        tokens = len(keys)
        one = replace(self.space.config, layers=1, windows=())
        store = self.formats[place].store(replace(self.space, config=one, blocks=tokens))
        store.write(0, keys, values, torch.arange(tokens, device=slots.device))
        self.chunk = _Chunk(place, keys, values, slots, store)

    def store_chunk(self) -> None:
        """Store what has attended. Of tokens with one slot, only the last is."""
        if self.chunk:
            place, *tokens, _ = self.chunk
            self.store.write(place, *(each[self.kept] for each in tokens))
            self.chunk = None

    def end(self) -> None:
        self.store_chunk()
        self.late = False

    def read(self, place: int, rows: RowsRead) -> tuple[Tensor, Tensor]:
        count, sequences = self._stored(rows), len(rows.held)

        def stored(tensor: Tensor) -> Tensor:  # a view
            return tensor.view(self.rows, -1, *tensor.shape[1:])[rows.chosen, :count]

        def fresh(tensor: Tensor) -> Tensor:
            return tensor[rows.start : rows.start + sequences * rows.new].unflatten(0, (sequences, rows.new))

        before = self.store.read(place, stored, rows.chosen)
        if not self.late:
            return before
        pairs = zip(before, self.chunk.store.read(0, fresh, rows.chosen), strict=True)
        keys, values = (torch.cat(pair, dim=1) for pair in pairs)
        return keys, values

    def positions(self, rows: RowsRead) -> Tensor | None:
        """Of the keys that `read` returns, as `KVCache.key_positions`."""
        count, held = self._stored(rows), torch.tensor(rows.held)[:, None]
        if self.late:
            return torch.cat((self._positions(held, count), held + torch.arange(rows.new)), dim=1)
        return None if count == rows.length else self._positions(held + rows.new, count)

    def _stored(self, rows: RowsRead) -> int:
        """Slots of a row in which something may be stored now, up to the longest row."""
        return min(max(rows.held) if self.late else rows.length, self.room)

    def _positions(self, tokens: Tensor, count: int) -> Tensor:
        """[rows, count]: what stands in the first slots of rows of so many tokens, [rows, 1]; -1 where nothing does.

        The token in a slot of the ring is the last one whose position leaves the slot's remainder. Where that one is a
        sink, it is not in the ring, and the slot is empty.
        """
        slot, last = torch.arange(count), tokens - 1
        around = last - (last - slot) % self.ring
        return torch.where(slot < self.sinks, slot.where(slot <= last, -1), around.where(around >= self.sinks, -1))
