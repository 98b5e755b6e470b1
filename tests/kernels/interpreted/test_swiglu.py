"""swiglu against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_kernels.launch import KernelError
from course_kernels.reference import swiglu as reference
from course_kernels.triton import swiglu as kernels
from tests.kernels.values import DTYPES, assert_close, far_apart, normal


@settings(max_examples=12, deadline=None, derandomize=True)
@given(rows=st.integers(0, 12), f=st.integers(0, 2500), dtype=st.sampled_from(DTYPES), gap=st.integers(0, 3))
def test_random_shapes(rows, f, dtype, gap):
    """Behind each row stands NaN, which a load past gate or up would bring in."""
    wide = torch.full((rows, 2 * f + gap), torch.nan, dtype=dtype)
    gate_up = wide[:, : 2 * f]
    gate_up.copy_(3 * normal(rows, 2 * f, dtype=dtype))
    assert_close(kernels.swiglu(gate_up), reference.swiglu(gate_up.double()), units=4)


def test_rows_behind_2_to_the_31():
    gate_up = normal(3, 64, dtype=torch.float16)
    assert torch.equal(kernels.swiglu(far_apart(gate_up)), kernels.swiglu(gate_up))


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # numpy's, in the interpreter
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_exponential_does_not_leave_its_range(dtype):
    """10: e^100 is infinite in float16, and in float32 so is e^1000; silu is then 0 on the left and x on the right."""
    gate_up = torch.tensor([[-1000.0, -100.0, 0.0, 100.0, 1000.0] + [1.0] * 5], dtype=dtype)
    assert kernels.swiglu(gate_up).tolist() == [[0.0, 0.0, 0.0, 100.0, 1000.0]]


def test_reference_on_a_worked_row():
    """silu(ln 3) = 3/4 ln 3, and twice that with up = 2."""
    gate_up = torch.tensor([[3.0, torch.e**2]], dtype=torch.float64).log()
    for dtype in (torch.float16, torch.float32, torch.float64):
        got = reference.swiglu(gate_up.to(dtype))
        torch.testing.assert_close(got, (1.5 * gate_up[:, :1]).to(dtype))


def test_bad_input_is_one_sentence():
    with pytest.raises(KernelError, match="swiglu: gate_up has rows of 7 elements and must have gate and up of one"):
        kernels.swiglu(normal(2, 7))
    with pytest.raises(KernelError, match=r"swiglu: gate_up has strides \[1, 2\]"):
        kernels.swiglu(normal(8, 2).t())
