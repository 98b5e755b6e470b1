"""rms_norm and add_rms_norm against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_kernels.launch import KernelError
from course_kernels.reference import norm as reference
from course_kernels.triton import norm as kernels
from tests.kernels.values import DTYPES, assert_close, far_apart, normal

EPS = 1e-5


@settings(max_examples=12, deadline=None, derandomize=True)
@given(rows=st.integers(0, 40), h=st.integers(1, 300), dtype=st.sampled_from(DTYPES), gap=st.integers(0, 3))
def test_random_shapes(rows, h, dtype, gap):
    """Rows of x lie `gap` elements apart, of residual twice as many; what lies between is NaN and is not touched."""
    wide_x = torch.full((rows, h + gap), torch.nan, dtype=dtype)
    wide_residual = torch.full((rows, h + 2 * gap), torch.nan, dtype=dtype)
    x, residual, weight = wide_x[:, :h], wide_residual[:, :h], normal(h, dtype=dtype, seed=2)
    x.copy_(normal(rows, h, dtype=dtype))
    residual.copy_(normal(rows, h, dtype=dtype, seed=1))

    assert_close(kernels.rms_norm(x, weight, EPS), reference.rms_norm(x.double(), weight.double(), EPS), units=4)
    total = residual.double() + x
    got = kernels.add_rms_norm(x, residual, weight, EPS)
    assert_close(residual, total)
    # From the stored sum: the rounding of float16 is then no error of the norm.
    assert_close(got, reference.rms_norm(residual.double(), weight.double(), EPS), units=4)
    assert wide_residual[:, h:].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_longer_than_a_tile(dtype):
    x, weight = normal(3, 2500, dtype=dtype), normal(2500, dtype=dtype, seed=1)
    assert_close(kernels.rms_norm(x, weight, EPS), reference.rms_norm(x.double(), weight.double(), EPS), units=4)


def test_rows_behind_2_to_the_31():
    x, residual, weight = (normal(3, 64, dtype=torch.float16, seed=seed) for seed in range(3))
    near, far = residual.clone(), far_apart(residual)
    got = kernels.add_rms_norm(far_apart(x), far, weight[0], EPS)
    assert torch.equal(got, kernels.add_rms_norm(x, near, weight[0], EPS))
    assert torch.equal(far, near)


def test_sum_of_squares_is_float32():
    """10: in float16 the square of 300 is infinite."""
    x, weight = torch.full((2, 64), 300.0, dtype=torch.float16), torch.ones(64, dtype=torch.float16)
    assert_close(kernels.rms_norm(x, weight, EPS), torch.ones(2, 64, dtype=torch.float64))


def test_reference_keeps_the_dtype():
    """The reference itself, on a row whose root mean square is 5."""
    x, weight = torch.tensor([[1.0, 7.0]]), torch.tensor([1.0, 2.0])
    for dtype in (torch.float16, torch.float32, torch.float64):
        got = reference.rms_norm(x.to(dtype), weight.to(dtype), eps=0.0)
        torch.testing.assert_close(got, torch.tensor([[0.2, 2.8]], dtype=dtype))


def test_bad_input_is_one_sentence():
    x, weight = normal(4, 8), normal(8)
    with pytest.raises(KernelError, match=r"rms_norm: weight has shape \[7\] and must be \[h\] with h = 8"):
        kernels.rms_norm(x, weight[:7], EPS)
    with pytest.raises(KernelError, match="at most 32768 fit"):
        kernels.rms_norm(normal(1, 32769), normal(32769), EPS)
