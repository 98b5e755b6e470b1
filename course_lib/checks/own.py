"""Put a learner's functions of exercise 02 in the place of the engine's own, for one sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from unittest import mock

import torch
from torch import Tensor

from course_lib.backend import TorchBackend
from course_lib.batch import Batch
from course_lib.cache.store import FLOAT
from course_lib.model import Decoder


class OwnCache:
    """Keys and values of one sequence, each [L, K, N, d], written by `append`: as much of `KVCache` as a pass needs."""

    format = FLOAT

    def __init__(self, model: Decoder, capacity: int, append: Callable[[Tensor, Tensor, int], int]):
        config = model.config
        shape = (config.layers, config.kv_heads, capacity, config.head_dim)
        self.keys = torch.zeros(shape, dtype=model.dtype, device=model.device)
        self.values = torch.zeros_like(self.keys)
        self.lengths = [0]
        self._append = append
        self._after = 0  # length that append answered in this pass

    def slots(self, batch: Batch) -> Tensor:
        return batch.positions  # append finds the place itself

    def write(self, layer: int, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        for buffer, new in ((self.keys, keys), (self.values, values)):
            self._after = self._append(buffer[layer], new.transpose(0, 1), self.lengths[0])

    def read(self, layer: int, first_row: int, rows: int, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values, each [1, length, K, d]."""
        return tuple(buffer[layer][None, :, :length].transpose(1, 2) for buffer in (self.keys, self.values))

    def commit(self, batch: Batch) -> None:
        self.lengths[0] = self._after

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes


class OwnEngine:
    """The course's decoder with the learner's cache, positions, mask and attention.

    capacity: most tokens of the sequence. Windows are not applied, so use it within a model's sliding window.
    """

    def __init__(
        self,
        model: Decoder,
        capacity: int,
        append: Callable[[Tensor, Tensor, int], int],
        positions: Callable[[int, int], Tensor],
        causal_mask: Callable[[int, int], Tensor],
        attend: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    ):
        self.model, self.capacity = model, capacity
        self.cache = OwnCache(model, capacity, append)
        self._positions, self._causal_mask, self._attend = positions, causal_mask, attend

    def step(self, tokens: Sequence[int], start: int) -> Tensor:
        """Feed tokens at positions start, start + 1, ... behind what the cache holds; logits [t, V] of each."""
        device = self.model.device
        batch = Batch(
            token_ids=torch.tensor(list(tokens)),
            positions=self._positions(start, len(tokens)).cpu(),
            rows=(0,),
            query_lens=(len(tokens),),
            cached_lens=(start,),
        )
        mask = self._causal_mask(start, len(tokens)).to(device)

        def attention(
            query: Tensor, layer: int, cache: OwnCache, pieces: object, window: int | None, sinks: int
        ) -> Tensor:
            """The engine's entry [T, H, d], answered by the learner's function [H, t, d]."""
            keys, values = (x[0].transpose(0, 1) for x in cache.read(layer, 0, 1, start + len(tokens)))
            return self._attend(query.transpose(0, 1), keys, values, mask).transpose(0, 1).contiguous()

        # Another backend for one pass keeps the model free of exercise code.
        with mock.patch.object(self.model, "backend", TorchBackend(attention)):
            return self.model.run(batch, self.cache, logits_for=range(len(tokens)))
