"""Rotary position embedding (arXiv 2104.09864, section 3.4.2) on the way into the KV cache."""

from __future__ import annotations

import torch
from torch import Tensor

from course_kernels.reference import widen
from course_kernels.reference.norm import rms_norm
from course_kernels.reference.quantize import quantize_per_token


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn element i of each head with element i + d/2 by the token's angle i. x [T, heads, d]; cos, sin [T, d/2]."""
    first, second = widen(x).chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).type_as(x)


def rope_cache(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    eps: float = 0.0,
    *,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> Tensor:
    """Rotate q and k; store k and v in the cache. Returns the rotated q [T, H, d], contiguous.

    q [T, H, d]; k, v [T, K, d]; cos, sin [T, d/2]: of position * frequency; keys, values [N, K, d]: one layer's
    store, contiguous or paged; slots int64 [T]: row of the store for each token, -1 for a token of padding, which
    stores nothing. q_weight, k_weight [d]: RMSNorm weights per head, applied before the rotation (Qwen3), with eps.
    key_scales, value_scales float32 [blocks, K, P], N = blocks * P: of a store of int8 or float8_e4m3fn, which gets
    x / scale.
    """
    if q_weight is not None:
        q, k = rms_norm(q, q_weight, eps), rms_norm(k, k_weight, eps)
    real = slots >= 0
    for store, scales, rows in ((keys, key_scales, rotate(widen(k), cos, sin)), (values, value_scales, v)):
        _write(store, scales, slots[real], rows[real])
    return rotate(q, cos, sin)


def _write(store: Tensor, scales: Tensor | None, slots: Tensor, rows: Tensor) -> None:
    """Rows [T, K, d] into the slots [T] of the store, in its dtype."""
    if scales is not None:
        rows, scale = quantize_per_token(rows, store.dtype)
        block_size = scales.shape[-1]
        scales[slots // block_size, :, slots % block_size] = scale.to(scales.dtype)
    store[slots] = rows.to(store.dtype)
