"""e4m3 numbers on GPUs with and without instructions for them.

Source: Micikevicius et al., FP8 formats for deep learning, arXiv 2209.05433: 4 bits of exponent with bias 7, 3 bits of
mantissa, no infinities, largest number 448.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from course_kernels.launch import INTERPRETED


@triton.jit
def convert(x, dtype: tl.constexpr):
    """x in another dtype, exactly. uint8 stands for the bits of float8_e4m3fn, see `readable`.

    Where float16 has its exponent and mantissa, those bits mean 2^-8 times as much (the biases are 7 and 15), subnormal
    numbers included. The sign comes with the sign extension, which also sets bit 14; the mask clears it.
    """
    if x.dtype == tl.uint8:
        bits = (x.to(tl.int8, bitcast=True).to(tl.int16) << 7) & -0x4001
        return (bits.to(tl.float16, bitcast=True) * 256.0).to(dtype)
    else:
        return x.to(dtype)


@triton.jit
def to_bits(x):
    """The bits, as uint8, of the e4m3 number that is nearest to x (float32, |x| up to 448), of two the even one.

    2^-120 times x has in float32 the exponent field that x has in e4m3 (the biases are 127 and 7), subnormal numbers
    included, and the mantissas begin with the same three bits. So 20 bits are rounded off; a carry is right as it is.
    A subnormal product is itself rounded, by at most 2^-21 of the distance of two e4m3 numbers.
    """
    bits = (x * 2.0**-120).to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    rounded = (magnitude + 0x7FFFF + (magnitude >> 20 & 1)) >> 20
    return (rounded | (bits >> 24 & 0x80)).to(tl.uint8)


def readable(store: Tensor) -> Tensor:
    """The store as the kernels read it: float8_e4m3fn as bytes where the GPU cannot convert it."""
    return store.view(torch.uint8) if store.dtype == torch.float8_e4m3fn and not has_fp8() else store


def writable(store: Tensor) -> Tensor:
    """The store as the kernels write it: float8_e4m3fn as bytes where the conversion to it is `to_bits`.

    The interpreter is one of these places: its own conversion does not round to nearest.
    """
    return store.view(torch.uint8) if store.dtype == torch.float8_e4m3fn and (INTERPRETED or not has_fp8()) else store


def has_fp8() -> bool:
    """True for NVIDIA GPUs from compute capability 8.9 on, and in the interpreter. CDNA 3's fp8 has other biases."""
    return INTERPRETED or capability() >= 89


def capability() -> int:
    """Compute capability of the current NVIDIA GPU, 90 for 9.0; 0 for any other GPU, and in the interpreter."""
    if INTERPRETED:
        return 0
    target = triton.runtime.driver.active.get_current_target()
    return target.arch if target.backend == "cuda" else 0
