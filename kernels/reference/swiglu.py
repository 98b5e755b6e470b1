"""SwiGLU (arXiv 2002.05202, equation 6), without the matrices around it."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from course_kernels.reference import widen


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, silu(x) = x / (1 + e^-x). gate_up [T, 2f]: gate, then up, as a fused projection leaves them;
    returns [T, f]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return (F.silu(widen(gate)) * widen(up)).type_as(gate_up)
