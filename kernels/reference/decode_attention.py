"""Attention of one new token per sequence over a paged cache: a decode step."""

from __future__ import annotations

import torch
from torch import Tensor

from course_kernels.reference.prefill_attention import prefill_attention


def decode_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    *,
    window: int | None = None,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> Tensor:
    """softmax(q k^T / sqrt(d)) v of the last token of each sequence over its keys in the cache, its own included.

    query: [S, H, d], one token per sequence; the rest as in `prefill_attention`, of which it is the case T = S.
    A sequence without keys (context_lens[s] = 0: an empty row of a step with a fixed batch size) gives zeros.
    Returns [S, H, d] in query's dtype.
    """
    one_each = torch.arange(len(query) + 1, dtype=torch.int32, device=query.device)
    scales = {"key_scales": key_scales, "value_scales": value_scales}
    return prefill_attention(query, keys, values, block_tables, one_each, context_lens, window=window, **scales)
