"""Ragged batches over a paged cache, with NaN wherever a kernel must not look."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tests.kernels.values import normal


@dataclass
class Paged:
    """Arguments of the two attention operations, see course_kernels.reference.prefill_attention."""

    query: Tensor
    keys: Tensor
    values: Tensor
    block_tables: Tensor
    cu_seqlens: Tensor
    context_lens: Tensor
    scales: dict[str, Tensor]

    @property
    def prefill(self) -> tuple[Tensor, ...]:
        return self.query, self.keys, self.values, self.block_tables, self.cu_seqlens, self.context_lens

    @property
    def decode(self) -> tuple[Tensor, ...]:
        return self.query, self.keys, self.values, self.block_tables, self.context_lens

    def wide(self) -> Paged:
        """The same numbers, the query in float64 for the reference."""
        return Paged(self.query.double(), *self.prefill[1:], self.scales)


def build(
    query_lens: list[int],
    context_lens: list[int],
    *,
    heads: int = 4,
    kv_heads: int = 2,
    d: int = 16,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    cache: torch.dtype | None = None,
    window: int | None = None,
    seed: int = 0,
) -> Paged:
    """Sequences of query_lens[i] new tokens and context_lens[i] keys in all, their blocks shuffled.

    cache: int8 or float8_e4m3fn for an 8-bit cache. NaN, or 8-bit noise with NaN for scales, fills the slots past a
    sequence's end, the blocks that lie before every new token's window, and one block that is nobody's: to it points
    what a block table has no entry for.
    """
    blocks_of = [-(-context // block_size) for context in context_lens]
    order = (torch.randperm(sum(blocks_of), generator=torch.Generator().manual_seed(seed)) + 1).tolist()
    tables = torch.zeros(len(context_lens), max(blocks_of, default=0) + 1, dtype=torch.int32)
    shape = (sum(blocks_of) + 1, block_size, kv_heads, d)
    content = normal(*shape, seed=seed + 1), normal(*shape, seed=seed + 2)
    poison = torch.ones(shape[:2], dtype=torch.bool)
    for sequence, (new, context) in enumerate(zip(query_lens, context_lens, strict=True)):
        mine = [order.pop() for _ in range(blocks_of[sequence])]
        first = 0 if window is None else max(0, context - new - window + 1)
        for index, block in enumerate(mine):
            positions = index * block_size + torch.arange(block_size)
            poison[block] = (positions < first) | (positions >= context)
            if index >= first // block_size:
                tables[sequence, index] = block
    stores, scales = zip(*(_store(store, poison, cache or dtype) for store in content), strict=True)
    return Paged(
        normal(sum(query_lens), heads, d, dtype=dtype, seed=seed + 3),
        *stores,
        tables,
        torch.tensor([0, *query_lens]).cumsum(0, dtype=torch.int32),
        torch.tensor(context_lens, dtype=torch.int32),
        {} if cache is None else dict(zip(("key_scales", "value_scales"), scales, strict=True)),
    )


def _store(content: Tensor, poison: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """The store [blocks, P, K, d] and, of 8 bits, its scales [blocks, K, P]; poison [blocks, P]."""
    if dtype.itemsize > 1:
        return content.masked_fill(poison[..., None, None], torch.nan).to(dtype), None
    largest = torch.iinfo(dtype).max if dtype == torch.int8 else torch.finfo(dtype).max
    scale = content.abs().amax(-1) / largest
    stored = content / scale[..., None]
    stored = stored.round().to(dtype) if dtype == torch.int8 else stored.to(dtype)
    return stored, scale.masked_fill(poison[..., None], torch.nan).transpose(1, 2).contiguous()
