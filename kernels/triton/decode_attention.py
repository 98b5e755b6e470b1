"""Attention of one new token per sequence over a paged cache: a decode step. It waits for memory, so it reads once.

    out[s, h] = sum_n p_n v_n / sum_n p_n,   p_n = exp(q[s, h] . k_n / sqrt(d)),   n = 0 .. context_lens[s] - 1

Per sequence with n keys of b bytes an element: bytes 2 n K d b (and 8 n K of scales in an 8-bit cache), FLOPs 4 n H d.
That is 2 (H / K) / b FLOP per byte whatever the batch, far under every GPU's ridge.

Grouped heads. The H / K query heads that share a KV head are the rows of one tile, so the keys are read once for all of
them and both products are matrix products; the tile is filled up to the 16 rows that tensor cores take.

Split keys. One program per sequence and KV head leaves most of a GPU idle when the batch is small, and waits for the
longest sequence. So the keys of a sequence are cut into SPLITS equal shares, and a second kernel combines their
results (o_i, L_i = m_i + log2 l_i): o = sum_i 2^(L_i - L) o_i / sum_i 2^(L_i - L) with L = max_i L_i. That moves
8 S H SPLITS (d + 1) bytes. Sources: Dao et al., Flash-Decoding, pytorch.org/blog/flash-decoding; for the combination
Milakov and Gimelshein, arXiv 1805.02867, section 3.1.

SPLITS depends on shapes alone, block_tables' width included, and no length is read on the host: with tables of a fixed
width the launches are always the same, as a CUDA graph needs. A share without keys costs an empty program.

    cache     head_dim   TILE  warps  stages  why
    16 bits   all          64      4       3  at d = 128 five programs on an H100, each with 32 KB of loads on their way
    8 bits    to 128       64      4       3  the same tile; in int8 140 registers, so three programs
    8 bits    256          32      4       3  64 keys spill on sm_90 and sm_100
    32 bits   to 128       32      8       2  no tensor cores, so a thread holds more; 4 warps spill
    32 bits   256          16      8       2  32 keys need more than the 64 KB of LDS that AMD has

A query of 32 bits over a cache of 8 takes the last row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from course_kernels.triton.fp8 import capability, readable
from course_kernels.triton.paged_kv import LOG2_E, attend, check_paged, empty_state

PROGRAMS = 512  # about four per multiprocessor, as in split_k; one number for all GPUs, so that all give the same bits
TILES_EACH = 4  # of keys; a smaller share costs more to start and combine than it saves


# Block tables grow and batches shrink while an engine runs: not a reason to compile anew.
@triton.jit(do_not_specialize=["table_stride"], do_not_specialize_on_alignment=["block_tables_ptr", "context_lens_ptr"])
def _decode_attention(
    query_ptr, keys_ptr, values_ptr, key_scales_ptr, value_scales_ptr, block_tables_ptr, context_lens_ptr,
    out_ptr, log_totals_ptr, query_stride, block_stride, table_stride, scale,
    WINDOW: tl.constexpr, SPLITS: tl.constexpr, GROUP: tl.constexpr, P: tl.constexpr, K: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    # KV heads first: their programs run side by side, and a token's KV heads lie side by side in memory.
    kv_head, split, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    row = tl.arange(0, ROWS)
    head = kv_head * GROUP + tl.minimum(row, GROUP - 1)  # rows beyond the group repeat its last head; not stored
    element = tl.arange(0, D)
    q = tl.load(query_ptr + sequence * query_stride + head[:, None] * D + element[None, :])

    context = tl.load(context_lens_ptr + sequence)
    first = tl.maximum(context - WINDOW, 0) if WINDOW else 0
    share = tl.cdiv(tl.cdiv(context, TILE) - first // TILE, SPLITS) * TILE
    start = first // TILE * TILE + split * share
    position = tl.full([ROWS], 0, tl.int32) + context - 1
    cache = (keys_ptr, values_ptr, key_scales_ptr, value_scales_ptr, block_tables_ptr + sequence * table_stride)
    peak, total, out = attend(
        empty_state(ROWS, D), q, position, cache, kv_head, start, tl.minimum(start + share, context), first, context,
        block_stride, scale, True, WINDOW, P, K, D, TILE,
    )  # fmt: skip
    total = tl.where(total > 0, total, 1.0)  # no keys: out is 0 and the log -inf, as the peak is
    out /= total[:, None]
    at = (sequence * (K * GROUP) + head) * SPLITS + split
    tl.store(out_ptr + at[:, None] * D + element[None, :], out.to(out_ptr.dtype.element_ty), mask=row[:, None] < GROUP)
    if SPLITS > 1:
        tl.store(log_totals_ptr + at, peak + tl.log2(total), mask=row < GROUP)


@triton.jit
def _combine_splits(partials_ptr, log_totals_ptr, out_ptr, SPLITS: tl.constexpr, D: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    split, element = tl.arange(0, SPLITS), tl.arange(0, D)
    log_total = tl.load(log_totals_ptr + row * SPLITS + split)
    peak = tl.max(log_total, 0)
    weight = tl.exp2(log_total - tl.where(peak == float("-inf"), 0.0, peak))
    partial = tl.load(partials_ptr + (row * SPLITS + split)[:, None] * D + element[None, :])
    total = tl.sum(weight, 0)
    out = tl.sum(weight[:, None] * partial, 0) / tl.where(total > 0, total, 1.0)
    tl.store(out_ptr + row * D + element, out.to(out_ptr.dtype.element_ty))


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
    """softmax(q k^T / sqrt(d)) v of each sequence's last token over its keys in the cache, its own included.

    query [S, H, d]: float32, float16 or bfloat16. keys, values [blocks, P, K, d]: one layer of the cache, in query's
    dtype, or int8 or float8_e4m3fn with key_scales and value_scales, float32 [blocks, K, P]. block_tables int32 [S, N]:
    a sequence's blocks in order; entries past its length are not read. context_lens int32 [S]: keys of each sequence;
    where it is 0 the output is 0, so that a step of fixed size may have empty rows. window: how many keys are seen, the
    last ones.
    Returns [S, H, d]. Raises KernelError for other input.
    """
    size = check_paged(
        "decode_attention", "S", query, keys, values, block_tables, context_lens, window, key_scales, value_scales
    )
    sequences, heads, d, block_size, kv_heads = (size[name] for name in "SHdPK")
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    if not sequences:
        return out
    tile = _tile(query.dtype, keys.dtype, d)
    longest = size["N"] * block_size if window is None else min(size["N"] * block_size, window + tile["TILE"])
    splits = _splits(sequences * kv_heads, triton.cdiv(longest, tile["TILE"]))
    partials, log_totals = out, None
    if splits > 1:
        partials = torch.empty(sequences, heads, splits, d, dtype=torch.float32, device=query.device)
        log_totals = torch.empty(sequences, heads, splits, dtype=torch.float32, device=query.device)
    group = heads // kv_heads
    _decode_attention[(kv_heads, splits, sequences)](
        query, readable(keys), readable(values), key_scales, value_scales, block_tables, context_lens,
        partials, log_totals, query.stride(0), keys.stride(0), block_tables.stride(0), LOG2_E * d**-0.5,
        WINDOW=window or 0, SPLITS=splits, GROUP=group, P=block_size, K=kv_heads, D=d,
        ROWS=max(16, triton.next_power_of_2(group)), **tile,
    )  # fmt: skip
    if splits > 1:
        warps = min(4, max(1, splits * d // 1024))  # 8 elements or more of a thread: loads of 128 bits
        _combine_splits[(sequences * heads,)](partials, log_totals, out, SPLITS=splits, D=d, num_warps=warps)
    return out


def _splits(programs: int, tiles: int) -> int:
    """How many shares of the keys: a power of two, for at most PROGRAMS programs of at least TILES_EACH tiles."""
    count = 1
    while 2 * count * programs <= PROGRAMS and 2 * count * TILES_EACH <= tiles:
        count *= 2
    return count


def _tile(query: torch.dtype, cache: torch.dtype, d: int) -> dict[str, int]:
    """The table above. AMD's LDS of 64 KB holds two stages."""
    if query == torch.float32:
        return {"TILE": 32 if d < 256 and cache == query else 16, "num_warps": 8, "num_stages": 2}
    small = cache.itemsize == 1 and d == 256
    return {"TILE": 32 if small else 64, "num_warps": 4, "num_stages": 3 if capability() else 2}
