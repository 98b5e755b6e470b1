"""Numbers in 8 bits with a scale for each row."""

from __future__ import annotations

import torch
from torch import Tensor

from course_kernels.reference import widen

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
SMALLEST_SCALE = 2.0**-126


def quantize_per_token(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """round(x / scale) and scale = max |x| / largest over the last axis, where `largest` is the dtype's: 127 or 448.

    x [..., K]; dtype int8 or float8_e4m3fn; rounded to nearest, ties to even. A scale is at least 2^-126, so a row of
    zeros has one too. Returns [..., K] in dtype and the scales [...], in float32, or float64 where x is.
    """
    wide = widen(x)
    scales = (wide.abs().amax(-1) / LARGEST[dtype]).clamp(min=SMALLEST_SCALE)
    scaled = wide / scales[..., None]
    return (scaled.round() if dtype == torch.int8 else scaled.float()).to(dtype), scales
