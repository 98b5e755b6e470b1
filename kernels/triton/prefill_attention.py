"""Attention of many new tokens per sequence over a paged cache: prompts, chunks of prompts, drafts to be verified.

    out[t, h] = sum_n p_n v_n / sum_n p_n,   p_n = exp(q[t, h] . k_n / sqrt(d)),   n = 0 .. position of t

The batch is ragged: the new tokens of all sequences lie end to end, and the keys before a sequence's new tokens (a
cached prefix, earlier chunks) are in the cache. So are its own: they are written before this runs.

For a sequence of n new tokens and c keys in all, c - n of them cached: FLOPs 4 H d (n c - n (n - 1) / 2). Bytes from
memory: 2 n H d b of queries and output and 2 c K d b of keys and values, if the L2 cache serves all tiles but the
first. A tile does 4 ROWS d FLOPs for the 2 d b bytes of a key and value: 2 ROWS / b FLOP per byte, 128 in float16.

A program takes ROWS pairs of a token and one of the H / K query heads of a KV head: row r is head r % (H / K) of the
sequence's new token r // (H / K). The heads that share keys read them once, and a chunk of few tokens fills its tile
better. Rows beyond the last repeat it and are not stored, so no row is without keys. The keys are three stretches:
those at which some row's window begins, those that every row sees, those around the diagonal. Only the first and the
last are masked. Sources: FlashAttention-2, arXiv 2307.08691, section 3; grouped rows and the search for a program's
sequence as in vLLM's unified attention kernel (vllm/v1/attention/ops/triton_unified_attention.py).

    cache     head_dim   GPU        ROWS x TILE  warps  stages  why
    16 bits   to 128     all           128 x 64      8       3  178 registers on sm_90; with 4 warps 255 and spills
    16 bits   256        all            64 x 32      8       3  128 x 64 spills; 64 keys need 160 KB of shared memory
    8 bits    to 128     sm_90 up      128 x 64      8       3  246 registers on sm_90
    8 bits    to 128     others         64 x 32      8       3  128 x 64 spills on sm_80, 64 x 64 on gfx942
    8 bits    256        all            64 x 16      8       3  32 keys spill on sm_80 and gfx942
    32 bits   to 128     all            16 x 32      8       2  no tensor cores, so a thread holds more; 32 rows spill
    32 bits   256        all            16 x 16      8       2  32 keys need more than the 64 KB of LDS that AMD has

A query of 32 bits over a cache of 8 takes the last row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from course_kernels.triton.fp8 import capability, readable
from course_kernels.triton.paged_kv import LOG2_E, attend, check_paged, empty_state


# Block tables grow and batches change while an engine runs: not a reason to compile anew.
@triton.jit(
    do_not_specialize=["sequences", "table_stride"],
    do_not_specialize_on_alignment=["block_tables_ptr", "cu_seqlens_ptr", "context_lens_ptr"],
)
def _prefill_attention(
    query_ptr, keys_ptr, values_ptr, key_scales_ptr, value_scales_ptr, block_tables_ptr, cu_seqlens_ptr,
    context_lens_ptr, out_ptr, sequences, query_stride, block_stride, table_stride, scale,
    WINDOW: tl.constexpr, SEQUENCES: tl.constexpr, GROUP: tl.constexpr, P: tl.constexpr, K: tl.constexpr,
    D: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    # Backwards: a sequence's last tile has the most keys, and the longest program should not be the last to start.
    program, kv_head = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1)
    # Sequence i owns the programs from cu_seqlens[i] * GROUP // ROWS + i on: enough for its last, partly filled tile
    # too, and found without a length on the host.
    i = tl.arange(0, SEQUENCES)
    owner = tl.load(cu_seqlens_ptr + i, mask=i < sequences, other=0) * GROUP // ROWS + i
    sequence = tl.sum(((owner <= program) & (i < sequences)).to(tl.int32), 0) - 1
    begin = tl.load(cu_seqlens_ptr + sequence)
    new = tl.load(cu_seqlens_ptr + sequence + 1) - begin
    first_row = (program - begin * GROUP // ROWS - sequence) * ROWS
    if first_row >= new * GROUP:
        return

    row = first_row + tl.arange(0, ROWS)
    stored = row < new * GROUP
    row = tl.minimum(row, new * GROUP - 1)
    token = (begin + row // GROUP).to(tl.int64)  # * stride can pass 2^31
    head = kv_head * GROUP + row % GROUP
    element = tl.arange(0, D)
    q = tl.load(query_ptr + (token * query_stride + head * D)[:, None] + element[None, :])

    cached = tl.load(context_lens_ptr + sequence) - new
    earliest = cached + first_row // GROUP  # positions of the first and the last row
    latest = cached + tl.minimum(first_row + ROWS - 1, new * GROUP - 1) // GROUP
    diagonal = (earliest + 1) // TILE * TILE
    cache = (keys_ptr, values_ptr, key_scales_ptr, value_scales_ptr, block_tables_ptr + sequence * table_stride)
    state = empty_state(ROWS, D)
    first, whole = 0, 0
    if WINDOW:
        first = tl.maximum(earliest - WINDOW + 1, 0)
        whole = tl.minimum(tl.cdiv(tl.maximum(latest - WINDOW + 1, 0), TILE) * TILE, diagonal)
        state = attend(
            state, q, cached + row // GROUP, cache, kv_head, first // TILE * TILE, whole, first, latest + 1,
            block_stride, scale, True, WINDOW, P, K, D, TILE,
        )  # fmt: skip
    state = attend(
        state, q, cached + row // GROUP, cache, kv_head, whole, diagonal, first, latest + 1,
        block_stride, scale, False, WINDOW, P, K, D, TILE,
    )  # fmt: skip
    _, total, out = attend(
        state, q, cached + row // GROUP, cache, kv_head, diagonal, latest + 1, first, latest + 1,
        block_stride, scale, True, WINDOW, P, K, D, TILE,
    )  # fmt: skip
    offset = (token * (K * GROUP * D) + head * D)[:, None] + element[None, :]
    tl.store(out_ptr + offset, (out / total[:, None]).to(out_ptr.dtype.element_ty), mask=stored[:, None])


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

    query [T, H, d]: float32, float16 or bfloat16. keys, values [blocks, P, K, d]: one layer of the cache, in query's
    dtype, or int8 or float8_e4m3fn with key_scales and value_scales, float32 [blocks, K, P]. block_tables int32 [S, N]:
    a sequence's blocks in order; entries past its length are not read. cu_seqlens int32 [S + 1], from 0: sequence s has
    the rows cu_seqlens[s] .. cu_seqlens[s + 1] - 1, perhaps none. context_lens int32 [S]: keys of each sequence, at
    least as many as it has rows. window: a query at position p sees the keys p - window + 1 .. p.
    Returns [T, H, d]; rows from cu_seqlens[S] on are undefined. Raises KernelError for other input.
    """
    bounds = (cu_seqlens, str(len(context_lens) + 1), torch.int32)
    size = check_paged(
        "prefill_attention", "T", query, keys, values, block_tables, context_lens, window, key_scales, value_scales,
        cu_seqlens=bounds,
    )  # fmt: skip
    tokens, sequences, heads, d, block_size, kv_heads = (size[name] for name in "TSHdPK")
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    if not tokens or not sequences:
        return out
    tile = _tile(query.dtype, keys.dtype, d)
    group = heads // kv_heads
    _prefill_attention[(tokens * group // tile["ROWS"] + sequences, kv_heads)](
        query, readable(keys), readable(values), key_scales, value_scales, block_tables, cu_seqlens, context_lens, out,
        sequences, query.stride(0), keys.stride(0), block_tables.stride(0), LOG2_E * d**-0.5,
        WINDOW=window or 0, SEQUENCES=triton.next_power_of_2(sequences), GROUP=group, P=block_size, K=kv_heads, D=d,
        **tile,
    )  # fmt: skip
    return out


def _tile(query: torch.dtype, cache: torch.dtype, d: int) -> dict[str, int]:
    """The table above. AMD's LDS of 64 KB holds two stages."""
    if query == torch.float32:
        rows, keys, stages = 16, 32 if d < 256 and cache == query else 16, 2
    else:
        roomy = cache.itemsize == 2 or capability() >= 90
        rows, keys = (128, 64) if roomy and d < 256 else (64, 32)
        if cache.itemsize == 1 and d == 256:
            keys = 16
        stages = 3 if capability() else 2
    return {"ROWS": rows, "TILE": keys, "num_warps": 8, "num_stages": stages}
