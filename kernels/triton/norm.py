"""RMSNorm, alone and with the residual addition before it: y = x / sqrt(mean(x^2) + eps) * weight.

Source: Zhang and Sennrich, Root Mean Square Layer Normalization, arXiv 1910.07467, equation 4.

A program takes whole rows, so that the mean needs no other program: it loads a row into registers once, reduces it and
writes it, and no byte is read twice. Short rows are taken several at a time. Arithmetic is float32.

With T rows of h elements of b bytes (the weight, h * b, is read once and then comes from the L2 cache):

    rms_norm       bytes 2 T h b    read x, write y                                 FLOPs 4 T h
    add_rms_norm   bytes 4 T h b    read x and residual, write residual and y       FLOPs 5 T h

In two kernels the addition would move 3 T h b and the norm 2 T h b; the fusion saves the fifth. At one or two FLOPs per
byte both wait for memory on every GPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from course_kernels.launch import FLOATS, KernelError, check

LONGEST_ROW = 32768  # elements; a longer row does not fit in the registers of one program
TILE = 2048  # elements of a program whose rows are short
THREAD = 32  # elements of a thread: in float16 four loads of 128 bits, all on their way at once


@triton.jit(do_not_specialize=["rows"])  # a batch of another size is no reason to compile anew
def _rms_norm(
    x_ptr, residual_ptr, weight_ptr, y_ptr, rows, h, x_stride, residual_stride, eps,
    ADD: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # int64: row * stride can pass 2^31
    column = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (column < h)
    x = tl.load(x_ptr + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        residual = residual_ptr + row * residual_stride + column
        rounded = (x + tl.load(residual, mask=mask, other=0.0).to(tl.float32)).to(residual_ptr.dtype.element_ty)
        tl.store(residual, rounded, mask=mask)
        x = rounded.to(tl.float32)  # the norm sees what the next layer will read
    scale = tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / h + eps)
    weight = tl.load(weight_ptr + column, mask=column < h, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * h + column, (x * scale * weight).to(y_ptr.dtype.element_ty), mask=mask)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis. x [T, h], weight [h]; returns [T, h].

    float32, float16 or bfloat16. Raises KernelError for other input, and for rows of more than 32,768 elements.
    """
    return _launch("rms_norm", x, None, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual += x in place, then rms_norm(residual). x and residual [T, h], weight [h]; returns [T, h].

    The norm sees the sum as it is stored, rounded to the dtype. Dtypes and errors: as `rms_norm`.
    """
    return _launch("add_rms_norm", x, residual, weight, eps)


def _launch(operation: str, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    tensors = {"x": (x, "T h", FLOATS), "weight": (weight, "h", x.dtype)}
    if residual is not None:
        tensors["residual"] = (residual, "T h", x.dtype)
    size = check(operation, **tensors)
    rows, h = size["T"], size["h"]
    tile = row_tile(operation, h)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if rows == 0:
        return y
    other = x if residual is None else residual
    _rms_norm[(triton.cdiv(rows, tile["ROWS"]),)](
        x, other, weight, y, rows, h, x.stride(0), other.stride(0), eps,
        ADD=residual is not None, **tile,
    )  # fmt: skip
    return y


def row_tile(operation: str, width: int) -> dict[str, int]:
    """ROWS, BLOCK and num_warps of a program that holds whole rows of `width` elements. Raises KernelError."""
    if width > LONGEST_ROW:
        raise KernelError(
            f"{operation}: rows have {width} elements and at most {LONGEST_ROW} fit; use the torch backend"
        )
    block = triton.next_power_of_2(width)
    rows = max(1, TILE // block)
    return {"ROWS": rows, "BLOCK": block, "num_warps": min(16, rows * block // (32 * THREAD))}
