"""What a trace says a kernel touches, against what its docstring says and against what only a mask keeps it from."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from course_kernels.bench import paged
from course_kernels.launch import KernelError
from course_kernels.trace import trace
from course_kernels.triton.decode_attention import decode_attention
from course_kernels.triton.norm import add_rms_norm, rms_norm
from course_kernels.triton.rope_cache import rope_cache
from course_lib.plots.kernel_explorer import programs
from tests.kernels.values import normal


def moved(accesses, tensor, stores):
    return sum(access.bytes for access in accesses if (access.tensor, access.stores) == (tensor, stores))


@triton.jit
def _double(x_ptr, y_ptr, n, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n if MASKED else i >= 0
    tl.store(y_ptr + i, 2 * tl.load(x_ptr + i, mask=mask), mask=mask)


def double(x, masked=True):
    y = torch.full_like(x, torch.nan)
    _double[(triton.cdiv(len(x), 16),)](x, y, len(x), BLOCK=16, MASKED=masked)
    return y


def test_programs_elements_and_what_the_mask_leaves_out():
    accesses = trace(double, normal(40))
    assert [(a.program[0], a.tensor, a.stores, a.masked) for a in accesses] == [
        (program, *tile, masked) for program, masked in ((0, 0), (1, 0), (2, 8)) for tile in (("x", False), ("y", True))
    ]
    for access in accesses:
        first = 16 * access.program[0]
        assert access.elements.tolist() == list(range(first, min(first + 16, 40)))
        assert (access.kernel, access.shape, access.bytes) == ("_double", (40,), 4 * len(access.elements))


def test_an_address_outside_is_an_error_before_it_is_read():
    with pytest.raises(KernelError, match=r"_double: program \(2, 0, 0\) loads 8 elements from outside of its tensors"):
        trace(double, normal(40), masked=False)


def test_an_error_leaves_nothing_behind():
    with pytest.raises(KernelError):
        trace(double, normal(40), masked=False)
    with pytest.raises(KernelError, match="weight has shape"):
        trace(rms_norm, normal(4, 8), normal(7), 1e-6)
    x = normal(40)
    assert torch.equal(double(x), 2 * x)
    assert len(trace(double, x)) == 6


def test_norms_move_what_their_docstring_says():
    rows, h = 37, 100
    x, residual, weight = normal(rows, h), normal(rows, h, seed=1), normal(h, seed=2)
    alone, added = trace(rms_norm, x, weight, 1e-6), trace(add_rms_norm, x, residual, weight, 1e-6)
    for accesses, times in ((alone, 2), (added, 4)):
        of_rows = [access for access in accesses if access.tensor != "weight"]
        assert sum(access.bytes for access in of_rows) == times * rows * h * 4
    assert moved(added, "residual", True) == moved(added, "y", True) == rows * h * 4


def test_rows_with_gaps_are_counted_as_rows_of_the_slice():
    """k is a slice of a fused projection: its elements are found by its strides, not by the span of its memory."""
    fused, slots = normal(3, 4, 16), torch.tensor([5, -1, 0])
    q, k, v = fused.split([2, 1, 1], dim=1)
    angles, store = normal(3, 8), torch.zeros(8, 1, 16)
    accesses = trace(rope_cache, q, k, v, angles, angles, store, store.clone(), slots)
    for tensor, part in (("q", q), ("k", k), ("v", v)):
        touched = np.concatenate([a.elements for a in accesses if a.tensor == tensor])
        expected = np.arange(part.numel()).reshape(part.shape)
        expected = expected if tensor == "q" else expected[[0, 2]]  # slot -1: its key and value are not even read
        assert sorted(touched) == sorted(expected.ravel()), tensor
    written = np.unique(np.concatenate([a.elements for a in accesses if a.tensor == "keys"]) // 16)
    assert written.tolist() == [0, 5]


def test_paged_decode_reads_each_key_once_and_no_padding():
    batch = paged.build([1, 1, 1], [40, 0, 17], heads=8, kv_heads=2)
    accesses = trace(decode_attention, *batch.decode)
    exists = ~batch.keys.isnan().flatten()
    for tensor in ("keys", "values"):
        touched = np.concatenate([a.elements for a in accesses if a.tensor == tensor])
        assert len(touched) == len(np.unique(touched)) == 57 * 2 * 16
        assert exists[torch.from_numpy(touched)].all()


def test_the_explorers_programs_are_those_of_the_launch():
    """`course_lib.plots.kernel_explorer` computes what is traced here: who loads how many tiles of 32 keys."""
    batch = paged.build([1, 1, 1], [700, 300, 40], heads=4, kv_heads=2)
    accesses = trace(decode_attention, *batch.decode)
    loads = Counter(a.program for a in accesses if a.tensor == "keys")
    splits = 1 + max(program[1] for program in loads)
    assert splits > 1
    expected = Counter()
    for i, program in enumerate(programs([700, 300, 40], kv_heads=2, splits=splits, tile=32)):
        expected[i % 2, program.share, program.sequence] = program.tiles
    assert loads == expected
