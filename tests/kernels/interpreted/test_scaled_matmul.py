"""scaled_matmul against float64, int8 and float8_e4m3fn."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from course_kernels.launch import KernelError
from course_kernels.reference import scaled_matmul as reference
from course_kernels.triton.scaled_matmul import EIGHT_BIT, scaled_matmul
from tests.kernels.values import DTYPES, assert_close, normal


def quantized(rows: int, depth: int, dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor]:
    """Normal values rounded to 8 bits with one scale per row, [rows, depth] and [rows]."""
    values = normal(rows, depth, seed=seed)
    scales = values.abs().amax(1) / (127 if dtype == torch.int8 else 448)
    scaled = values / scales[:, None]
    return (scaled.round() if dtype == torch.int8 else scaled).to(dtype), scales


def check(x: Tensor, x_scales: Tensor, weight: Tensor, weight_scales: Tensor, dtype: torch.dtype) -> None:
    weight_scales = weight_scales / x.shape[1] ** 0.5  # outputs of about unit size
    want = reference.scaled_matmul(x, weight, x_scales.double(), weight_scales.double(), torch.float64)
    # float16 is one rounding. float32 rounds each share and each product with a scale, and the fp8 sum at each step.
    assert_close(scaled_matmul(x, weight, x_scales, weight_scales, dtype), want, 1 if dtype == torch.float16 else 4)


@settings(max_examples=14, deadline=None, derandomize=True)
@given(
    tokens=st.sampled_from([0, 1, 5, 16, 40, 130]),
    depth=st.integers(1, 20).map(lambda blocks: 16 * blocks),
    columns=st.integers(1, 300),
    kind=st.sampled_from(EIGHT_BIT),
    dtype=st.sampled_from(DTYPES),
)
def test_random_shapes(tokens, depth, columns, kind, dtype):
    check(*quantized(tokens, depth, kind, 0), *quantized(columns, depth, kind, 1), dtype)


@pytest.mark.parametrize("kind", EIGHT_BIT, ids=str)
def test_rows_may_be_slices(kind):
    """What stands beside the slice is the type's largest value, which would show in the sum."""
    x, x_scales = quantized(3, 96, kind, 0)
    weight, weight_scales = quantized(20, 96, kind, 1)
    largest = torch.tensor(127 if kind == torch.int8 else 448).to(kind).view(torch.uint8)
    wide_x, wide_weight = torch.full((3, 128), largest).view(kind), torch.full((20, 128), largest).view(kind)
    wide_x[:, :96], wide_weight[:, :96] = x, weight
    check(wide_x[:, :96], x_scales, wide_weight[:, :96], weight_scales, torch.float32)


@pytest.mark.parametrize("tokens", [1, 20])
def test_int8_sums_are_exact(tokens):
    """-128 * -128 added 4096 times: float32 has no room for a one beside it, int32 has."""
    x, weight = torch.full((tokens, 4096), -128, dtype=torch.int8), torch.full((2, 4096), -128, dtype=torch.int8)
    x[:, 0], weight[1, 0] = -1, -127
    got = scaled_matmul(x, weight, torch.ones(tokens), torch.ones(2), torch.float32)
    exact = torch.tensor([4095 * 2**14 + 128, 4095 * 2**14 + 127], dtype=torch.float64)
    assert_close(got, exact.expand(tokens, 2))


def test_every_fp8_number():
    """A product of each of e4m3's 254 numbers with 1, subnormal ones included; the two NaN are left out."""
    bits = torch.arange(256, dtype=torch.uint8)
    numbers = bits[bits & 127 != 127].view(torch.float8_e4m3fn)
    x = torch.zeros(254, 16).to(torch.float8_e4m3fn)
    x[:, 3] = numbers
    weight = torch.ones(1, 16).to(torch.float8_e4m3fn)
    got = scaled_matmul(x, weight, torch.ones(254), torch.ones(1), torch.float32)
    assert torch.equal(got[:, 0], numbers.float())


def test_bad_input_is_one_sentence():
    (x, scales), (weight, weight_scales) = quantized(2, 32, torch.int8, 0), quantized(4, 32, torch.int8, 1)
    with pytest.raises(KernelError, match="scaled_matmul: weight is float32 and must be int8"):
        scaled_matmul(x, weight.float(), scales, weight_scales, torch.float16)
    with pytest.raises(KernelError, match="K is 24 and must be a multiple of 16 below 131072; pad with zeros"):
        scaled_matmul(x[:, :24], weight[:, :24], scales, weight_scales, torch.float16)
    with pytest.raises(KernelError, match=r"dtype is torch.int8 and must be float32"):
        scaled_matmul(x, weight, scales, weight_scales, torch.int8)
