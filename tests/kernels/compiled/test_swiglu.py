"""Widths of real models: 1536 SmolLM2-135M, 3072 Qwen3-0.6B, 14336 Llama-3-8B."""

from __future__ import annotations

import pytest

from course_kernels.triton.swiglu import swiglu


@pytest.mark.parametrize("ffn", [1536, 3072, 14336])
def test_swiglu_loads_128_bits_at_a_time(gpu, ffn):
    [launch] = gpu.compile(swiglu, gpu.empty(64, 2 * ffn))
    assert set(launch.loads) == {128}


def test_one_kernel_for_every_batch(gpu):
    kernels = [gpu.compile(swiglu, gpu.empty(rows, 6144))[0].kernel for rows in (1, 2, 17, 64)]
    assert all(kernel is kernels[0] for kernel in kernels)
