"""int4_matmul against float64, one row (the GEMV) and several (the GEMM)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from course_kernels.cuda.int4_matmul import int4_matmul as cuda_int4_matmul
from course_kernels.launch import KernelError
from course_kernels.reference import int4_matmul as reference
from course_kernels.triton.int4_matmul import int4_matmul
from tests.kernels.values import DTYPES, assert_close, normal


def quantized(depth: int, columns: int, group: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """A random weight of about unit norm per column, so that an output is about as large as an element of x."""
    generator = torch.Generator().manual_seed(depth + columns)
    q = torch.randint(0, 16, (depth, columns), generator=generator)
    zeros = torch.randint(0, 16, (depth // group, columns), generator=generator)
    scales = (0.5 + torch.rand(depth // group, columns, generator=generator)) / (6 * depth**0.5)
    return reference.pack(q, 0), scales.to(dtype), reference.pack(zeros, 1)


def check(x: Tensor, weight: tuple[Tensor, Tensor, Tensor]) -> None:
    qweight, scales, qzeros = weight
    want = reference.int4_matmul(x.double(), qweight, scales.double(), qzeros)
    assert_close(int4_matmul(x, *weight), want, units(len(x), x.dtype))


def units(tokens: int, dtype: torch.dtype) -> float:
    """float32: rounding of the sums. float16: one row is rounded once, at the end; more rows round each weight too."""
    return 12 if dtype == torch.float32 else 1 if tokens == 1 else 3


@settings(max_examples=14, deadline=None, derandomize=True)
@given(
    tokens=st.sampled_from([1, 1, 2, 7, 16, 33, 130]),
    group=st.sampled_from([16, 32, 48, 64, 128, 192]),
    groups=st.integers(1, 3),
    words=st.integers(1, 40),
    dtype=st.sampled_from(DTYPES),
)
def test_random_shapes(tokens, group, groups, words, dtype):
    weight = quantized(group * groups, 8 * words, group, dtype)
    check(normal(tokens, group * groups, dtype=dtype), weight)


@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_rows_of_x_may_be_a_slice(tokens):
    """Beside the slice is NaN, which a load beyond the row would bring in."""
    wide = torch.full((tokens, 100), torch.nan)
    wide[:, :64] = normal(tokens, 64)
    check(wide[:, :64], quantized(64, 24, 32, torch.float32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("magnitude", [1e-6, 1e4])
def test_one_row_of_small_and_of_large_values(dtype, magnitude):
    """The products pass through 2^-53: neither end of float16's range is lost."""
    weight = quantized(128, 16, 64, dtype)
    x = normal(1, 128, dtype=torch.float32).mul(magnitude).to(dtype)
    got = int4_matmul(x, *weight).double()
    want = reference.int4_matmul(x.double(), weight[0], weight[1].double(), weight[2])
    bound = 4 * torch.finfo(dtype).eps * want.abs() + 2.0**-24 * (dtype == torch.float16) + 1e-6 * magnitude
    assert bool(((got - want).abs() <= bound).all())


@pytest.mark.parametrize("tokens", [1, 3])
def test_each_nibble_has_its_place(tokens):
    """A unit vector picks out one row of the weight: swapped nibbles, rows, columns or zeros would show."""
    depth, columns = 32, 16
    q = (torch.arange(depth)[:, None] * 5 + torch.arange(columns) * 3) % 16
    zeros = (torch.arange(2)[:, None] * 7 + torch.arange(columns)) % 16
    scales = 2.0 ** torch.arange(2)[:, None].expand(2, columns)
    weight = (q - zeros.repeat_interleave(16, 0)) * scales.repeat_interleave(16, 0)
    packed = reference.pack(q, 0), scales.contiguous(), reference.pack(zeros, 1)
    for row in range(depth - tokens + 1):
        x = torch.eye(depth)[row : row + tokens]
        assert torch.equal(int4_matmul(x, *packed), weight[row : row + tokens])


def test_packing_is_gptq_s():
    """32: nibbles ascend along K in qweight and along N in qzeros; the eighth reaches the sign bit."""
    values = torch.tensor([1, 2, 3, 4, 5, 6, 7, 8])
    assert reference.pack(values[:, None], 0).tolist() == [[0x87654321 - 2**32]]
    assert reference.pack(values[None, :], 1).tolist() == [[0x87654321 - 2**32]]
    random = torch.randint(0, 16, (24, 16), generator=torch.Generator().manual_seed(0))
    for dim in (0, 1):
        assert torch.equal(reference.unpack(reference.pack(random, dim), dim), random.int())


def test_shares_of_k_are_added_once_each():
    """16 tiles of K and one of the output: 16 programs, whose shares differ by powers of two."""
    q = torch.full((1024, 8), 9)
    scales = (2.0 ** torch.arange(16))[:, None].expand(16, 8).contiguous()
    packed = reference.pack(q, 0), scales, reference.pack(torch.full((16, 8), 8), 1)
    for tokens in (1, 2):
        assert torch.equal(int4_matmul(torch.ones(tokens, 1024), *packed), torch.full((tokens, 8), 64.0 * (2**16 - 1)))


def test_bad_input_is_one_sentence():
    x, (qweight, scales, qzeros) = normal(2, 64), quantized(64, 16, 32, torch.float32)
    with pytest.raises(KernelError, match="a word of qweight holds 8 rows"):
        int4_matmul(normal(2, 32), qweight, scales, qzeros)
    with pytest.raises(KernelError, match="int4_matmul: scales is float16 and must be float32"):
        int4_matmul(x, qweight, scales.half(), qzeros)
    with pytest.raises(KernelError, match="8 groups of scales for 64 rows; a group must have a multiple of 16 rows"):
        int4_matmul(x, qweight, scales.repeat(4, 1), qzeros.repeat(4, 1))
    with pytest.raises(KernelError, match="the weight is a slice of another"):
        int4_matmul(x, qweight.repeat(1, 2)[:, :16], scales, qzeros)


def test_cuda_form_says_what_it_cannot_do():
    packed = quantized(64, 16, 32, torch.float16)
    with pytest.raises(KernelError, match="takes one row of 16-bit numbers; use the Triton form"):
        cuda_int4_matmul(normal(2, 64, dtype=torch.float16), *packed)
    with pytest.raises(KernelError, match="CUDA C.. has no interpreter; move the tensors to a GPU"):
        cuda_int4_matmul(normal(1, 64, dtype=torch.float16), *packed)
