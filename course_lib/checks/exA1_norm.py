"""Exercise A1, first part: the residual addition and the RMSNorm behind it, in one kernel.

Letters: T rows, h elements of a row. Rows lie in buffers that may be wider; the tile is the power of two from h on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from course_kernels.reference import norm as reference
from course_lib.checks.core import Case, Mistake, Outcome, Problem
from course_lib.checks.exA1_memory import normal, power_of_two, span, with_gaps

HALF = torch.float16
Norm = Callable[[Tensor, Tensor, Tensor, float], Tensor]


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    h = len(weight)
    residual[:, :h] = (residual[:, :h].double() + x[:, :h].double()).type_as(residual)
    return reference.rms_norm(residual[:, :h].double(), weight.double(), eps).type_as(x)


def _scale(total: Tensor, h: int, eps: float) -> Tensor:
    return (total.square().sum() / h + eps).rsqrt()


def _scale_in_16_bits(total: Tensor, h: int, eps: float, dtype: torch.dtype) -> Tensor:
    return _scale(total.to(dtype), h, eps).float()


def _norm(
    x, residual, weight, eps, *,
    rows=lambda T: range(T), strides=lambda X, R, h: (X, R, h), masks=(True, True, True), rounded=True, added=True,
    scale=_scale, keep=lambda stored, y: stored,
) -> Tensor:  # fmt: skip
    """A kernel, row by row, with one of its parts replaced by a wrong one.

    rows: which row each program takes. strides: of x, residual and y. masks: whether loads, the store of the residual
    and the store of y are masked. keep: what is written to the residual, None for nothing.
    """
    T, h = len(x), len(weight)
    y = torch.full((T, h), torch.nan, dtype=x.dtype)
    block = power_of_two(h)
    loaded, kept, written = (h if mask else block for mask in masks)
    strides = strides(x.shape[1], residual.shape[1], h)
    tile_weight = torch.zeros(block)
    tile_weight[:h] = weight
    for row in rows(T):
        x_at, residual_at, y_at = (row * stride for stride in strides)
        new, old = torch.zeros(block), torch.zeros(block)
        new[:loaded] = span(x, x_at, loaded)
        old[:loaded] = span(residual, residual_at, loaded)
        total = new + old
        stored = total.type_as(residual)
        wide = (stored.float() if rounded else total) if added else new
        row_y = wide * scale(wide, h, eps) * tile_weight
        kept_row = keep(stored, row_y)
        if kept_row is not None:
            span(residual, residual_at, kept)[:] = kept_row[:kept]
        span(y, y_at, written)[:] = row_y[:written]
    return y


def _layer_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    h = len(weight)
    add_rms_norm(x, residual, weight, eps)
    row = residual[:, :h].double()
    return add_rms_norm((row - row.mean(dim=1, keepdim=True)).type_as(x), torch.zeros_like(row), weight, eps)


def _sum_of_squares_in_16_bits(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _norm(x, residual, weight, eps, scale=partial(_scale_in_16_bits, dtype=residual.dtype))


def _without_weight(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _norm(x, residual, torch.ones_like(weight), eps)


def _wrong(**parts: Any) -> Norm:
    return partial(_norm, **parts)


def y_and_residual(outcome: Outcome) -> dict[str, Any]:
    return {"y": outcome.value, "the residual": outcome.args[1]}


def _rows(rng: Random, T: int, h: int, x_gap: int, residual_gap: int, dtype: torch.dtype = torch.float32) -> tuple:
    """Arguments with NaN behind each row."""
    x, residual = (with_gaps(normal(rng, T, h, dtype=dtype), h + gap) for gap in (x_gap, residual_gap))
    return x, residual, normal(rng, h, dtype=dtype), 1e-5


def _mixed(rng: Random) -> tuple:
    """x in float32, the residual in float16: the sum must be rounded before it is squared.

    x and the residual fit into float16, so that their sum in float32 is exact and all round it alike.
    """
    x, residual, weight, eps = _rows(rng, 2, 12, 4, 20, HALF)
    return x.float(), 1000 * residual, weight.float(), eps


def _public(rng: Random) -> list[Case]:
    x, residual = torch.tensor([[1.0, 2.0, 3.0, -1.0]]), torch.tensor([[2.0, 1.0, 0.0, 4.0]])
    example = x, residual, torch.tensor([1.0, 2.0, 1.0, 4.0]), 7.0
    want = {"y": torch.tensor([[0.75, 1.5, 0.75, 3.0]]), "the residual": torch.full((1, 4), 3.0)}
    large = torch.full((1, 8), 300.0, dtype=HALF)
    return [
        # The sum is 3, 3, 3, 3: mean square 9, and with eps 7 the root is 4.
        Case("worked example", example, want),
        Case("edge case", _rows(rng, 2, 4, 2, 1)),  # rows with gaps; the tile is as long as a row
        Case("edge case", _rows(rng, 3, 5, 3, 11)),  # the tile is longer than a row, and NaN lies behind it
        Case("edge case", _rows(rng, 3, 1, 0, 0)),
        Case("edge case", (large, torch.zeros_like(large), torch.ones(8, dtype=HALF), 1e-5)),
        Case("edge case", _mixed(rng)),
        Case("reference", _rows(rng, 3, 100, 28, 60, HALF)),
        Case("reference", _rows(rng, 1, 2500, 7, 0)),
    ]


ADD_RMS_NORM = Problem(
    name="add_rms_norm",
    arguments=("x", "residual", "weight", "eps"),
    reference=add_rms_norm,
    view=y_and_residual,
    public_points=4,
    hidden_points=4,
    public=_public,
    hidden=lambda rng: [
        Case("reference", _mixed(rng)),
        *(
            Case("reference", _rows(rng, rng.randint(2, 4), h, rng.randint(0, 9), rng.randint(10, 20), dtype))
            for h, dtype in ((rng.randint(33, 60), torch.float32), (rng.randint(130, 200), HALF), (64, torch.float32))
        ),
    ],
    mistakes=(
        Mistake(
            "load-not-masked",
            "The tile is longer than the row, and what lies behind it got into the sum: mask the loads, other=0.0.",
            _wrong(masks=(False, True, True)),
        ),
        Mistake(
            "residual-store-not-masked",
            "Behind the row's h elements the residual belongs to others: mask its store too.",
            _wrong(masks=(True, False, True)),
        ),
        Mistake(
            "past-the-end",
            "A row has h elements and the tile has more: mask every load and every store, those of weight and y too.",
            _wrong(masks=(True, True, False)),
        ),
        Mistake(
            "stride-is-h",
            "Row i does not begin at i * h: rows have gaps. Multiply by x_stride and residual_stride.",
            _wrong(strides=lambda X, R, h: (h, h, h)),
        ),
        Mistake(
            "one-stride-for-both",
            "The residual has a stride of its own: residual_stride, not x_stride.",
            _wrong(strides=lambda X, R, h: (X, X, h)),
        ),
        Mistake(
            "residuals-stride-for-x",
            "x has a stride of its own: x_stride, not residual_stride.",
            _wrong(strides=lambda X, R, h: (R, R, h)),
        ),
        Mistake(
            "stride-of-x-for-y",
            "The rows of y have no gaps: row i begins at i * h.",
            _wrong(strides=lambda X, R, h: (X, R, X)),
        ),
        Mistake(
            "first-row-only",
            "Every program worked on row 0: the row is tl.program_id(0).",
            _wrong(rows=lambda T: [0] * T),
        ),
        Mistake(
            "norm-of-x",
            "The norm is that of x + residual, not of x.",
            _wrong(added=False),
        ),
        Mistake(
            "residual-not-stored",
            "The next layer reads the residual: store the sum there.",
            _wrong(keep=lambda stored, y: None),
        ),
        Mistake(
            "norm-stored",
            "The residual keeps the sum; the normalised row goes to y alone.",
            _wrong(keep=lambda stored, y: y),
        ),
        Mistake(
            "sum-not-rounded",
            "The norm must see the sum as it is stored: round it to the residual's dtype, then go on in float32.",
            _wrong(rounded=False),
        ),
        Mistake(
            "eps-outside-the-root",
            "eps is added to the mean square, inside the root.",
            _wrong(scale=lambda total, h, eps: 1 / ((total.square().sum() / h).sqrt() + eps)),
        ),
        Mistake(
            "eps-left-out",
            "eps is missing: it is added to the mean square.",
            _wrong(scale=lambda total, h, eps: _scale(total, h, 0.0)),
        ),
        Mistake(
            "root-left-out",
            "Divide by the root of the mean square, not by the mean square.",
            _wrong(scale=lambda total, h, eps: _scale(total, h, eps) ** 2),
        ),
        Mistake(
            "sum-for-mean",
            "That is the root of the sum of squares: divide the sum by h.",
            _wrong(scale=lambda total, h, eps: _scale(total, 1, eps)),
        ),
        Mistake(
            "mean-over-the-tile",
            "The mean is over the row's h elements, not over the BLOCK elements of the tile.",
            _wrong(scale=lambda total, h, eps: _scale(total, len(total), eps)),
        ),
        Mistake("layer-norm", "RMSNorm subtracts no mean; LayerNorm does.", _layer_norm),
        Mistake("weight-left-out", "The weight is missing: element i is multiplied by weight[i].", _without_weight),
        Mistake(
            "sum-in-16-bits",
            "300 * 300 does not fit into float16, whose largest number is 65,504: go to float32 before you square.",
            _sum_of_squares_in_16_bits,
        ),
    ),
)
