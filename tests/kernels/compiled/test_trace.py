"""A process that compiles has kernels traced in a child process."""

from __future__ import annotations

import pytest
import torch

from course_kernels.launch import KernelError
from course_kernels.trace import trace
from course_kernels.triton.norm import rms_norm


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
