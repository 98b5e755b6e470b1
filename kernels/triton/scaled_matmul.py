"""8-bit activations times 8-bit weights (w8a8): y[t, n] = x_scales[t] * weight_scales[n] * sum_k x[t, k] weight[n, k].

Sources: int8 with a scale per token and per output channel, Dettmers et al., LLM.int8(), arXiv 2208.07339, section 3.1;
e4m3, Micikevicius et al., FP8 formats for deep learning, arXiv 2209.05433. A scale that differed along K could not be
taken out of the sum; with one per row and column it is applied once, to the finished sum.

    bytes  K N + T K + 2 T N    half of a 16-bit product's
    FLOPs  2 T K N              on tensor cores, which do twice as many per second in 8 bits as in 16

int8 products are added in int32 and so are exact. Products of e4m3 numbers are added in float32; but Hopper's fp8
tensor cores keep about 14 bits of a running sum, so there every DEPTH products are added to a float32 sum outside them
(DeepSeek-V3, arXiv 2412.19437, section 3.3.2). A GPU without this fp8 (A100, MI300) unpacks it to float16, exactly, and
saves the bytes only.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from course_kernels.launch import EIGHT_BIT, FLOATS, KernelError, check
from course_kernels.triton import split_k
from course_kernels.triton.fp8 import convert, readable

DEEPEST = 2**17 - 1  # (-128)^2 = 2^14 added 2^17 times is 2^31, the first number that int32 does not have


@triton.jit
def _scaled_matmul(
    x_ptr, weight_ptr, x_scales_ptr, weight_scales_ptr, y_ptr, T, K, N, x_stride, weight_stride,
    ROWS: tl.constexpr, DEPTH: tl.constexpr, COLUMNS: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """An output tile of ROWS x COLUMNS. Programs that follow one another read the same weights, from the L2 cache."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row_mask, mask = row < T, column < N
    steps = tl.cdiv(tl.cdiv(K, DEPTH), SPLITS)
    first = tl.program_id(2) * steps * DEPTH
    last = tl.minimum(first + steps * DEPTH, K)
    x_rows = x_ptr + row[:, None] * x_stride
    weight_rows = weight_ptr + column[None, :].to(tl.int64) * weight_stride
    EXACT: tl.constexpr = x_ptr.dtype.element_ty == tl.int8
    total = tl.zeros([ROWS, COLUMNS], tl.int32 if EXACT else tl.float32)
    for start in range(first, last, DEPTH):
        depth = start + tl.arange(0, DEPTH)
        x = tl.load(x_rows + depth[None, :], mask=row_mask[:, None] & (depth < last)[None, :], other=0.0)
        weight = tl.load(weight_rows + depth[:, None], mask=(depth < last)[:, None] & mask[None, :], other=0.0)
        if EXACT:
            total = tl.dot(x, weight, total, out_dtype=tl.int32)
        elif x.dtype == tl.uint8:  # the bits of float8_e4m3fn
            total = tl.dot(convert(x, tl.float16), convert(weight, tl.float16), total)
        else:
            total = tl.dot(x, weight, total, max_num_imprecise_acc=DEPTH)
    x_scale = tl.load(x_scales_ptr + row, mask=row_mask, other=0.0)
    weight_scale = tl.load(weight_scales_ptr + column, mask=mask, other=0.0)
    y = total.to(tl.float32) * x_scale[:, None] * weight_scale[None, :]
    share = tl.program_id(2).to(tl.int64) * T
    y_tile = y_ptr + (share + row)[:, None] * N + column[None, :]
    tl.store(y_tile, y.to(y_ptr.dtype.element_ty), mask=row_mask[:, None] & mask[None, :])


def scaled_matmul(x: Tensor, weight: Tensor, x_scales: Tensor, weight_scales: Tensor, dtype: torch.dtype) -> Tensor:
    """(x weight^T) * x_scales[:, None] * weight_scales[None, :].

    x [T, K] and weight [N, K], both int8 or both float8_e4m3fn, K a multiple of 16 and less than 2^17; x_scales [T] and
    weight_scales [N] float32. Returns [T, N] in dtype: float32, float16 or bfloat16. Raises KernelError for other
    input.
    """
    # fmt: off
    size = check("scaled_matmul", x=(x, "T K", EIGHT_BIT), weight=(weight, "N K", x.dtype),
                 x_scales=(x_scales, "T", torch.float32), weight_scales=(weight_scales, "N", torch.float32))
    # fmt: on
    tokens, depth, columns = size["T"], size["K"], size["N"]
    if depth % 16 or depth > DEEPEST:
        raise KernelError(
            f"scaled_matmul: K is {depth} and must be a multiple of 16 below {DEEPEST + 1}; pad with zeros"
        )
    if dtype not in FLOATS:
        raise KernelError(f"scaled_matmul: dtype is {dtype} and must be float32, float16 or bfloat16")
    if tokens == 0:
        return torch.empty(0, columns, dtype=dtype, device=x.device)
    rows = min(128, max(16, triton.next_power_of_2(tokens)))
    tile = {"ROWS": rows, "DEPTH": 128, "COLUMNS": 128, "num_warps": 8 if rows == 128 else 4}
    grid = (triton.cdiv(tokens, rows), triton.cdiv(columns, 128))
    splits = split_k.splits(tokens, grid[0] * grid[1], triton.cdiv(depth, 128))
    y = split_k.output(splits, tokens, columns, dtype, x.device)
    _scaled_matmul[*grid, splits](
        readable(x), readable(weight), x_scales, weight_scales, y, tokens, depth, columns, x.stride(0),
        weight.stride(0), SPLITS=splits, **tile,
    )  # fmt: skip
    return y[0] if splits == 1 else split_k.sum_splits(y, dtype)
