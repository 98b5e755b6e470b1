"""quantize_per_token: rounded as stated, to the last bit, and what it costs a product."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from course_kernels.launch import EIGHT_BIT, KernelError
from course_kernels.reference import quantize as reference
from course_kernels.triton.quantize import quantize_per_token
from course_kernels.triton.scaled_matmul import scaled_matmul
from tests.kernels.values import DTYPES, assert_close, far_apart, normal

INT8, FP8 = EIGHT_BIT


def assert_nearest(q: Tensor, scales: Tensor, x: Tensor) -> None:
    """x [..., K] in float64: scales are right, and no number of q's dtype is nearer to x / scale than q is."""
    want, want_scales = reference.quantize_per_token(x, q.dtype)
    assert_close(scales / want_scales.float(), torch.ones_like(want_scales), units=4)
    step = 1.0 if q.dtype == INT8 else (want.double().abs() / 8).clamp(min=2**-9)
    off = (q.double() - x / want_scales[..., None]).abs() / step
    assert off.max() <= 0.5 + 1e-4, f"off by {off.max():.4f} steps"


@settings(max_examples=14, deadline=None, derandomize=True)
@given(
    rows=st.integers(0, 12),
    width=st.integers(1, 300),
    gap=st.integers(0, 3),
    dtype=st.sampled_from(DTYPES),
    kind=st.sampled_from(EIGHT_BIT),
    size=st.sampled_from([1e-3, 1.0, 300.0]),
)
def test_random_shapes(rows, width, gap, dtype, kind, size):
    """Rows lie `gap` elements apart, with NaN between them."""
    wide = torch.full((rows, width + gap), torch.nan, dtype=dtype)
    x = wide[:, :width].copy_(normal(rows, width).mul(size))
    q, scales = quantize_per_token(x, kind)
    assert q.shape == x.shape and q.dtype == kind and q.is_contiguous()
    assert scales.shape == (rows,) and scales.dtype == torch.float32
    if rows:
        assert_nearest(q, scales, x.double())


@pytest.mark.parametrize("kind", EIGHT_BIT, ids=str)
def test_a_row_longer_than_a_tile(kind):
    x = normal(2, 2500, dtype=torch.float16)
    assert_nearest(*quantize_per_token(x, kind), x.double())


def test_ties_go_to_the_even_number():
    """A peak of 127 makes the scale 1."""
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 126.5, -126.5, -127.0, 0.49999997, 0.0]])
    q, scales = quantize_per_token(x, INT8)
    assert scales.item() == 1
    assert q.tolist() == [[127, 0, 2, 2, 0, -2, 126, -126, -127, 0, 0]]


def test_every_e4m3_number_and_every_middle_of_two():
    """Subnormal numbers and both signs. A middle goes to the number whose last bit is 0, what is beside it does not."""
    numbers = torch.arange(127, dtype=torch.uint8).view(FP8).float()  # 0 to 448
    middles = (numbers[1:] + numbers[:-1]) / 2
    x = torch.cat((numbers, middles, middles * (1 + 4e-6), middles * (1 - 4e-6)))
    x = torch.cat((x, -x))[None]
    q, scales = quantize_per_token(x, FP8)
    assert scales.item() == 1
    assert torch.equal(q.view(torch.uint8), x.to(FP8).view(torch.uint8))
    below = torch.arange(126, dtype=torch.uint8)
    assert torch.equal(q.view(torch.uint8)[0, 127 : 127 + 126], below + below % 2)


@pytest.mark.parametrize("kind", EIGHT_BIT, ids=str)
def test_rows_of_zeros_and_of_the_smallest_numbers(kind):
    """No division by zero, no NaN, and no scale that rounds to 0 or leaves the range."""
    x = torch.zeros(4, 20)
    x[1, 3], x[2], x[3, 5] = 2.0**-149, 190 * 2.0**-149, -(2.0**-126)
    q, scales = quantize_per_token(x, kind)
    back = q.float() * scales[:, None]
    assert torch.equal(scales, torch.full((4,), 2.0**-126))
    assert (q[0].float() == 0).all() and back.isfinite().all()
    assert (back - x).abs().max() <= 2.0**-127


def test_float16_s_largest_number():
    x = torch.tensor([[65504.0, -65504.0, 100.0]], dtype=torch.float16)
    for kind in EIGHT_BIT:
        q, scales = quantize_per_token(x, kind)
        assert_nearest(q, scales, x.double())
        assert q[0, :2].tolist() == ([127, -127] if kind == INT8 else [448, -448])


def test_rows_behind_2_to_the_31():
    x = normal(3, 64, dtype=torch.float16)
    for got, near in zip(quantize_per_token(far_apart(x), INT8), quantize_per_token(x, INT8), strict=True):
        assert torch.equal(got, near)


@pytest.mark.parametrize("kind, share", [(INT8, 1 / 254), (FP8, 1 / 16)], ids=str)
def test_a_product_of_quantised_numbers_is_the_product_within_a_bound(kind, share):
    """x and w differ from their 8-bit forms by at most e = share * max |row| (int8), share * |element| (e4m3).

    So a sum of K products is off by at most sum |x| e_w + |w| e_x + e_x e_w, beside the roundings of float32.
    """
    x, weight = normal(5, 320), normal(40, 320, seed=1)
    (q_x, x_scales), (q_weight, weight_scales) = quantize_per_token(x, kind), quantize_per_token(weight, kind)
    got = scaled_matmul(q_x, q_weight, x_scales, weight_scales, torch.float32)
    x, weight = x.double(), weight.double()
    errors = [share * (t.abs().amax(1, keepdim=True).expand_as(t) if kind == INT8 else t.abs()) for t in (x, weight)]
    floor = 0 if kind == INT8 else 2**-10 / 448  # of e4m3's subnormal numbers
    e_x, e_w = (error + floor * t.abs().amax(1, keepdim=True) for error, t in zip(errors, (x, weight), strict=True))
    bound = x.abs() @ e_w.T + e_x @ weight.abs().T + e_x @ e_w.T
    off = (got.double() - x @ weight.T).abs()
    assert (off <= bound * (1 + 1e-5)).all()
    assert off.max() > bound.min() / 100  # the bound is not idle


def test_bad_input_is_one_sentence():
    x = normal(2, 8)
    with pytest.raises(KernelError, match="quantize_per_token: dtype is torch.uint8 and must be int8 or float8_e4m3fn"):
        quantize_per_token(x, torch.uint8)
    with pytest.raises(KernelError, match="quantize_per_token: x is int8 and must be float32 or float16 or bfloat16"):
        quantize_per_token(x.to(INT8), INT8)
    with pytest.raises(KernelError, match="quantize_per_token: rows have 32769 elements and at most 32768 fit"):
        quantize_per_token(normal(1, 32769), INT8)
