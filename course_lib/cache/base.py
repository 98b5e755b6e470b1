"""The protocol between the model and whatever stores its keys and values."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from course_lib.batch import Batch
from course_lib.cache.store import KVFormat


class KVCache(Protocol):
    """Keys and values of several sequences, one row each.

    A forward pass asks for the new tokens' slots once, writes and reads them in every layer, and commits at the end.
    Letters: L layers, K KV heads, d head_dim, T new tokens of the batch.
    """

    lengths: list[int]
    """Tokens held in each row."""
    format: KVFormat
    """How keys and values are stored."""

    def slots(self, batch: Batch) -> Tensor:
        """[T] int64: where each new token's key and value go. Raises RequestError where a row would overflow.

        A cache whose layers keep different tokens returns a row of these for each kind of layer.
        """
        ...

    def tables(self, batch: Batch) -> Tensor:
        """int32 [S, N]: the blocks of each sequence of the batch, new tokens included, after `slots`; padded with any.

        For kernels, which read `keys` and `values`, each [L, slots, K, d], a block of `block_size` slots at a time, and
        `store.scales` beside them (`SlotCache`). A cache that keeps anything else has no tables: `read` alone reads it.
        """
        ...

    def write(self, layer: int, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """Store keys and values, each [T, K, d], of one layer at their slots."""
        ...

    def read(self, layer: int, first_row: int, rows: int, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values, each [rows, length, K, d], of neighbouring rows; past a row's end the content is undefined
        but finite. Valid until the next write or read."""
        ...

    def key_positions(self, layer: int, first_row: int, rows: int, length: int) -> Tensor | None:
        """Where the keys that `read` returns stand in their sequences: int64 [rows, n] on the CPU, -1 past a row's end.

        None where they are the keys 0 .. length - 1 in order. A cache that drops keys reads fewer than `length`.
        """
        ...

    def commit(self, batch: Batch) -> None:
        """Count the batch's tokens as held, once every layer has written them."""
        ...

    def truncate(self, row: int, length: int) -> None:
        """Forget the row's tokens from position `length` on."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes this cache has reserved."""
        ...

    @property
    def used_bytes(self) -> int:
        """Bytes that hold the tokens of now; the rest of `nbytes` is waste."""
        ...
