"""What both attention kernels do: one pass over a stretch of a paged cache, with an online softmax.

For a query q and the keys k_j and values v_j that it may see, attention is sum_j p_j v_j / sum_j p_j with
p_j = exp(q . k_j / sqrt(d)). Keys come a tile at a time, no score leaves the chip, and three things are kept per query:

    peak   m = max_j s_j            s_j = q . k_j log2(e) / sqrt(d), so that p_j = 2^(s_j - m): exp2 is an instruction
    total  l = sum_j 2^(s_j - m)
    out    o = sum_j 2^(s_j - m) v_j

A tile that raises the peak from m to m' multiplies l and o by 2^(m - m') before its own terms are added. Sources:
Milakov and Gimelshein, arXiv 1805.02867, section 3; FlashAttention, arXiv 2205.14135, algorithm 1; FlashAttention-2,
arXiv 2307.08691, section 3.1 (divide by l once, at the end).

The cache of a layer is [blocks, P, K, d] (PagedAttention, arXiv 2309.06180, section 4.1): position n of a sequence is
row n % P of block table[n // P]. A tile is gathered row by row, so its blocks may lie anywhere, and P need not be its
height. A row is d contiguous elements, so the loads are of 128 bits; the next tile's are on their way meanwhile.

A cache of 8 bits (int8 or float8_e4m3fn) holds x / scale, with a float32 scale per token and KV head in [blocks, K, P]:
a program reads the scales of one head, and they are neighbours. The key's scale multiplies the score. The value's
multiplies the value and not p: in float16 the product of a small p and a small scale would round to 0.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from course_kernels.launch import EIGHT_BIT, FLOATS, KernelError, Spec, check, check_block_size, check_head_dim
from course_kernels.triton.fp8 import convert

LOG2_E = 1.4426950408889634


@triton.jit
def attend(
    state, q, position, cache, kv_head, start, end, first, last, block_stride, scale,
    MASKED: tl.constexpr, WINDOW: tl.constexpr, P: tl.constexpr, K: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The state (peak [M], total [M], out [M, D], in float32) after the keys at positions start .. end - 1.

    q [M, D]; position [M], of each query in its sequence; cache: pointers (keys, values, key scales or None, value
    scales or None, the sequence's block table); start: a multiple of TILE; scale: log2(e) / sqrt(d).
    MASKED: a query at p sees the keys up to p (WINDOW of them, if it is not 0), and of the cache only the positions
    first .. last - 1 are read. Otherwise every query sees every key of start .. end - 1, whole tiles.
    """
    peak, total, out = state
    keys, values, key_scales, value_scales, table = cache
    element = tl.arange(0, D)
    other: tl.constexpr = 0.0 if MASKED else None
    for tile in range(start, end, TILE):
        key = tile + tl.arange(0, TILE)
        # A padding slot may hold NaN, which a weight of 0 would not hide: it is not read.
        exists = (key >= first) & (key < last) if MASKED else None
        row_exists = exists[:, None] if MASKED else None
        block = tl.load(table + key // P, mask=exists, other=0 if MASKED else None).to(tl.int64)  # * stride passes 2^31
        offset = (block * block_stride + (key % P) * (K * D) + kv_head * D)[:, None] + element[None, :]
        scale_offset = (block * K + kv_head) * P + key % P

        k = tl.load(keys + offset, mask=row_exists, other=other)
        score = tl.dot(q, convert(k, q.dtype).T, input_precision="ieee")
        if key_scales is not None:
            score *= tl.load(key_scales + scale_offset, mask=exists, other=other)[None, :]
        if MASKED:
            visible = key[None, :] <= position[:, None]
            if WINDOW:
                visible &= key[None, :] > position[:, None] - WINDOW
            score = tl.where(visible, score, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(score, 1) * scale)
        # Of a query that has not seen a key yet, the peak is -inf, and -inf - (-inf) is NaN.
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak) if MASKED else new_peak
        p = tl.exp2(score * scale - base[:, None])
        shrink = tl.exp2(peak - base)
        total = total * shrink + tl.sum(p, 1)

        v = tl.load(values + offset, mask=row_exists, other=other)
        if value_scales is None:
            v = convert(v, q.dtype)
        else:
            # Transposed and back: otherwise Triton loads these rows in the dot's own layout, 64 bits at a time.
            value_scale = tl.load(value_scales + scale_offset, mask=exists, other=other)
            v = (convert(v.T, tl.float32) * value_scale[None, :]).to(q.dtype).T
        out = tl.dot(p.to(q.dtype), v, out * shrink[:, None], input_precision="ieee")
        peak = new_peak
    return peak, total, out


@triton.jit
def empty_state(ROWS: tl.constexpr, D: tl.constexpr):
    """The state before any key."""
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    return peak, tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, D], tl.float32)


def scale_specs(
    operation: str, cache: torch.dtype, key_scales: Tensor | None, value_scales: Tensor | None
) -> dict[str, Spec]:
    """Specs of the scales for `launch.check`. Raises KernelError unless an 8-bit cache, and no other, has them."""
    specs = {}
    for name, scales in {"key_scales": key_scales, "value_scales": value_scales}.items():
        if cache in EIGHT_BIT and scales is None:
            raise KernelError(f"{operation}: the cache has 8 bits and {name} are missing; give one per token and head")
        if cache not in EIGHT_BIT and scales is not None:
            raise KernelError(f"{operation}: {name} are given, which only a cache of int8 or float8_e4m3fn has")
        if scales is not None:
            if not scales.is_contiguous():
                raise KernelError(f"{operation}: key_scales and value_scales must be contiguous; call .contiguous()")
            specs[name] = (scales, "blocks K P", torch.float32)
    return specs


def check_paged(
    operation: str, rows: str, query: Tensor, keys: Tensor, values: Tensor, block_tables: Tensor, context_lens: Tensor,
    window: int | None, key_scales: Tensor | None, value_scales: Tensor | None, **more: tuple[Tensor, str, torch.dtype],
) -> dict[str, int]:  # fmt: skip
    """Check what both launchers take. Returns the sizes of H, d, P, K, S, N and what else was named.

    rows: the name of query's first dimension. more: further specs for `launch.check`. Raises KernelError.
    """
    dtype = keys.dtype if keys.dtype in EIGHT_BIT else query.dtype
    specs = {
        "query": (query, f"{rows} H d", FLOATS),
        "keys": (keys, "blocks P K d", dtype),
        "values": (values, "blocks P K d", dtype),
        "block_tables": (block_tables, "S N", torch.int32),
        "context_lens": (context_lens, "S", torch.int32),
    }
    specs |= scale_specs(operation, keys.dtype, key_scales, value_scales)
    size = check(operation, **specs, **more)
    check_head_dim(operation, size["d"])
    check_block_size(operation, size["P"])
    if size["H"] % size["K"]:
        raise KernelError(
            f"{operation}: query has {size['H']} heads, which must be a multiple of the cache's {size['K']} heads"
        )
    if keys.stride(0) != values.stride(0):
        raise KernelError(
            f"{operation}: blocks of keys lie {keys.stride(0)} elements apart and those of values {values.stride(0)}; "
            "give both stores one layout"
        )
    if window is not None and window < 1:
        raise KernelError(f"{operation}: window is {window} and must be at least 1, or None where all keys are seen")
    return size
