"""RMSNorm (arXiv 1910.07467, equation 4), alone and with the residual addition before it."""

from __future__ import annotations

from torch import Tensor

from course_kernels.reference import widen


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis. x [..., h], weight [h]; returns [..., h]."""
    wide = widen(x)
    return (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight).type_as(x)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual += x in place, then rms_norm(residual). x and residual [T, h], weight [h]; returns [T, h].

    The norm sees the sum as it is stored, rounded to the dtype, as it would in two steps.
    """
    residual += x
    return rms_norm(residual, weight, eps)
