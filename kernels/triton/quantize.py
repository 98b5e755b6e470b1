"""Numbers in 8 bits with a scale for each row: q = round(x / s), s = max |x| / L, where L is 127 (int8) or 448 (e4m3).

Sources: int8 with a scale per token, Dettmers et al., LLM.int8(), arXiv 2208.07339, section 3.1; e4m3, Micikevicius et
al., FP8 formats for deep learning, arXiv 2209.05433, section 3. Rounding is to nearest, ties to even. So x differs from
q s by at most s / 2 in int8, and in e4m3 by |x| / 16, or s / 1024 where q is subnormal. -128 is not used: the range is
symmetric. A scale is at least 2^-126, float32's smallest normal number: a row of zeros needs no case of its own.

A program takes whole rows, as in norm.py: the maximum needs the row, and its numbers are still in registers when it is
known. With T rows of K elements of b bytes: T K (b + 1) + 4 T bytes and 3 T K FLOPs, a comparison counted as one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from course_kernels.launch import EIGHT_BIT, FLOATS, KernelError, check
from course_kernels.triton.fp8 import to_bits, writable
from course_kernels.triton.norm import row_tile


@triton.jit
def scale_for(peak, dtype: tl.constexpr):
    """The scale of rows whose largest absolute value is peak. dtype: of the store, uint8 for the bits of e4m3."""
    return tl.maximum(peak / (127.0 if dtype == tl.int8 else 448.0), 2.0**-126)


@triton.jit
def in_8_bits(x, dtype: tl.constexpr):
    """x (float32, already divided by its scale) rounded to the dtype of the store, uint8 for the bits of e4m3.

    To 1.5 * 2^23 float32 adds only whole numbers, rounding to nearest even; the sum's last 8 bits are those of int8.
    """
    if dtype == tl.int8:
        return (x + 12582912.0).to(tl.int32, bitcast=True).to(tl.int8)
    elif dtype == tl.uint8:
        return to_bits(x)
    else:
        return x.to(dtype)


@triton.jit(do_not_specialize=["rows"])  # a batch of another size is no reason to compile anew
def _quantize(x_ptr, q_ptr, scales_ptr, rows, width, x_stride, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # int64: row * stride can pass 2^31
    column = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (column < width)
    x = tl.load(x_ptr + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    dtype: tl.constexpr = q_ptr.dtype.element_ty
    scale = scale_for(tl.max(tl.abs(x), axis=1, keep_dims=True), dtype)
    tl.store(q_ptr + row * width + column, in_8_bits(x * (1.0 / scale), dtype), mask=mask)
    tl.store(scales_ptr + row, scale, mask=row < rows)


def quantize_per_token(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The rows in 8 bits and their scales, as `scaled_matmul` takes them: x is q * scales[:, None], nearly.

    x [T, K] float32, float16 or bfloat16, finite; dtype int8 or float8_e4m3fn. Returns q [T, K] in dtype and the scales
    [T], float32. Raises KernelError for other input, and for rows of more than 32,768 elements.
    """
    size = check("quantize_per_token", x=(x, "T K", FLOATS))
    rows, width = size["T"], size["K"]
    if dtype not in EIGHT_BIT:
        raise KernelError(f"quantize_per_token: dtype is {dtype} and must be int8 or float8_e4m3fn")
    tile = row_tile("quantize_per_token", width)
    q = torch.empty(rows, width, dtype=dtype, device=x.device)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    if rows == 0:
        return q, scales
    _quantize[(triton.cdiv(rows, tile["ROWS"]),)](x, writable(q), scales, rows, width, x.stride(0), **tile)
    return q, scales
