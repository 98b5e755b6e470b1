"""What a checked kernel says of an access that is not its own, and that it is otherwise the kernel."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from course_kernels.launch import KernelError
from course_kernels.memcheck import memcheck
from course_kernels.trace import trace
from tests.kernels.values import normal


@memcheck
@triton.jit
def _copy(x_ptr, y_ptr, LOAD: tl.constexpr, STORE: tl.constexpr):
    i = tl.program_id(0) * 16 + tl.arange(0, 16)
    x = tl.load(x_ptr + i, mask=i < LOAD, other=0.0)
    tl.store(y_ptr + i, x, mask=i < STORE)


@memcheck
@triton.jit
def _unwritten(x_ptr, BLOCK: tl.constexpr):
    raise NotImplementedError


def copy(x, load, store):
    y = torch.full_like(x, torch.nan)
    _copy[(triton.cdiv(len(x), 16),)](x, y, LOAD=load, STORE=store)
    return y


def test_a_right_kernel_runs_as_before():
    x = normal(40)
    assert torch.equal(copy(x, 40, 40), x)
    assert len(trace(copy, x, 40, 40)) == 2 * 3  # a trace of it sees its own accesses, once each


@pytest.mark.parametrize("load, store, verb", [(48, 40, "loads 8 elements from"), (40, 41, "stores 1 elements to")])
def test_an_access_outside_is_an_error(load, store, verb):
    with pytest.raises(KernelError, match=rf"^_copy: program \(2, 0, 0\) {verb} outside of its tensors"):
        copy(normal(40), load, store)


def test_what_a_kernel_raises_arrives_as_it_is():
    with pytest.raises(NotImplementedError):
        _unwritten[(1,)](normal(4), BLOCK=4)
