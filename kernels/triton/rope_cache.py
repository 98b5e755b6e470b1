"""Rotary position embedding on the way into the KV cache: q and k are rotated, k and v stored, in one pass.

    first' = first * cos - second * sin        first, second: the halves of a head; cos and sin of the token's position
    second' = second * cos + first * sin       times the frequency of the pair: element i turns with element i + d/2

Source: Su et al., RoFormer, arXiv 2104.09864, section 3.4.2, in the half-split form of Hugging Face. The norm per head
before it: Qwen3 technical report, arXiv 2505.09388, section 2.

A program takes one token and HEADS heads: either of q, or the same heads of k and v. The store's row is a slot number,
so a contiguous and a paged cache look alike. Arithmetic is float32; nothing is rounded between norm and rotation.

A cache of 8 bits gets k and v as quantize.py says, with a scale per token and head, in the layout that paged_kv.py
reads. The rotated key is rounded once, from float32.

With T tokens, H query and K KV heads of d elements of b bytes: 2 T (H + 2 K) d b bytes, everything read and written
once (cos and sin add 4 d per token, and come from the L2 cache for all tiles but the first); 2 T K (d (b - 1) - 4) less
where 8 bits are stored. FLOPs: 3 T (H + K) d, 4 T (H + K) d for the norm, 6 T K d for 8 bits. Rotation, rounding and
store as kernels of their own would move k and v once more for each.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from course_kernels.launch import EIGHT_BIT, FLOATS, KernelError, check, check_head_dim
from course_kernels.triton.fp8 import writable
from course_kernels.triton.paged_kv import scale_specs
from course_kernels.triton.quantize import in_8_bits, scale_for

TILE = 1024  # elements of a program: of one warp, whose threads then have two loads of 128 bits from each half


@triton.jit
def _load_rotated(x, mask, weight, cos, sin, eps, NORM: tl.constexpr, HALF: tl.constexpr):
    """Both halves of heads, rotated, in float32. x: pointers [HEADS, HALF] to the first halves; mask [HEADS, 1]."""
    first = tl.load(x, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(x + HALF, mask=mask, other=0.0).to(tl.float32)
    if NORM:
        squares = tl.sum(first * first + second * second, axis=1, keep_dims=True)
        scale = tl.rsqrt(squares / (2 * HALF) + eps)
        at = tl.arange(0, HALF)[None, :]
        first *= scale * tl.load(weight + at).to(tl.float32)
        second *= scale * tl.load(weight + HALF + at).to(tl.float32)
    return first * cos - second * sin, second * cos + first * sin


@triton.jit
def _store_halves(x, scales, scale_offset, first, second, mask, HALF: tl.constexpr):
    """Store both halves of heads. x: pointers [HEADS, HALF] to the first; scales: None for a store without."""
    dtype: tl.constexpr = x.dtype.element_ty
    if scales is None:
        tl.store(x, first.to(dtype), mask=mask)
        tl.store(x + HALF, second.to(dtype), mask=mask)
    else:
        first, second = first.to(tl.float32), second.to(tl.float32)
        peak = tl.max(tl.maximum(tl.abs(first), tl.abs(second)), axis=1, keep_dims=True)
        scale = scale_for(peak, dtype)
        tl.store(scales + scale_offset, scale, mask=mask)
        tl.store(x, in_8_bits(first * (1.0 / scale), dtype), mask=mask)
        tl.store(x + HALF, in_8_bits(second * (1.0 / scale), dtype), mask=mask)


@triton.jit
def _rope_cache(
    q_ptr, k_ptr, v_ptr, cos_ptr, sin_ptr, q_out_ptr, keys_ptr, values_ptr, slots_ptr, q_weight, k_weight, eps,
    key_scales_ptr, value_scales_ptr,
    q_stride, k_stride, v_stride, cos_stride, sin_stride, keys_stride, values_stride,
    H: tl.constexpr, K: tl.constexpr, HALF: tl.constexpr, P: tl.constexpr, HEADS: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)  # token * stride and slot * stride can pass 2^31
    tile = tl.program_id(1)
    pair = tl.arange(0, HALF)[None, :]
    cos = tl.load(cos_ptr + token * cos_stride + pair)
    sin = tl.load(sin_ptr + token * sin_stride + pair)
    Q_TILES: tl.constexpr = (H + HEADS - 1) // HEADS
    if tile < Q_TILES:
        head = tile * HEADS + tl.arange(0, HEADS)[:, None]
        at = head * (2 * HALF) + pair
        mask = head < H
        first, second = _load_rotated(q_ptr + token * q_stride + at, mask, q_weight, cos, sin, eps, NORM, HALF)
        _store_halves(q_out_ptr + token * (H * 2 * HALF) + at, None, None, first, second, mask, HALF)
    else:
        slot = tl.load(slots_ptr + token)
        head = (tile - Q_TILES) * HEADS + tl.arange(0, HEADS)[:, None]
        at = head * (2 * HALF) + pair
        mask = (head < K) & (slot >= 0)  # a token of padding has slot -1
        first, second = _load_rotated(k_ptr + token * k_stride + at, mask, k_weight, cos, sin, eps, NORM, HALF)
        scale = (slot // P * K + head) * P + slot % P
        _store_halves(keys_ptr + slot * keys_stride + at, key_scales_ptr, scale, first, second, mask, HALF)
        value = v_ptr + token * v_stride + at
        halves = tl.load(value, mask=mask), tl.load(value + HALF, mask=mask)
        values_ptr += slot * values_stride
        _store_halves(values_ptr + at, value_scales_ptr, scale, halves[0], halves[1], mask, HALF)


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

    q [T, H, d]; k, v [T, K, d]; cos, sin float32 [T, d/2]: of position * frequency; keys, values [N, K, d]: one layer's
    store, contiguous or paged; slots int64 [T]: row of the store for each token, -1 for a token of padding, which
    stores nothing; whether a slot is below N is not checked. q_weight, k_weight [d], both or neither: RMSNorm weights
    per head, applied before the rotation (Qwen3), with eps. The rest is float32, float16 or bfloat16, one of them;
    d is 16, 32, 64, 128 or 256. key_scales, value_scales float32 [blocks, K, P], contiguous, N = blocks * P: where keys
    and values are int8 or float8_e4m3fn and so store x / scale. Raises KernelError for other input.
    """
    operation, dtype = "rope_cache", q.dtype
    cache = keys.dtype if keys.dtype in EIGHT_BIT else dtype
    tensors = {
        "q": (q, "T H d", FLOATS),
        "k": (k, "T K d", dtype),
        "v": (v, "T K d", dtype),
        "cos": (cos, "T d/2", torch.float32),
        "sin": (sin, "T d/2", torch.float32),
        "keys": (keys, "N K d", cache),
        "values": (values, "N K d", cache),
        "slots": (slots, "T", torch.int64),
    } | scale_specs(operation, keys.dtype, key_scales, value_scales)
    if (q_weight is None) != (k_weight is None):
        raise KernelError(f"{operation}: only one of q_weight and k_weight is given; give both or neither")
    if q_weight is not None:
        tensors |= {"q_weight": (q_weight, "d", dtype), "k_weight": (k_weight, "d", dtype)}
    size = check(operation, **tensors)
    tokens, heads, kv_heads, d = (size[name] for name in ("T", "H", "K", "d"))
    check_head_dim(operation, d)
    if size["d/2"] != d // 2:
        raise KernelError(f"{operation}: cos and sin have {size['d/2']} angles per token and must have d/2 = {d // 2}")
    if key_scales is not None and size["N"] != size["blocks"] * size["P"]:
        raise KernelError(
            f"{operation}: keys have {size['N']} slots and key_scales {size['blocks']} blocks of {size['P']}; "
            "both must be of one cache"
        )
    rotated = torch.empty_like(q, memory_format=torch.contiguous_format)
    if tokens == 0:
        return rotated
    heads_each = min(TILE // d, triton.next_power_of_2(max(heads, kv_heads)))
    tiles = triton.cdiv(heads, heads_each) + triton.cdiv(kv_heads, heads_each)
    _rope_cache[(tokens, tiles)](
        q, k, v, cos, sin, rotated, writable(keys), writable(values), slots, q_weight, k_weight, eps,
        key_scales, value_scales,
        q.stride(0), k.stride(0), v.stride(0), cos.stride(0), sin.stride(0), keys.stride(0), values.stride(0),
        H=heads, K=kv_heads, HALF=d // 2, P=size.get("P", 1), HEADS=heads_each, NORM=q_weight is not None, num_warps=1,
    )  # fmt: skip
    return rotated
