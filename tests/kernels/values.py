"""Inputs and comparisons that the interpreter tests share."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float16)


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Standard normal values; one seed and shape always gives the same."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(got: Tensor, want: Tensor, units: float = 1.0) -> None:
    """Each element differs by at most `units` of rounding: eps of got's dtype, times max(1, |want|).

    want: float64, computed from the very inputs that the kernel had. One unit is twice the error of one rounding.
    """
    eps = torch.finfo(got.dtype).eps
    bound = units * eps * want.abs().clamp(min=1)
    error = (got.double() - want).abs()
    worst = (error / (eps * want.abs().clamp(min=1))).nan_to_num(nan=torch.inf).max().item() if got.numel() else 0.0
    assert got.shape == want.shape, (got.shape, want.shape)
    assert bool((error <= bound).all()), f"off by {worst:.2f} units, {units} allowed"


def far_apart(x: Tensor) -> Tensor:
    """x's rows laid 2^30 elements apart, so that an int32 offset wraps at row 2 (mistake 14).

    It takes address space, and memory only for what is touched; in float16 2 GiB per row.
    """
    gap = 2**30
    try:
        base = torch.empty(gap * (len(x) - 1) + x[0].numel(), dtype=x.dtype)
    except RuntimeError:
        pytest.skip(f"this machine gives no {2 * len(x)} GiB of address space for the test of 64-bit offsets")
    return base.as_strided(x.shape, (gap, *x.stride()[1:])).copy_(x)
