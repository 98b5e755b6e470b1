"""One kernel against its reference in float64, on the device, from the very inputs that the kernel had."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from course_kernels.bench.cases import Case, form
from course_kernels.bench.inputs import Draw

FLOAT32_UNITS = 32  # sums of hundreds of terms, in whatever order a kernel adds them
EIGHT_BIT_STEPS = 1  # a number that lies between two of the 8-bit type's may go to either


def check(case: Case, draw: Draw) -> dict:
    """Run the case once. Returns `error` and `allowed`, both in units, of the output that comes closest to its bound or
    passes it furthest, the largest `relative` error |got - want| / |want| of an output, and whether all `passed`."""
    arguments = case.arguments(draw)
    wide = {name: widen(value) for name, value in arguments.items()}
    kernel, reference = form(case.form, case.operation), form("reference", case.operation)
    with poisoned():
        got = kernel(**arguments)
    want = reference(**wide)
    if isinstance(got, Tensor):
        got, want = (got,), (want,)
    pairs = [*zip(got, want, strict=True), *((arguments[name], wide[name]) for name in case.writes)]
    found = [errors(*pair) for pair in pairs]
    bounds = [allowed(output.dtype, case.units) for output, _ in pairs]
    worst = max(range(len(pairs)), key=lambda i: found[i][0] - bounds[i])
    return {
        "error": found[worst][0],
        "allowed": bounds[worst],
        "relative": max(relative for _, relative in found),
        "passed": all(error <= bound for (error, _), bound in zip(found, bounds, strict=True)),
    }


def widen(value: Any) -> Any:
    """Floating-point numbers of 16 and 32 bits, and such a dtype, in float64; a copy of any other tensor."""
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point and value.itemsize > 1 else value
    if not isinstance(value, Tensor):
        return value
    return value.double() if value.is_floating_point() and value.itemsize > 1 else value.clone()


@contextmanager
def poisoned() -> Iterator[None]:
    """Within it, PyTorch fills new memory with NaN or the largest integer: an output that is not written shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def allowed(dtype: torch.dtype, units: float) -> float:
    """The bound for an output of this dtype where 16-bit ones have `units`."""
    if dtype == torch.int64:
        return 0
    if dtype.itemsize == 1:
        return EIGHT_BIT_STEPS
    return FLOAT32_UNITS if dtype == torch.float32 else units


def errors(got: Tensor, want: Tensor) -> tuple[float, float]:
    """(the largest error of an element in units, |got - want| / |want| over all of them in the Euclidean norm).

    A unit is eps of got's dtype, twice the error of one rounding, times the number wanted, or the root mean square of
    its row (the last axis) where that is larger: a sum of large terms may be small. Of int8 it is one step, of int64,
    tokens, the share of wrong ones. NaN must be where NaN is wanted, and nowhere else; otherwise both are infinite.
    """
    if got.shape != want.shape:
        raise ValueError(f"the kernel returns shape {list(got.shape)} and the reference {list(want.shape)}")
    if got.dtype == torch.int64:
        share = (got != want).double().mean().item()
        return share, share
    got, want, dtype = got.double(), want.double(), got.dtype
    if not torch.equal(got.isnan(), want.isnan()):
        return float("inf"), float("inf")
    got, want = got.nan_to_num(), want.nan_to_num()
    difference = (got - want).abs()
    if dtype == torch.int8:
        unit = torch.ones_like(want)
    else:
        size = want.square().mean(-1, keepdim=True).sqrt().maximum(want.abs())
        unit = torch.finfo(dtype).eps * size.clamp(min=torch.finfo(dtype).tiny)
    largest = (difference / unit).max().item()
    norm = want.norm().item()
    return largest, difference.norm().item() / norm if norm else largest
