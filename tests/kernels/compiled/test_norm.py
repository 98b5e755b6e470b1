"""Hidden sizes of real models: 576 SmolLM2-135M, 1024 Qwen3-0.6B, 4096 Llama-3-8B, 8192 Llama-3-70B."""

from __future__ import annotations

import pytest

from course_kernels.triton.norm import add_rms_norm, rms_norm


@pytest.mark.parametrize("hidden", [576, 1024, 4096, 8192])
def test_norms_load_128_bits_at_a_time(gpu, hidden):
    x, weight = gpu.empty(64, hidden), gpu.empty(hidden)
    [alone] = gpu.compile(rms_norm, x, weight, 1e-6)
    [added] = gpu.compile(add_rms_norm, x, gpu.empty(64, hidden), weight, 1e-6)
    assert set(alone.loads) == set(added.loads) == {128}
    assert added.loads.total() > alone.loads.total()


def test_the_longest_row_fits_in_registers(gpu):
    gpu.compile(add_rms_norm, gpu.empty(8, 32768), gpu.empty(8, 32768), gpu.empty(32768), 1e-6)


def test_one_kernel_for_every_batch(gpu):
    kernels = [gpu.compile(rms_norm, gpu.empty(rows, 1024), gpu.empty(1024), 1e-6)[0].kernel for rows in (1, 2, 17, 64)]
    assert all(kernel is kernels[0] for kernel in kernels)
