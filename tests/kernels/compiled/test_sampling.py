"""Vocabularies of SmolLM2-135M and of Qwen3."""

from __future__ import annotations

import pytest
import torch

from course_kernels.triton.sampling import sample


@pytest.mark.parametrize("vocab", [49152, 151936])
def test_one_launch_that_reads_logits_128_bits_at_a_time(gpu, vocab):
    rows = 64
    parameters = gpu.empty(rows, dtype=torch.float32), gpu.empty(rows, dtype=torch.float32)
    [launch] = gpu.compile(sample, gpu.empty(rows, vocab), *parameters, gpu.empty(rows, vocab, dtype=torch.float32))
    assert launch.grid == (rows,)
    # Logits and noise; only the row's temperature and top_p come alone.
    assert set(launch.loads) <= {128, 32} and launch.loads[128] > launch.loads[32]
