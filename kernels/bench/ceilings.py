"""The two rates that bound every kernel: of copying memory, and of multiplying bfloat16 matrices."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from course_kernels.bench.clock import time_calls
from course_kernels.bench.sizes import Sizes


def copy(s: Sizes, device: str) -> dict:
    """A copy from device memory to device memory. work: bytes, those read and those written."""
    source = torch.randn(s.copy_bytes // 4, device=device)
    target = torch.empty_like(source)
    timed = time_calls([lambda: target.copy_(source)], device)
    return {"work": 2 * s.copy_bytes, **vars(timed)}


def matmul(s: Sizes, device: str) -> dict:
    """A product of two square matrices, as a linear layer computes it. work: FLOPs, two for each multiplication."""
    x, weight = (torch.randn(s.matmul_side, s.matmul_side, device=device).bfloat16() for _ in range(2))
    timed = time_calls([lambda: F.linear(x, weight)], device)
    return {"work": 2 * s.matmul_side**3, **vars(timed)}
