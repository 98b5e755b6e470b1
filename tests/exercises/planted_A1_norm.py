"""Wrong solutions of exercise A1: the residual addition and RMSNorm."""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl

from course_kernels.memcheck import memcheck
from tests.exercises.planting import planted


@memcheck
@triton.jit
def _kernel(
    x_ptr, residual_ptr, weight_ptr, y_ptr, h, x_stride, residual_stride, eps, BLOCK: tl.constexpr, WRONG: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    if WRONG == "row 0":
        row = row * 0
    column = tl.arange(0, BLOCK)
    inside = column < h
    everywhere = column >= 0
    x_at = row * (h if WRONG == "stride h" else residual_stride if WRONG == "stride of residual" else x_stride) + column
    residual_at = row * (
        h if WRONG == "stride h" else x_stride if WRONG == "stride of x" else residual_stride
    ) + column  # fmt: skip

    x = tl.load(x_ptr + x_at, mask=everywhere if WRONG in ("x not masked", "no mask") else inside, other=0.0)
    residual = tl.load(
        residual_ptr + residual_at,
        mask=everywhere if WRONG in ("residual not masked", "no mask") else inside,
        other=0.0,
    )
    total = x.to(tl.float32) + residual.to(tl.float32)
    stored = total.to(residual_ptr.dtype.element_ty)
    total = total if WRONG == "not rounded" else stored.to(tl.float32)
    if WRONG == "norm of x":
        total = x.to(tl.float32)

    if WRONG == "squares in 16 bits":
        mean = tl.sum(stored * stored, axis=0).to(tl.float32) / h
    elif WRONG == "total in 16 bits":
        mean = tl.sum((total * total).to(residual_ptr.dtype.element_ty), axis=0).to(tl.float32) / h
    elif WRONG == "sum":
        mean = tl.sum(total * total, axis=0)
    elif WRONG == "mean over tile":
        mean = tl.sum(total * total, axis=0) / BLOCK
    elif WRONG == "layer norm":
        total = tl.where(inside, total - tl.sum(total, axis=0) / h, 0.0)
        mean = tl.sum(total * total, axis=0) / h
    else:
        mean = tl.sum(total * total, axis=0) / h
    if WRONG == "eps outside":
        scale = 1 / (tl.sqrt(mean) + eps)
    elif WRONG == "no eps":
        scale = tl.rsqrt(mean)
    elif WRONG == "no root":
        scale = 1 / (mean + eps)
    else:
        scale = tl.rsqrt(mean + eps)

    weight = tl.load(weight_ptr + column, mask=everywhere if WRONG == "weight not masked" else inside, other=0.0)
    weight = weight.to(tl.float32)
    y = total * scale if WRONG == "no weight" else total * scale * weight
    if WRONG != "residual not stored":
        tl.store(
            residual_ptr + residual_at,
            y if WRONG == "norm stored" else stored,
            mask=everywhere if WRONG in ("residual's store not masked", "no mask") else inside,
        )
    y_at = row * (x_stride if WRONG == "stride of x for y" else h) + column
    tl.store(y_ptr + y_at, y, mask=everywhere if WRONG in ("y not masked", "no mask") else inside)


def launch(x, residual, weight, eps, wrong=""):
    """The launcher of the exercise."""
    T, h = len(x), len(weight)
    y = torch.full((T, h), torch.nan, dtype=x.dtype)
    _kernel[(T,)](
        x, residual, weight, y, h, x.stride(0), residual.stride(0), eps, BLOCK=triton.next_power_of_2(h), WRONG=wrong
    )
    return y


for _hint, _wrongs in {
    "load-not-masked": ("x not masked", "residual not masked"),
    "residual-store-not-masked": ("residual's store not masked",),
    "past-the-end": ("y not masked", "weight not masked", "no mask"),
    "stride-is-h": ("stride h",),
    "one-stride-for-both": ("stride of x",),
    "residuals-stride-for-x": ("stride of residual",),
    "stride-of-x-for-y": ("stride of x for y",),
    "first-row-only": ("row 0",),
    "norm-of-x": ("norm of x",),
    "residual-not-stored": ("residual not stored",),
    "norm-stored": ("norm stored",),
    "sum-not-rounded": ("not rounded",),
    "eps-outside-the-root": ("eps outside",),
    "eps-left-out": ("no eps",),
    "root-left-out": ("no root",),
    "sum-for-mean": ("sum",),
    "mean-over-the-tile": ("mean over tile",),
    "layer-norm": ("layer norm",),
    "weight-left-out": ("no weight",),
    "sum-in-16-bits": ("squares in 16 bits", "total in 16 bits"),
}.items():
    for _wrong in _wrongs:
        planted("add_rms_norm", _hint)(partial(launch, wrong=_wrong))
