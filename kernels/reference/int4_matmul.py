"""Weight-only int4: packing, dequantisation and the product (GPTQ's checkpoint layout, arXiv 2210.17323)."""

from __future__ import annotations

import torch
from torch import Tensor

from course_kernels.reference import widen

NIBBLES = 8  # of 4 bits in a word of 32


def pack(values: Tensor, dim: int) -> Tensor:
    """Eight neighbours along `dim` in one int32, the first in the lowest four bits.

    values: integers 0 to 15, with a multiple of 8 along dim. Returns int32, an eighth as long along dim.
    """
    nibbles = values.to(torch.int64).unflatten(dim, (-1, NIBBLES)).movedim(dim + 1, -1)
    return (nibbles << 4 * torch.arange(NIBBLES)).sum(-1).to(torch.int32)  # wraps: the last nibble reaches the sign


def unpack(words: Tensor, dim: int) -> Tensor:
    """The inverse of `pack`: int32 values 0 to 15, eight times as long along `dim`."""
    nibbles = words.unsqueeze(-1) >> 4 * torch.arange(NIBBLES, device=words.device) & 15
    return nibbles.movedim(-1, dim + 1).flatten(dim, dim + 1)


def dequantize(qweight: Tensor, scales: Tensor, qzeros: Tensor) -> Tensor:
    """(q - zero) * scale, [K, N], in the scales' dtype but at least float32. Shapes: see `int4_matmul`."""
    group = qweight.shape[0] * NIBBLES // scales.shape[0]
    zeros = unpack(qzeros, 1).repeat_interleave(group, 0)
    return (unpack(qweight, 0) - zeros) * widen(scales).repeat_interleave(group, 0)


def int4_matmul(x: Tensor, qweight: Tensor, scales: Tensor, qzeros: Tensor) -> Tensor:
    """x times the dequantised weight.

    x [T, K]; qweight int32 [K/8, N], packed along K; scales [K/g, N] in x's dtype; qzeros int32 [K/g, N/8], packed
    along N. A group is g consecutive rows of K. Returns [T, N] in x's dtype.
    """
    return (widen(x) @ dequantize(qweight, scales, qzeros)).type_as(x)
