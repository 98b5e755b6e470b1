"""Rotary position embedding (arXiv 2104.09864, section 3.4.2) on the way into the KV cache."""

from __future__ import annotations

import torch
from torch import Tensor

from course_kernels.reference import widen
from course_kernels.reference.norm import rms_norm


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
) -> Tensor:
    """Rotate q and k; store k and v in the cache. Returns the rotated q [T, H, d], contiguous.

    q [T, H, d]; k, v [T, K, d]; cos, sin [T, d/2]: of position * frequency; keys, values [N, K, d]: one layer's
    store, contiguous or paged; slots int64 [T]: row of the store for each token, -1 for a token of padding, which
    stores nothing. q_weight, k_weight [d]: RMSNorm weights per head, applied before the rotation (Qwen3), with eps.
    """
    if q_weight is not None:
        q, k = rms_norm(q, q_weight, eps), rms_norm(k, k_weight, eps)
    real = slots >= 0
    keys[slots[real]] = rotate(k, cos, sin)[real]
    values[slots[real]] = v[real]
    return rotate(q, cos, sin)
