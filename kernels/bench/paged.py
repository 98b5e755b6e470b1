"""Ragged batches over a paged cache, with NaN wherever a kernel must not look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from course_kernels.reference.quantize import quantize_per_token


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
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    *,
    heads: int = 4,
    kv_heads: int = 2,
    d: int = 16,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    cache: torch.dtype | None = None,
    window: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Paged:
    """Sequences of query_lens[i] new tokens and context_lens[i] keys in all, their blocks shuffled.

    cache: int8 or float8_e4m3fn for an 8-bit cache. NaN, or 8-bit noise with NaN for scales, fills the slots past a
    sequence's end, the blocks that lie before every new token's window, and one block that is nobody's: to it points
    what a block table has no entry for.
    """
    generator = torch.Generator(device).manual_seed(seed)
    new, context = (torch.tensor(lens, dtype=torch.int32, device=device) for lens in (query_lens, context_lens))
    first = (context - new - window + 1).clamp(min=0) if window else torch.zeros_like(context)
    blocks_of = -(-context // block_size)
    blocks = int(blocks_of.sum()) + 1

    index = torch.arange(int(blocks_of.max()) + 1 if len(context) else 1, device=device)
    own = index < blocks_of[:, None]
    tables = torch.zeros(own.shape, dtype=torch.int32, device=device)
    tables[own] = torch.randperm(blocks - 1, generator=generator, device=device).int() + 1
    position = index[:, None] * block_size + torch.arange(block_size, device=device)
    poison = torch.ones(blocks, block_size, dtype=torch.bool, device=device)
    unseen = (position < first[:, None, None]) | (position >= context[:, None, None])
    poison[tables[own].long()] = unseen[own]
    tables.masked_fill_(index < first[:, None] // block_size, 0)

    shape = (blocks, block_size, kv_heads, d)
    content = [torch.randn(*shape, generator=generator, device=device) for _ in range(2)]
    stores, scales = zip(*(_store(store, poison, cache or dtype) for store in content), strict=True)
    return Paged(
        torch.randn(sum(query_lens), heads, d, generator=generator, device=device).to(dtype),
        *stores,
        tables,
        torch.cat((new.new_zeros(1), new)).cumsum(0, dtype=torch.int32),
        context,
        {} if cache is None else dict(zip(("key_scales", "value_scales"), scales, strict=True)),
    )


def _store(content: Tensor, poison: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """The store [blocks, P, K, d] and, of 8 bits, its scales [blocks, K, P]; poison [blocks, P]."""
    if dtype.itemsize > 1:
        return content.masked_fill(poison[..., None, None], torch.nan).to(dtype), None
    stored, scale = quantize_per_token(content, dtype)
    return stored, scale.masked_fill(poison[..., None], torch.nan).transpose(1, 2).contiguous()
