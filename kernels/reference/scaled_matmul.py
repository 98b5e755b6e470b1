"""The product of 8-bit activations and 8-bit weights, one scale per token and one per output channel."""

from __future__ import annotations

import torch
from torch import Tensor

from course_kernels.reference import widen


def scaled_matmul(x: Tensor, weight: Tensor, x_scales: Tensor, weight_scales: Tensor, dtype: torch.dtype) -> Tensor:
    """(x weight^T) * x_scales[:, None] * weight_scales[None, :].

    x [T, K] and weight [N, K], both int8 or both float8_e4m3fn; x_scales [T] and weight_scales [N], whose dtype, but at
    least float32, is that of the arithmetic. Returns [T, N] in dtype.
    """
    rows, columns = widen(x_scales), widen(weight_scales)
    return (x.to(rows.dtype) @ weight.to(rows.dtype).T * rows[:, None] * columns).to(dtype)
