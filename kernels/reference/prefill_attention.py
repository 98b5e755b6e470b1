"""Attention of many new tokens per sequence over a paged cache: prompts, chunks of prompts, drafts to verify."""

from __future__ import annotations

import torch
from torch import Tensor

from course_kernels.reference import widen


def prefill_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    cu_seqlens: Tensor,
    context_lens: Tensor,
    *,
    window: int | None = None,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> Tensor:
    """softmax(q k^T / sqrt(d)) v, causal, of each sequence's new tokens over its keys in the cache, theirs included.

    query: [T, H, d], the new tokens of S sequences end to end. keys, values: [blocks, P, K, d], one layer of the cache.
    block_tables: int32 [S, N], the blocks of each sequence in order; what lies beyond its last block is not read.
    cu_seqlens: int32 [S + 1], sequence s has the rows cu_seqlens[s] .. cu_seqlens[s + 1] - 1, from none to all.
    context_lens: int32 [S], keys of each sequence: its last new token stands at position context_lens[s] - 1.
    Query head h reads KV head h // (H / K) (arXiv 2305.13245); position p sees the keys p - window + 1 .. p.
    key_scales, value_scales: float32 [blocks, K, P], for caches of int8 or float8_e4m3fn, which hold x / scale.
    Returns [T, H, d] in query's dtype; rows beyond cu_seqlens[S] are undefined.
    """
    output = torch.empty_like(query, memory_format=torch.contiguous_format)
    block_size, group = keys.shape[1], query.shape[1] // keys.shape[2]
    for sequence, context in enumerate(context_lens.tolist()):
        begin, end = cu_seqlens[sequence : sequence + 2].tolist()
        cached = context - (end - begin)
        first = 0 if window is None else max(0, cached - window + 1)  # no key before it is visible to any new token
        at = torch.arange(first, context, device=query.device)
        blocks, offsets = block_tables[sequence, at // block_size].long(), at % block_size
        q = widen(query[begin:end])
        k, v = (
            _read(store, scales, blocks, offsets, q.dtype).repeat_interleave(group, dim=1)
            for store, scales in ((keys, key_scales), (values, value_scales))
        )
        scores = torch.einsum("thd,nhd->htn", q, k) * q.shape[-1] ** -0.5
        position = torch.arange(cached, context, device=query.device)[:, None]
        hidden = at > position
        if window is not None:
            hidden |= at <= position - window
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        output[begin:end] = torch.einsum("htn,nhd->thd", weights, v).to(query.dtype)
    return output


def _read(store: Tensor, scales: Tensor | None, blocks: Tensor, offsets: Tensor, dtype: torch.dtype) -> Tensor:
    """The rows [n, K, d] of the cache at these blocks and offsets, each [n]."""
    rows = store[blocks, offsets].to(dtype)
    return rows if scales is None else rows * scales[blocks, :, offsets][..., None].to(dtype)
