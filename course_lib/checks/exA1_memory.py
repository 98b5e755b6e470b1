"""What the three problems of exercise A1 share: random inputs, and memory as a wrong kernel sees it."""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor


class KernelError(Exception):
    """Stands for the error of `course_kernels.memcheck`, whose module needs Triton: errors are compared by name."""


def normal(rng: Random, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal values."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(rng.getrandbits(62))).to(dtype)


def with_gaps(x: Tensor, width: int) -> Tensor:
    """The rows of x [T, h] in a buffer [T, width]; what lies behind each row is NaN."""
    buffer = torch.full((len(x), width), torch.nan, dtype=x.dtype)
    buffer[:, : x.shape[1]] = x
    return buffer


def span(memory: Tensor, start: int, count: int) -> Tensor:
    """A view of `count` elements from `start` on, across the ends of rows. Raises KernelError past the tensor's end."""
    if start + count > memory.numel():
        raise KernelError
    return memory.view(-1)[start : start + count]


def power_of_two(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << (n - 1).bit_length()
