"""sample against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from course_kernels.launch import KernelError
from course_kernels.reference import sampling as reference
from course_kernels.triton import sampling as kernels
from course_lib import sampling as engine
from tests.kernels.values import DTYPES, normal


def exponential(*shape: int, seed: int = 0) -> Tensor:
    return torch.empty(*shape).exponential_(generator=torch.Generator().manual_seed(seed)).clamp_min_(1e-30)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    rows=st.integers(0, 4),
    vocab=st.integers(1, 600),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 5.0]),
    top_p=st.sampled_from([1e-6, 0.1, 0.5, 0.9, 0.999, 1.0]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 100),
)
def test_random_shapes(rows, vocab, temperature, top_p, dtype, seed):
    """Rows lie one element apart; the NaN between them is not read."""
    wide = torch.full((rows, vocab + 1), torch.nan, dtype=dtype)
    wide[:, :vocab] = normal(rows, vocab, seed=seed).mul(3).to(dtype)
    noise, ones = exponential(rows, vocab, seed=seed), torch.ones(rows)
    arguments = wide[:, :vocab], temperature * ones, top_p * ones, noise
    got = kernels.sample(*arguments)
    assert got.dtype == torch.int64
    assert torch.equal(got, reference.sample(*(argument.double() for argument in arguments)))


@pytest.mark.parametrize("top_p", [0.2, 0.6, 0.95])
def test_keeps_what_the_engine_keeps(top_p):
    """Every kept token is drawn once its noise is tiny, and no other ever is."""
    logits = normal(12).mul(2)
    kept = engine.keep_top_p(logits, top_p) > -torch.inf
    noise = torch.ones(12, 12).fill_diagonal_(1e-30)
    got = kernels.sample(logits.repeat(12, 1), torch.ones(12), torch.full((12,), top_p), noise)
    assert torch.equal(got == torch.arange(12), kept)


def test_each_row_has_its_own_parameters():
    logits = torch.tensor([[2.0, 1.0, 0.0, -torch.inf]]).repeat(4, 1)
    noise = torch.tensor([[1.0, 1e-3, 1e-6, 1e-30]]).repeat(4, 1)
    # Greedy; the first two by top-p; all but the forbidden one; one that is so cold that only the first has a chance.
    got = kernels.sample(logits, torch.tensor([0.0, 1.0, 1.0, 0.01]), torch.tensor([1.0, 0.8, 1.0, 1.0]), noise)
    assert got.tolist() == [0, 1, 2, 0]


def test_a_vocabulary_of_several_blocks():
    """The first of the equals where greedy; the kept tokens lie in different blocks."""
    vocab = 2 * kernels.BLOCK + 100
    logits = torch.full((2, vocab), -20.0)
    logits[:, [kernels.BLOCK - 1, 2 * kernels.BLOCK - 1, vocab - 1]] = 1.0
    noise = torch.ones(2, vocab)
    noise[1, vocab - 1] = 0.5
    got = kernels.sample(logits, torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.9]), noise)
    assert got.tolist() == [kernels.BLOCK - 1, vocab - 1]


def test_the_threshold_is_exact():
    """Two weights that differ in their last bits, and a mass that the larger one reaches alone."""
    logits, noise = torch.tensor([[-1e-7, 0.0, -1.0]]), torch.tensor([[1e-30, 1.0, 1e-30]])
    assert kernels.sample(logits, torch.ones(1), torch.tensor([0.4]), noise).item() == 1
    assert kernels.sample(logits, torch.ones(1), torch.tensor([0.5]), noise).item() == 0


def test_greedy_is_the_engine_s():
    assert reference.GREEDY_BELOW == engine.GREEDY_BELOW


def test_bad_input_is_one_sentence():
    logits, ones = normal(2, 8), torch.ones(2)
    with pytest.raises(KernelError, match="sample: temperatures is float64 and must be float32"):
        kernels.sample(logits, ones.double(), ones, logits)
    with pytest.raises(KernelError, match=r"sample: noise has shape \[2, 7\] and must be \[S, V\] with V = 8"):
        kernels.sample(logits, ones, ones, logits[:, :7])
