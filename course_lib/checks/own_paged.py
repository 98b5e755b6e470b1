"""Put a learner's functions of exercise 08 in the place of the engine's block manager and attention."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from unittest import mock

import torch
from torch import Tensor

from course_lib.backend import TorchBackend
from course_lib.batch import Batch
from course_lib.cache.store import FLOAT
from course_lib.model import Decoder


@dataclass
class OwnSequence:
    """length: tokens whose keys and values are computed. reserved: slots that `allocate` got for the prompt."""

    table: list[int]
    tokens: list[int]
    reserved: int

    @property
    def length(self) -> int:
        return len(self.tokens)


class OwnPagedEngine:
    """The course's decoder over a pool of blocks that the learner's eight functions run; a step feeds one sequence.

    blocks, block_size: size of the pool. The other arguments are the functions of the exercise, in its order. As much
    of `KVCache` as a pass needs is here too. Windows are not applied, so use it within a model's sliding window.
    """

    format = FLOAT

    def __init__(
        self,
        model: Decoder,
        blocks: int,
        block_size: int,
        block_count: Callable[..., tuple[int, int]],
        slots: Callable[..., Tensor],
        paged_attention: Callable[..., Tensor],
        block_keys: Callable[..., list[str]],
        longest_prefix: Callable[..., list[int]],
        allocate: Callable[..., tuple],
        extend: Callable[..., tuple],
        release: Callable[..., tuple],
    ):
        self.model, self.block_size = model, block_size
        self._block_count, self._slots, self._paged_attention = block_count, slots, paged_attention
        self._block_keys, self._longest_prefix = block_keys, longest_prefix
        self._allocate, self._extend, self._release = allocate, extend, release
        config = model.config
        shape = (config.layers, blocks, block_size, config.kv_heads, config.head_dim)
        # Stale values, as a pool has them after some use: what leaks from them shows in the logits.
        generator = torch.Generator().manual_seed(8)
        self.keys, self.values = (
            torch.randn(shape, generator=generator).to(model.device, model.dtype) for _ in range(2)
        )
        self.refs, self.free, self.cached = [0] * blocks, list(reversed(range(blocks))), []
        self.index: dict[str, int] = {}
        self.sequences: dict[str, OwnSequence] = {}
        self._running = ""  # name of the sequence in this pass

    def start(self, name: str, prompt: Sequence[int]) -> int:
        """Give a new sequence blocks for its prompt; returns how many tokens of it were found in the prefix cache."""
        prompt, size = list(prompt), self.block_size
        hits = self._longest_prefix(self._prefix_keys(prompt), self.index, len(prompt), size)
        new = self._block_count(len(prompt), size)[0] - len(hits)
        table, self.refs, self.free, cached = self._allocate(hits, new, self.refs[:], self.free[:], self.cached[:])
        evicted = set(self.cached) - set(cached) - set(hits)
        self.index = {key: block for key, block in self.index.items() if block not in evicted}
        self.cached = cached
        self.sequences[name] = OwnSequence(table, prompt[: len(hits) * size], len(prompt))
        return len(hits) * size

    def fork(self, parent: str, child: str) -> None:
        """Give `child` the parent's computed tokens, in the same blocks."""
        of = self.sequences[parent]
        self.sequences[child] = OwnSequence(of.table[:], of.tokens[:], of.length)
        for block in of.table:
            self.refs[block] += 1

    def finish(self, name: str) -> None:
        """Give the sequence's blocks back."""
        table, known = self.sequences.pop(name).table, list(self.index.values())
        self.refs, self.free, self.cached = self._release(table, self.refs[:], self.free[:], self.cached[:], known)

    def step(self, name: str, tokens: Sequence[int]) -> Tensor:
        """Feed the next tokens of a sequence; logits [t, V] of each."""
        self._running, sequence = name, self.sequences[name]
        for position in range(max(sequence.length, sequence.reserved), sequence.length + len(tokens)):
            self._make_room(sequence, position)
        batch = Batch.build([list(tokens)], [sequence.length], [0])
        # Another backend for one pass keeps the model free of exercise code.
        with mock.patch.object(self.model, "backend", TorchBackend(self._attend)):
            return self.model.run(batch, self, logits_for=range(len(tokens)))

    def slots(self, batch: Batch) -> Tensor:
        return self._slots(self._table(), batch.positions, self.block_size)

    def write(self, layer: int, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        for pool, new in ((self.keys, keys), (self.values, values)):
            pool[layer].flatten(0, 1)[slots] = new

    def commit(self, batch: Batch) -> None:
        """Count the tokens as computed; only now their full blocks enter the prefix cache."""
        sequence = self.sequences[self._running]
        sequence.tokens += batch.token_ids.tolist()
        for key, block in zip(self._prefix_keys(sequence.tokens), sequence.table, strict=False):
            self.index.setdefault(key, block)

    def _prefix_keys(self, tokens: list[int]) -> list[str]:
        return self._block_keys(tokens, self.block_size, "", _key)

    def _make_room(self, sequence: OwnSequence, position: int) -> None:
        result = self._extend(sequence.table[:], position, self.refs[:], self.free[:], self.block_size)
        sequence.table, self.refs, self.free, copies = result
        for source, target in copies:
            for pool in (self.keys, self.values):
                pool[:, target] = pool[:, source]

    def _table(self) -> Tensor:
        """int32, padded with two zeros, as the table of a shorter sequence in a batch is."""
        blocks = self.sequences[self._running].table
        return torch.tensor([*blocks, 0, 0], dtype=torch.int32, device=self.model.device)

    def _attend(
        self, query: Tensor, layer: int, cache: object, pieces: object, window: int | None, sinks: int
    ) -> Tensor:
        """The engine's entry [T, H, d]. Each token attends as in a decode step of its own, so no mask is needed."""
        table, start = self._table(), self.sequences[self._running].length
        rows = [
            self._paged_attention(q, self.keys[layer], self.values[layer], table, start + i + 1)
            for i, q in enumerate(query)
        ]
        return torch.stack(rows)


def _key(parent: str, tokens: list[int]) -> str:
    return hashlib.sha256(f"{parent}|{tokens}".encode()).hexdigest()
