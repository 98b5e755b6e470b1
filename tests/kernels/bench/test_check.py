"""How a kernel is compared with its reference: in roundings, NaN for NaN, what it writes in place too."""

from __future__ import annotations

import pytest
import torch

from course_kernels.bench import check
from course_kernels.bench.cases import Case, cases
from course_kernels.bench.inputs import Draw
from course_kernels.bench.sizes import SMALL


def test_errors_are_counted_in_roundings():
    want = torch.tensor([[1.0, 1.0, 1.0, 0.0]], dtype=torch.float64)
    eps = torch.finfo(torch.float16).eps
    assert check.errors(want.half(), want) == (0, 0)
    largest, relative = check.errors((want + torch.tensor([0, eps, 0, 0])).half(), want)
    assert largest == 1 and relative == pytest.approx(eps / 3**0.5)
    # Where 0 is wanted, the rest of the row gives the size: 2 eps over sqrt(3/4).
    assert check.errors((want + torch.tensor([0, 0, 0, 2 * eps])).half(), want)[0] == pytest.approx(2 / 0.75**0.5)


def test_errors_of_other_types():
    tokens = torch.tensor([3, 4, 5, 6])
    assert check.errors(tokens, torch.tensor([3, 4, 5, 7])) == (0.25, 0.25)
    stored = torch.tensor([[100, -3]], dtype=torch.int8)
    assert check.errors(stored, torch.tensor([[98, -3]], dtype=torch.int8))[0] == 2
    with pytest.raises(ValueError, match=r"returns shape \[4\] and the reference \[2\]"):
        check.errors(tokens, tokens[:2])


def test_nan_has_its_places():
    want = torch.tensor([[1.0, torch.nan]], dtype=torch.float64)
    assert check.errors(want.half(), want) == (0, 0)
    for wrong in ([[torch.nan, torch.nan]], [[1.0, 1.0]], [[torch.nan, 1.0]]):
        assert check.errors(torch.tensor(wrong).half(), want)[0] == torch.inf


@pytest.mark.parametrize("mistake", ["wrong", "unwritten", "argument"])
def test_a_wrong_kernel_does_not_pass(monkeypatch, mistake):
    """A result that is 1 % off, a last row that is not written, an argument that should have been."""
    from course_kernels.reference.norm import add_rms_norm, rms_norm

    def kernel(x, residual, weight, eps):
        if mistake == "argument":
            return rms_norm(x + residual, weight, eps)
        if mistake == "wrong":
            return add_rms_norm(x, residual, weight, eps) * 1.01
        out = torch.empty_like(x)
        out[:-1] = add_rms_norm(x, residual, weight, eps)[:-1]
        return out

    case = next(case for case in cases(SMALL) if case.name == "add_rms_norm")
    monkeypatch.setattr(check, "form", lambda name, operation: add_rms_norm if name == "reference" else kernel)
    result = check.check(case, Draw(SMALL, torch.float16, "cpu", seed=0))
    assert not result["passed"] and result["error"] > result["allowed"]


def test_the_right_kernel_passes_by_the_same_way(monkeypatch):
    """`poisoned` is over when the case is."""
    from course_kernels.reference import swiglu

    monkeypatch.setattr(check, "form", lambda name, operation: swiglu.swiglu)
    case = Case("swiglu.swiglu", "", lambda draw: draw.swiglu(3), 1)
    assert check.check(case, Draw(SMALL, torch.float16, "cpu", seed=0))["passed"]
    assert not torch.are_deterministic_algorithms_enabled()
