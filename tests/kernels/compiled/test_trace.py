"""A process that compiles has kernels traced in a child process."""

from __future__ import annotations

import pytest
import torch

from course_kernels import trace as tracing
from course_kernels.launch import KernelError
from course_kernels.trace import trace
from course_kernels.triton.norm import rms_norm
from course_lib.errors import CourseError


def test_a_child_process_traces():
    x = torch.randn(5, 2000)
    accesses = trace(rms_norm, x, x[0], eps=1e-6)
    assert [(a.program[0], a.tensor, a.bytes) for a in accesses if a.tensor != "weight"] == [
        (row, tensor, 8000) for row in range(5) for tensor in ("x", "y")
    ]
    assert accesses[-1].elements.tolist() == list(range(8000, 10000))


def test_its_errors_are_ours():
    with pytest.raises(KernelError, match=r"rms_norm: weight has shape \[7\]"):
        trace(rms_norm, torch.randn(4, 8), torch.randn(7), 1e-6)


def test_a_child_serves_more_than_one_call_and_a_dead_one_is_replaced():
    x = torch.randn(2, 2000)
    first, second = trace(rms_norm, x, x[0], 1e-6), trace(rms_norm, x[:1], x[0], 1e-6)
    assert (len(first), len(second)) == (6, 3)
    tracing._child().kill()
    with pytest.raises(CourseError, match="the process that traces rms_norm ended"):
        trace(rms_norm, x, x[0], 1e-6)
    assert len(trace(rms_norm, x, x[0], 1e-6)) == 6


def test_what_cannot_be_imported_is_refused():
    with pytest.raises(CourseError, match="can only import it from a module"):
        trace(lambda: None)
