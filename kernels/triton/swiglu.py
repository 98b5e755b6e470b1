"""SwiGLU between its two projections: y = silu(gate) * up, with silu(x) = x / (1 + e^-x).

Source: Shazeer, GLU Variants Improve Transformer, arXiv 2002.05202, equation 6.

Element by element: a program takes BLOCK neighbouring elements of one row. Arithmetic is float32, since e^-x leaves
float16 below x = -11.

With T rows of f elements of b bytes: 3 T f b bytes (read gate and up, write y) and 5 T f FLOPs, an exponential counted
as one. In two kernels, silu and then the product, it would be 5 T f b.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from course_kernels.launch import FLOATS, KernelError, check

BLOCK = 1024  # elements of a program; with 2 warps 16 per thread: in float16 two loads of 128 bits from each half


@triton.jit
def _swiglu(gate_up_ptr, y_ptr, f, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)  # row * stride can pass 2^31
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < f
    gate = tl.load(gate_up_ptr + row * stride + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * stride + f + column, mask=mask, other=0.0).to(tl.float32)
    y = gate * tl.sigmoid(gate) * up
    tl.store(y_ptr + row * f + column, y.to(y_ptr.dtype.element_ty), mask=mask)


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up. gate_up [T, 2f]: gate, then up, as a fused projection leaves them; returns [T, f].

    float32, float16 or bfloat16. Raises KernelError for other input.
    """
    size = check("swiglu", gate_up=(gate_up, "T 2f", FLOATS))
    rows, width = size["T"], size["2f"]
    if width % 2:
        raise KernelError(f"swiglu: gate_up has rows of {width} elements and must have gate and up of one length")
    f = width // 2
    y = gate_up.new_empty(rows, f)
    if rows and f:
        _swiglu[(rows, triton.cdiv(f, BLOCK))](gate_up, y, f, gate_up.stride(0), BLOCK=BLOCK, num_warps=2)
    return y
