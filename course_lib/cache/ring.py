"""The cache of models with sliding windows: a layer with a window keeps what later queries can still see, no more.

A row of such a layer has s + W slots. The first s tokens, the sinks, have slots of their own; the others go round in a
ring of W: the token at position p >= s lies in slot s + (p - s) % W. There it replaces the one at p - W, which no query
from p on sees. Layers without a window keep every token. The bytes are those of `ModelConfig.kv_bytes`.

Order matters when several tokens come at once. The first of t new tokens still sees the W - 1 before it, and the others
replace t - 1 of these. A ring of W + t - 1 slots would do, if the longest t were known and short. Here a chunk that
would replace anything attends first and is stored afterwards, so W slots do for chunks of any length.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from course_lib.batch import Batch
from course_lib.cache.contiguous import check_rows
from course_lib.cache.store import FLOAT, KVFormat, Space
from course_lib.config import ModelConfig
from course_lib.errors import RequestError
from course_lib.windows import kept_tokens


class RingCache:
    """Keys and values of `rows` sequences of up to `capacity` tokens; implements `KVCache` for the torch backend.

    Each layer is read before the next one is written. kv_format: how keys and values are stored; a chunk that attends
    before it is stored reads its own as they were computed. Raises RequestError where the memory cannot be reserved.
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
        windows = list(dict.fromkeys(config.windows))
        self._kinds = [_Kind(config, window, rows, capacity, dtype, device, kv_format) for window in windows]
        self._places = [  # of each layer: (its kind, its number among the layers of that kind)
            (windows.index(window), config.windows[:layer].count(window)) for layer, window in enumerate(config.windows)
        ]

    def slots(self, batch: Batch) -> Tensor:
        """int64 [kinds of layers, T]. Raises RequestError where a row would overflow."""
        check_rows(batch, self.lengths, self.capacity)
        starts = [start for start, _ in batch.spans]
        self._starts = dict(zip(batch.rows, zip(starts, batch.query_lens, strict=True), strict=True))
        return torch.stack([kind.begin(batch) for kind in self._kinds])

    def tables(self, batch: Batch) -> Tensor:
        raise RequestError("a ring cache has no block tables; use the torch backend, or a contiguous or paged cache")

    def write(self, layer: int, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        number, place = self._places[layer]
        for kind in self._kinds:
            kind.store_waiting()
        self._kinds[number].write(place, keys, values, slots[number])

    def read(self, layer: int, first_row: int, rows: int, length: int) -> tuple[Tensor, Tensor]:
        """As in `KVCache`, but of the keys that the layer keeps, which stand at `key_positions`."""
        number, place = self._places[layer]
        return self._kinds[number].read(place, *self._rows(first_row, rows), length)

    def key_positions(self, layer: int, first_row: int, rows: int, length: int) -> Tensor | None:
        kind = self._kinds[self._places[layer][0]]
        return kind.positions(*self._rows(first_row, rows)[1:], length)

    def commit(self, batch: Batch) -> None:
        for kind in self._kinds:
            kind.end()
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
        dropped = any(longest > kind.room for kind in self._kinds)
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
        return sum(kind.store.nbytes for kind in self._kinds)

    @property
    def used_bytes(self) -> int:
        used = (
            kind.store.nbytes * sum(min(length, kind.room) for length in self.lengths) // (self.rows * kind.room)
            for kind in self._kinds
        )
        return sum(used)

    def _rows(self, first_row: int, rows: int) -> tuple[slice, list[int], int, int]:
        """The rows; the tokens each held before the pass; their first new token in the batch, and how many each has."""
        chosen = slice(first_row, first_row + rows)
        return chosen, self.lengths[chosen], *self._starts.get(first_row, (0, 0))


class _Kind:
    """The layers of one window: their memory, and where in a row of it a token lies. `room`: slots of a row."""

    def __init__(
        self,
        config: ModelConfig,
        window: int | None,
        rows: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device | str,
        kv_format: KVFormat,
    ):
        self.ring, self.sinks = (capacity, 0) if window is None else (window, config.sinks)
        self.rows, self.room = rows, kept_tokens(capacity, window, config.sinks)
        layers = config.windows.count(window)
        shape = replace(config, layers=layers, windows=(window,) * layers)
        self.store = kv_format.reserve(Space(shape, rows * self.room, 1, None, dtype, device), f"{rows} x {self.room}")
        self.device = device
        self.late = False  # in this pass, tokens are stored after they attended
        self.kept: Tensor | None = None  # int64, those of them that are stored; None for all
        self.waiting: tuple[int, Tensor, Tensor, Tensor] | None = None  # what `Store.write` takes

    def begin(self, batch: Batch) -> Tensor:
        """Prepare a pass; returns the slots, int64 [T]."""
        news, cached, rows = (torch.tensor(each) for each in (batch.query_lens, batch.cached_lens, batch.rows))
        position, first = batch.positions, (rows * self.room).repeat_interleave(news)
        self.late, self.kept, self.waiting = bool(((news > 1) & (cached + news > self.room)).any()), None, None
        if self.late:
            ends = (cached + news).repeat_interleave(news)
            kept = (position >= ends - self.ring) | (position < self.sinks)
            self.kept = kept.nonzero().flatten().to(self.device)
        around = self.sinks + (position - self.sinks) % self.ring
        return first + torch.where(position < self.sinks, position, around)

    def write(self, place: int, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        if self.late:
            self.waiting = place, keys, values, slots
        else:
            self.store.write(place, keys, values, slots)

    def store_waiting(self) -> None:
        """Store what has attended. Of tokens with one slot, only the last is."""
        if self.waiting:
            place, *rest = self.waiting
            self.store.write(place, *(each[self.kept] for each in rest))
            self.waiting = None

    def end(self) -> None:
        self.store_waiting()
        self.late = False

    def read(
        self, place: int, chosen: slice, held: list[int], start: int, new: int, length: int
    ) -> tuple[Tensor, Tensor]:
        """held, new: tokens of each row before the pass, and in it. start: of the first row's, in the batch."""
        count = self._stored(held, length)

        def gather(store: Tensor) -> Tensor:  # a view
            return store.view(self.rows, -1, *store.shape[1:])[chosen, :count]

        keys, values = self.store.read(place, gather, chosen)
        if not self.late:
            return keys, values
        _, *fresh, _ = self.waiting
        fresh = (each[start : start + len(held) * new].view(len(held), new, *each.shape[1:]) for each in fresh)
        return tuple(torch.cat(pair, dim=1) for pair in zip((keys, values), fresh, strict=True))

    def positions(self, held: list[int], start: int, new: int, length: int) -> Tensor | None:
        """Of the keys that `read` returns, as `KVCache.key_positions`."""
        count = self._stored(held, length)
        if not self.late and count == length:
            return None
        before = torch.tensor(held)[:, None]
        if not self.late:
            return self._positions(before + new, count)
        return torch.cat((self._positions(before, count), before + torch.arange(new)), dim=1)

    def _stored(self, held: list[int], length: int) -> int:
        """Slots of a row in which something may be stored now, up to the longest row."""
        return min(max(held) if self.late else length, self.room)

    def _positions(self, tokens: Tensor, count: int) -> Tensor:
        """[rows, count]: what stands in the first slots of rows of so many tokens, [rows, 1]; -1 where nothing does.

        The token in a slot of the ring is the last one whose position leaves the slot's remainder. Where that one is a
        sink, it is not in the ring, and the slot is empty.
        """
        slot, last = torch.arange(count), tokens - 1
        around = last - (last - slot) % self.ring
        return torch.where(slot < self.sinks, slot.where(slot <= last, -1), around.where(around >= self.sinks, -1))
