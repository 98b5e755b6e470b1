"""Put a learner's functions of exercise 04 into the decoder: a ring cache, and stores that quantise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.backend import TorchBackend
from course_lib.batch import Batch
from course_lib.cache.store import FLOAT
from course_lib.model import Decoder


class OwnRing:
    """One sequence in a ring that `ring_append` keeps, with a window and sinks in every layer; `KVCache` for `feed`.

    rings: keys and values, [2, L, s + w, K, d]. held: int64 [s + w], position of the token in each slot, -1 for none.
    The other arguments are the functions of the exercise.
    """

    format = FLOAT

    def __init__(
        self,
        model: Decoder,
        window: int,
        sinks: int,
        ring_slots: Callable[[Tensor, int, int], Tensor],
        window_mask: Callable[[Tensor, Tensor, int, int], Tensor],
        ring_append: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]],
    ):
        config = model.config
        self.window, self.sinks, self.lengths = window, sinks, [0]
        shape = (2, config.layers, sinks + window, config.kv_heads, config.head_dim)
        self.rings = torch.zeros(shape, dtype=model.dtype, device=model.device)
        self.held = torch.full((sinks + window,), -1, device=model.device)
        self.backend = TorchBackend(self._attend)
        self._ring_slots, self._window_mask, self._ring_append = ring_slots, window_mask, ring_append
        self._positions = self._held_after = self.held  # of the pass: its tokens, and `held` when it is over
        self._read: list[Tensor] = []  # of the layer: what its tokens attend to, and the positions of that

    def slots(self, batch: Batch) -> Tensor:
        self._positions = batch.positions.to(self.held.device)
        return self._ring_slots(self._positions, self.window, self.sinks)

    def write(self, layer: int, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        self._read = []
        for ring, new in zip(self.rings[:, layer], (keys, values), strict=True):
            # Copies: the function may write in place, and `held` is the same for all layers.
            result = self._ring_append(ring.clone(), self.held.clone(), new, self._positions, slots)
            seen, positions, after, self._held_after = result
            self._read += [seen, positions]
            ring.copy_(after)

    def commit(self, batch: Batch) -> None:
        self.lengths[0] += len(batch)
        self.held = self._held_after

    @property
    def nbytes(self) -> int:
        return self.rings.nbytes

    def _attend(
        self, query: Tensor, layer: int, cache: object, pieces: object, window: int | None, sinks: int
    ) -> Tensor:
        """The engine's entry [T, H, d]; the window is that of the ring."""
        keys, positions, values, _ = self._read
        mask = self._window_mask(self._positions, positions, self.window, self.sinks)
        q, k, v = (each.transpose(0, 1)[None] for each in (query, keys, values))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)[0].transpose(0, 1).contiguous()


class OwnStore(Protocol):
    """The keys or the values of one layer."""

    nbytes: int

    def append(self, x: Tensor) -> None:
        """Store x [t, K, d]."""

    def read(self) -> Tensor:
        """float32 [n, K, d]."""


class Int8Store:
    """By `int8_quantize`: codes [n, K, d] and scales [n, K]."""

    def __init__(self, int8_quantize: Callable[[Tensor], tuple[Tensor, Tensor]]):
        self._quantize, self.parts = int8_quantize, ()

    def append(self, x: Tensor) -> None:
        new = self._quantize(x.float())
        self.parts = tuple(torch.cat(pair) for pair in zip(self.parts, new, strict=True)) if self.parts else new

    def read(self) -> Tensor:
        codes, scale = self.parts
        return codes.float() * scale[..., None]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)


class KiviStore:
    """By `kivi_append` and the int4 functions. per_channel: keys, g tokens of a channel share a scale; else values.

    Of a value's d channels g neighbours do. Scale and zero are kept as float16, as in the engine: 4 bytes a group.
    """

    def __init__(self, per_channel: bool, group: int, residual: int, kivi_append, int4_quantize, int4_dequantize):
        self.per_channel, self.group, self.residual = per_channel, group, residual
        self._append, self._quantize, self._dequantize = kivi_append, int4_quantize, int4_dequantize
        self.recent: Tensor | None = None
        self.blocks: list[tuple[Tensor, ...]] = []  # packed, scale, zero

    def append(self, x: Tensor) -> None:
        recent = x[:0] if self.recent is None else self.recent
        leaving, self.recent = self._append(recent, x, self.group, self.residual)
        for block in leaving.float():
            if not self.per_channel:
                block = block.unflatten(-1, (-1, math.gcd(self.group, block.shape[-1])))
            packed, scale, zero = self._quantize(block, 0 if self.per_channel else -1)
            self.blocks.append((packed, scale.half(), zero.half()))

    def read(self) -> Tensor:
        shape = self.recent.shape[1:]
        blocks = [self._dequantize(packed, scale.float(), zero.float()) for packed, scale, zero in self.blocks]
        return torch.cat([block.reshape(-1, *shape) for block in blocks] + [self.recent.float()])

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for block in self.blocks for part in block) + self.recent.nbytes


class OwnCompressedCache:
    """One sequence, in a store for the keys and one for the values of each layer; `KVCache` for `feed`."""

    backend, format = TorchBackend(), FLOAT  # what the engine writes and reads is float

    def __init__(self, model: Decoder, keys: Callable[[], OwnStore], values: Callable[[], OwnStore]):
        self.stores = [(keys(), values()) for _ in range(model.config.layers)]
        self.lengths, self._dtype = [0], model.dtype

    def slots(self, batch: Batch) -> Tensor:
        return batch.positions  # stores append

    def write(self, layer: int, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        for store, new in zip(self.stores[layer], (keys, values), strict=True):
            store.append(new)

    def read(self, layer: int, first_row: int, rows: int, length: int) -> tuple[Tensor, Tensor]:
        keys, values = (store.read()[None].to(self._dtype) for store in self.stores[layer])
        return keys, values

    def key_positions(self, layer: int, first_row: int, rows: int, length: int) -> None:
        return None

    def commit(self, batch: Batch) -> None:
        self.lengths[0] += len(batch)

    @property
    def nbytes(self) -> int:
        return sum(store.nbytes for pair in self.stores for store in pair)


Cache = OwnRing | OwnCompressedCache


def int8_cache(model: Decoder, int8_quantize) -> OwnCompressedCache:
    """Keys and values in 8 bits, with a scale for each head of each token."""
    return OwnCompressedCache(model, lambda: Int8Store(int8_quantize), lambda: Int8Store(int8_quantize))


def kivi_cache(model: Decoder, group: int, residual: int, *functions: Callable) -> OwnCompressedCache:
    """4 bits, keys per channel and values per token. functions: kivi_append, int4_quantize, int4_dequantize."""
    return OwnCompressedCache(
        model,
        lambda: KiviStore(True, group, residual, *functions),
        lambda: KiviStore(False, group, residual, *functions),
    )


def feed(model: Decoder, cache: Cache, tokens: Sequence[int]) -> Tensor:
    """Feed tokens behind what the cache holds; logits [t, V] of each."""
    batch = Batch.build([list(tokens)], [cache.lengths[0]], [0])
    # Another backend for one pass keeps the model free of exercise code.
    with mock.patch.object(model, "backend", cache.backend):
        return model.run(batch, cache, logits_for=range(len(tokens)))
